"""Moments of the particles along a run: what figures over time are made of."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from parvi.interface import AbstractSampler, LogDensity


class Trace(NamedTuple):
    """The start and every so many steps, and the particles at the end."""

    means: Float[np.ndarray, "times d"]
    covariances: Float[np.ndarray, "times d d"]
    particles: Float[np.ndarray, "n d"]


def trace(
    sampler: AbstractSampler,
    log_density: LogDensity,
    start: Float[np.ndarray, "n d"],
    num_records: int,
    every: int,
    seed: int = 0,
) -> Trace:
    """Run ``num_records * every`` steps in float64 and note the moments every ``every``."""
    with jax.enable_x64(True):
        particles = jnp.asarray(start, jnp.float64)
        key = jax.random.key(seed)
        out = _trace(sampler, log_density, particles, key, num_records, every)
        means, covariances, end = jax.tree_util.tree_map(np.asarray, out)
    return Trace(means, covariances, end)


@eqx.filter_jit
def _trace(sampler, log_density, particles, key, num_records: int, every: int):
    def one(state, _):
        step_key = jax.random.fold_in(key, state.step + 1)
        return sampler.step(step_key, state, log_density)[0], None

    def record(state, _):
        state = jax.lax.scan(one, state, None, length=every)[0]
        return state, _moments(state.particles)

    state = sampler.init(jax.random.fold_in(key, 0), particles, log_density)
    first = _moments(state.particles)
    state, rest = jax.lax.scan(record, state, None, length=num_records)
    joined = jax.tree_util.tree_map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)
    return *joined, state.particles


def _moments(particles: Float[Array, "n d"]):
    mean = jnp.mean(particles, axis=0)
    centred = particles - mean
    return mean, centred.T @ centred / len(particles)


def exact_normal(num: int, dim: int, seed: int = 0) -> Float[np.ndarray, "n d"]:
    """Particles whose mean is 0 and whose covariance is I, to rounding.

    To an affine velocity they are N(0, I) itself: as many particles as there could be.
    """
    draws = np.random.default_rng(seed).normal(size=(num, dim))
    draws -= draws.mean(axis=0)
    covariance = draws.T @ draws / num
    return np.linalg.solve(np.linalg.cholesky(covariance), draws.T).T
