"""The first particles of a run: flat, spread out, and admitted by the log density."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from parvi.cloud import Place
from parvi.counting import calls_host, traced
from parvi.evaluation import quickly
from parvi.geometry.frame import tells_covariance
from parvi.run.initial import flat_particles
from parvi.run.rows import with_rows
from parvi.run.spreading import spread_out
from parvi.samplers.flow import Flow
from parvi.samplers.sequence import Sequence
from parvi.targets.precision import wide_in_all_threads
from parvi.targets.target import AbstractTarget

# The largest number of particles times coordinates whose spread is looked at.
_MOST_SPREAD = 1 << 24


@quickly
def three_keys(key: Key[Array, ""]) -> tuple[Key[Array, ""], ...]:
    """Split and unpack in one program; separately they are two."""
    return tuple(jax.random.split(key, 3))


def started(
    target: AbstractTarget,
    values: PyTree | None,
    num_particles: int | None,
    sampler: Any,
    dtype: np.dtype,
    keys: tuple[Key[Array, ""], Key[Array, ""]],
    stack: contextlib.ExitStack,
) -> tuple[AbstractTarget, Place, int]:
    """The target as the sampler sees it, the first particles, and how many of them were moved.

    ``keys``: for particles that have to be drawn, and for what is done to them. The stack gets the
    contexts that the run needs.
    """
    key_init, key_check = keys
    target, particles = flat_particles(key_init, values, num_particles, target, dtype)
    num, dim = particles.shape
    target = with_rows(target, sampler, (num, dim), dtype)
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(values)):
        # Many particles are moved in place, which must not change the caller's array.
        particles = jnp.array(particles, copy=True)
    if _calls_host(target, dtype, key_check):
        stack.enter_context(wide_in_all_threads())
    particles = _spread_out(target, particles, sampler, key_check)
    place, num_moved = target.admit(particles, key_check)
    return target, place, num_moved


def _calls_host(target: AbstractTarget, dtype: np.dtype, key) -> bool:
    """Whether a log density in float64 has a host callback."""
    if dtype != np.float64 or target.layout is None:
        return False
    # A log density that cannot be traced is diagnosed where it is first evaluated.
    with contextlib.suppress(Exception):
        one = jax.ShapeDtypeStruct((target.layout.dim,), dtype)
        return calls_host(traced(target.at(key), one))
    return False


def _spread_out(target: AbstractTarget, particles, sampler, key):
    """The particles with a spread in every coordinate; very many are taken as they are.

    A sequence works in the particles' own frame, in which a coordinate without spread never moves;
    with fewer than 1.5 particles a dimension its lone descents see to that themselves. In other
    flows a coordinate moves apart if its scores differ; one particle alone is theirs to move.
    Samplers with noise of their own need nothing.
    """
    num, dim = particles.shape
    if num * dim > _MOST_SPREAD or target.layout is None:
        return particles
    own_frame = isinstance(sampler, Sequence) and target.is_fixed and tells_covariance((num, dim))
    if not own_frame and not (isinstance(sampler, Flow) and num > 1):
        return particles
    key_density, key_noise = jax.random.split(key)
    names = target.layout.flat_names()
    return spread_out(target.at(key_density), particles, names, key_noise, by_scores=not own_frame)
