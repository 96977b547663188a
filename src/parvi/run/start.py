"""The first particles of a run: flat, spread out, and admitted by the log density."""

import contextlib
from typing import Any, NamedTuple

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


class Keys(NamedTuple):
    """The keys of a run: for particles that have to be drawn, for a look at them, and for steps.

    ``density`` and ``noise`` are for particles that start alike: for the log density that says how
    far apart they should be, and for the places to which they go.
    """

    init: Key[Array, ""]
    look: Key[Array, ""]
    density: Key[Array, ""]
    noise: Key[Array, ""]
    steps: Key[Array, ""]


@quickly
def keys_of(key: Key[Array, ""]) -> Keys:
    """All keys in one program; every split by itself would be two."""
    init, look, steps = jax.random.split(key, 3)
    density, noise = jax.random.split(look)
    return Keys(init, look, density, noise, steps)


def started(
    target: AbstractTarget,
    values: PyTree | None,
    num_particles: int | None,
    sampler: Any,
    dtype: np.dtype,
    keys: Keys,
    stack: contextlib.ExitStack,
) -> tuple[AbstractTarget, Place, int]:
    """The target as the sampler sees it, the first particles, and how many of them were moved.

    The stack gets the contexts that the run needs.
    """
    target, particles = flat_particles(keys.init, values, num_particles, target, dtype)
    num, dim = particles.shape
    target = with_rows(target, sampler, (num, dim), dtype)
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(values)):
        # Many particles are moved in place, which must not change the caller's array.
        particles = jnp.array(particles, copy=True)
    if _calls_host(target, dtype, keys.look):
        stack.enter_context(wide_in_all_threads())
    particles = _spread_out(target, particles, sampler, keys)
    place, num_moved = target.admit(particles, keys.look)
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


def _spread_out(target: AbstractTarget, particles, sampler, keys: Keys):
    """The particles with a spread in every coordinate; very many are taken as they are.

    A sequence works in the particles' own frame, in which a coordinate without spread never moves;
    with fewer than 1.5 particles per dimension its lone descents take care of that. In other flows
    particles move apart in a coordinate if their scores differ there; a single particle is left to
    the flow. Samplers with noise of their own need nothing.
    """
    num, dim = particles.shape
    if num * dim > _MOST_SPREAD or target.layout is None:
        return particles
    own_frame = isinstance(sampler, Sequence) and target.is_fixed and tells_covariance((num, dim))
    if not own_frame and not (isinstance(sampler, Flow) and num > 1):
        return particles
    names = target.layout.flat_names()
    return spread_out(
        target.at(keys.density), particles, names, keys.noise, by_scores=not own_frame
    )
