"""Moments of the particles along a run, for figures over time."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from parvi.interface import AbstractSampler
from parvi.run.run import Run
from parvi.run.threads import single_blas_thread
from parvi.stopping import exactly
from parvi.targets.precision import precision
from parvi.targets.target import AbstractTarget


class MomentPath(NamedTuple):
    """The moments at regular steps from the start, and the particles at the end.

    After a run has failed, the moments are NaN, and the particles are the last good ones.
    """

    means: Float[np.ndarray, "times d"]
    covariances: Float[np.ndarray, "times d d"]
    particles: Float[np.ndarray, "n d"]


def moments_along(
    sampler: AbstractSampler,
    target: AbstractTarget,
    start: Float[np.ndarray, "n d"],
    num_records: int,
    every: int,
    seed: int = 0,
) -> MomentPath:
    """Run ``num_records * every`` steps in float64, and record the moments every ``every``."""
    start = np.asarray(start, np.float64)
    with precision(start.dtype), single_blas_thread():
        longest = exactly(sampler, num_records * every)
        run = Run.begin(target, jnp.asarray(start), longest, seed)
        found = [_moments(start)]
        for _ in range(num_records):
            run.advance(every)
            mean, covariance = _moments(np.asarray(run.particles))
            lost = np.nan if run.status.failed else 0.0
            found.append((mean + lost, covariance + lost))
        end = np.asarray(run.particles)
    means, covariances = map(np.stack, zip(*found, strict=True))
    return MomentPath(means, covariances, end)


def _moments(particles: Float[np.ndarray, "n d"]):
    mean = particles.mean(axis=0)
    centred = particles - mean
    return mean, centred.T @ centred / len(particles)


def exact_normal(num: int, dim: int, seed: int = 0) -> Float[np.ndarray, "n d"]:
    """Particles whose mean is 0 and whose covariance is I, up to rounding.

    For an affine velocity they are as good as infinitely many draws from N(0, I).
    """
    draws = np.random.default_rng(seed).normal(size=(num, dim))
    draws -= draws.mean(axis=0)
    covariance = draws.T @ draws / num
    return np.linalg.solve(np.linalg.cholesky(covariance), draws.T).T
