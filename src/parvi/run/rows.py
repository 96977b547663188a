"""Which rows of the data a run sees, decided by counting operations, never by a clock.

A sequence whose stages compare log densities needs the same one at every step. With all rows the
default is done after a few dozen evaluations of all particles, where mini-batches would take
thousands of steps and leave their noise (docs/decisions/0016-mini-batches.md). So all rows are
used where one evaluation of all particles is not too expensive, or costs little more than a batch.
"""

import math

import jax
import numpy as np

from parvi.counting import operations_of
from parvi.interface import AbstractSampler
from parvi.samplers.sequence import Sequence
from parvi.targets.minibatch import MiniBatch
from parvi.targets.target import AbstractTarget

# Operations of one evaluation of all particles above which all rows are too expensive: some
# seconds on two cores of a CPU. A GPU makes some hundred times as many in that time.
_CPU_OPERATIONS = 1 << 35
_GPU_OPERATIONS = 1 << 42
# Up to this many batches, all rows count as little more than a batch.
_FEW_BATCHES = 4


def with_rows(
    target: AbstractTarget,
    sampler: AbstractSampler | Sequence,
    shape: tuple[int, int],
    dtype: np.dtype,
) -> AbstractTarget:
    """The target for n particles in d dimensions, with all rows if the run should see them."""
    if not isinstance(target, MiniBatch) or target.layout is None:
        return target
    one = jax.ShapeDtypeStruct(shape[1:], dtype)
    target = target.in_blocks(one)
    if target.is_fixed or not compares(sampler):
        return target
    few = target.num_rows <= _FEW_BATCHES * target.batch_size
    return (
        target.whole()
        if few or affordable_rows(target, shape, dtype) >= target.num_rows
        else target
    )


def compares(sampler: AbstractSampler | Sequence) -> bool:
    """Whether the sampler is a sequence with stages that compare log densities."""
    if not isinstance(sampler, Sequence):
        return False
    return any(stage.sampler.compares_densities for stage in sampler.stages)


def affordable_rows(target: MiniBatch, shape: tuple[int, int], dtype: np.dtype) -> float:
    """The number of rows on which one evaluation of all particles is not too expensive."""
    one = jax.ShapeDtypeStruct(shape[1:], dtype)
    each = operations_of(target.whole().full(), one) / target.num_rows
    limit = _CPU_OPERATIONS if jax.default_backend() == "cpu" else _GPU_OPERATIONS
    return limit / (shape[0] * each) if math.isfinite(each) else 0.0
