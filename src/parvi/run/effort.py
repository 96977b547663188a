"""How hard the compiler should try.

XLA takes seconds to make the default's many small kernels fast, and a run of the default on a
small problem is over in a fraction of one. For those the kernels are compiled without
optimisation: two to three times sooner, each step four to five times slower. Where the log density
is what takes long, it alone is compiled with care, and the rest of a step is two quick programs
around it. The choice is made by the size of the problem, never by a clock: the same call always
gives the same bits (docs/decisions/0011-stages-and-effort.md).
"""

import enum

import jax

from parvi.counting import numbers_of
from parvi.evaluation import LIGHT
from parvi.interface import AbstractSampler, AbstractTwoPartSampler
from parvi.targets.target import AbstractTarget

# Numbers that the sampler itself computes, for each one of the particles and features.
_OWN = 30


class Effort(enum.Enum):
    """What is compiled quickly: all, all around the log density, or nothing."""

    QUICK = enum.auto()
    QUICK_AROUND = enum.auto()
    FULL = enum.auto()


def wanted(
    sampler: AbstractSampler, target: AbstractTarget, particles: jax.ShapeDtypeStruct
) -> Effort:
    """How hard the compiler should try for so many particles."""
    num, dim = particles.shape
    own = num * _OWN * (dim + min(num // 8, 128))
    # A run that is brief has 15 to 60 steps, and the optimising compiler takes four seconds longer.
    if not sampler.brief or jax.default_backend() != "cpu" or own > LIGHT:
        return Effort.FULL
    one = jax.ShapeDtypeStruct((dim,), particles.dtype)
    if own + num * numbers_of(target.full(), one) <= LIGHT:
        return Effort.QUICK
    parts = isinstance(sampler, AbstractTwoPartSampler) and target.is_fixed
    return Effort.QUICK_AROUND if parts else Effort.FULL
