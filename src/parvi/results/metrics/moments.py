"""Moments of the particles, and of particles with scores, that have a known value at the target.

Stein's identity E[s(x) (x - m)^T] = -I holds for draws of any smooth density with scores s, so
-E[s (x - m)^T] measures the spread of the particles in units of the target's.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from parvi.results.metrics.inputs import as_points, as_scored


class SteinRatios(NamedTuple):
    """Stein ratios along the principal directions of the particles, widest first."""

    ratios: Float[np.ndarray, " d"]
    variances: Float[np.ndarray, " d"]
    directions: Float[np.ndarray, "d d"]


def marginal_variance(particles: Float[ArrayLike, "n d"]) -> float:
    """The variance of the particles, averaged over the coordinates.

    The paper measures collapse on N(0, I) by it (Dong et al. 2023, appendix). It is 1 at the
    target, and (n - 1)/n in expectation for n independent draws.
    """
    return float(np.mean(np.var(as_points(particles, "particles"), axis=0)))


def stein_ratio(particles: Float[ArrayLike, "n d"], scores: Float[ArrayLike, "n d"]) -> float:
    """-E[(x - mean) . score] / d, which is 1 at the target and lower if the variance collapsed."""
    x, s = as_scored(particles, scores)
    centred = x - x.mean(axis=0)
    return float(-np.sum(centred * s) / x.size)


def stein_ratios(
    particles: Float[ArrayLike, "n d"], scores: Float[ArrayLike, "n d"]
) -> SteinRatios:
    """The Stein ratio in each principal direction of the particles. O(n d^2 + d^3).

    With the particles whitened along the eigenvectors v_k of their covariance, z_k = v_k . (x -
    m) / sqrt(lambda_k), the matrix -E[s_z z^T] is I at the target; its diagonal is
    r_k = -E[(v_k . s) v_k . (x - m)]. For a Gaussian target of precision P it is
    lambda_k v_k^T P v_k, which is the variance of the particles over that of the target if v_k is a
    principal direction of both. The mean of all r_k is ``stein_ratio``.

    Returns
    -------
    SteinRatios
        ``ratios``; ``variances``, the eigenvalues lambda_k in falling order; ``directions``, the
        v_k as rows. Directions in which the particles do not vary have ratio 0.
    """
    x, s = as_scored(particles, scores)
    centred = x - x.mean(axis=0)
    variances, vectors = np.linalg.eigh(centred.T @ centred / len(x))
    # eigh sorts upwards, and rounding may make a variance negative.
    variances, vectors = np.maximum(variances[::-1], 0.0), vectors[:, ::-1]
    ratios = -np.mean((s @ vectors) * (centred @ vectors), axis=0)
    return SteinRatios(ratios, variances, vectors.T)
