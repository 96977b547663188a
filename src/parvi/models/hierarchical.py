"""Hierarchical logistic regression: w ~ N(0, 1/alpha), alpha ~ Gamma(shape, rate)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from parvi.models.logistic import signed_features
from parvi.targets.constraints import Positive
from parvi.targets.minibatch import MiniBatch


def hierarchical_logistic_regression(
    features: Float[np.ndarray, "rows d"],
    labels: Float[np.ndarray, " rows"],
    batch_size: int | None = None,
    shape: float = 1.0,
    rate: float = 0.01,
) -> MiniBatch:
    """The posterior of ``{"weights": (d,), "alpha": ()}`` (Liu and Wang 2016, section 5).

    The PFG paper prints Gamma(0, 0.01) for alpha, which is improper; the works that it follows use
    shape 1.

    Parameters
    ----------
    features
        One row per observation; include a column of ones for an intercept.
    labels
        Labels as 0/1, booleans or -1/1.
    batch_size
        Number of rows per step; None for all.
    shape, rate
        Shape and rate of the Gamma prior of alpha.
    """
    signed = signed_features(features, labels)
    return MiniBatch(
        _log_prior(shape, rate),
        _log_likelihood,
        signed,
        len(signed) if batch_size is None else batch_size,
        like={"weights": np.zeros(signed.shape[1]), "alpha": np.ones(())},
        constraints={"alpha": Positive()},
    )


@functools.lru_cache
def _log_prior(shape, rate):
    """One function for all data sets, so that data of the same shape share their programs."""

    def log_prior(particle):
        weights, alpha = particle["weights"], particle["alpha"]
        spread = 0.5 * weights.shape[0] * jnp.log(alpha) - 0.5 * alpha * jnp.sum(weights**2)
        return spread + (shape - 1) * jnp.log(alpha) - rate * alpha

    return log_prior


def _log_likelihood(particle, rows):
    margins = rows.astype(particle["weights"].dtype) @ particle["weights"]
    return -jax.nn.softplus(-margins)


def logistic_predictive(
    weights: Float[ArrayLike, "n d"], features: Float[ArrayLike, "rows d"]
) -> Float[np.ndarray, " rows"]:
    """P(y = 1 | x) of every row, averaged over the particles."""
    logits = np.asarray(features) @ np.asarray(weights).T
    return np.mean(0.5 * (1 + np.tanh(0.5 * logits)), axis=1)
