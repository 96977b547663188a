"""A Gaussian target with known moments, the oracle of most tests."""

import jax.numpy as jnp
import numpy as np

from parvi.targets.target import Target


def gaussian(mean, covariance) -> Target:
    """The target N(mean, covariance), normalised, with known shape and exact score.

    Examples
    --------
    >>> import numpy as np, parvi
    >>> parvi.targets.gaussian(np.zeros(2), np.eye(2)).layout.dim
    2
    """
    mean = np.asarray(mean)
    precision = np.linalg.inv(covariance)
    constant = -0.5 * (len(mean) * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1])

    def log_density(x):
        centred = x - jnp.asarray(mean, x.dtype)
        return -0.5 * centred @ (jnp.asarray(precision, x.dtype) @ centred) + constant

    return Target(log_density, like=mean)
