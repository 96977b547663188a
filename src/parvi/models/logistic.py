"""Bayesian logistic regression: y in {-1, 1}, P(y | x, w) = sigmoid(y x.w), w ~ N(0, sd^2 I)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from parvi.targets.target import Target


def logistic_regression(
    features: Float[np.ndarray, "rows d"], labels: Float[np.ndarray, " rows"], prior_sd: float = 1.0
) -> Target:
    """The posterior of the weights, up to its constant.

    Parameters
    ----------
    features
        One row per observation; include a column of ones for an intercept.
    labels
        Labels as 0/1, booleans or -1/1.
    prior_sd
        Prior standard deviation of every weight.
    """
    signed = signed_features(features, labels)
    return Target(_LogDensity(signed, prior_sd), like=np.zeros(signed.shape[1], signed.dtype))


class _LogDensity(eqx.Module):
    """A module instead of a closure, so that data of the same shape share their programs."""

    signed: Float[ArrayLike, "rows d"]
    prior_sd: float

    def __call__(self, weights):
        margins = jnp.asarray(self.signed, weights.dtype) @ weights
        return -jnp.sum(jax.nn.softplus(-margins)) - 0.5 * jnp.sum((weights / self.prior_sd) ** 2)


def signed_features(
    features: Float[np.ndarray, "rows d"], labels: Float[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows d"]:
    """x y, the sign-flipped rows, which are all that the likelihood needs."""
    features = np.asarray(features)
    labels = np.asarray(labels)
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            f"Expected features of shape (rows, d) and labels of shape (rows,), got "
            f"{features.shape} and {labels.shape}."
        )
    values = set(np.unique(labels).tolist())
    if not (values <= {0, 1} or values <= {-1, 1}):
        raise ValueError(f"labels must be 0 and 1, or -1 and 1, got the values {sorted(values)}.")
    return features * np.where(labels > 0, 1.0, -1.0)[:, None]
