"""The Kullback-Leibler divergence between two Gaussians."""

import numpy as np
from jaxtyping import ArrayLike, Float

from parvi.results.metrics.inputs import as_shaped


def gaussian_kl(
    mean_p: Float[ArrayLike, " d"],
    covariance_p: Float[ArrayLike, "d d"],
    mean_q: Float[ArrayLike, " d"],
    covariance_q: Float[ArrayLike, "d d"],
) -> float:
    """KL(N(mean_p, covariance_p) || N(mean_q, covariance_q)). O(d^3).

    It is infinite if only ``covariance_p`` is singular.
    """
    dim = np.size(mean_p)
    difference = as_shaped(mean_q, "mean_q", (dim,)) - as_shaped(mean_p, "mean_p", (dim,))
    covariance_p = as_shaped(covariance_p, "covariance_p", (dim, dim))
    covariance_q = as_shaped(covariance_q, "covariance_q", (dim, dim))
    try:
        factor = np.linalg.cholesky(covariance_q)
    except np.linalg.LinAlgError as error:
        raise ValueError("covariance_q must be positive definite.") from error
    log_det = 2 * np.sum(np.log(np.diag(factor))) - np.linalg.slogdet(covariance_p)[1]
    trace = np.trace(np.linalg.solve(covariance_q, covariance_p))
    shift = np.sum(np.linalg.solve(factor, difference) ** 2)
    return float(0.5 * (trace + shift - dim + log_det))
