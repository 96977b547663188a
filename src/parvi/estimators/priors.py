"""Priors of linear models on standardised inputs, with a scale that is inferred.

    w_j ~ N(0, tau^2),  tau^2 ~ Inverse-Gamma(nu / 2, nu s^2 / (2 d)),  b ~ N(0, sd_b^2)

With tau^2 = s^2 / d, the linear part of the model has a standard deviation of about s, whatever the
number d of inputs; the data say by how much it is larger or smaller. The prior of tau counts as
much as nu weights of that size. Since tau is integrated out, no funnel has to be sampled:

    p(w) is proportional to (1 + |w|^2 d / (nu s^2))^(-(nu + m) / 2),

a multivariate t density, for m weights. Given w, tau^2 is Inverse-Gamma again, with the shape
(nu + m) / 2 and the scale (nu s^2 / d + |w|^2) / 2, from which it is drawn afterwards.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

# nu. The t density then has a finite variance, so weights have moments even if the data separate
# the classes.
_WORTH = 4.0
# Median and spread of the noise, in standard deviations of the outcomes, on the log scale.
_NOISE, _NOISE_SPREAD = np.log(0.5), 1.5


class LinearPrior(eqx.Module):
    """The log prior of the weights, the intercept, tau and the noise, if a particle has them.

    Numbers are arrays, so that models that differ in them share their programs.

    Parameters
    ----------
    scale
        s / sqrt d, or tau itself if it is fixed.
    intercept_sd
        sd_b.
    infers_scale
        Whether tau is inferred.
    """

    scale: Any
    intercept_sd: Any
    infers_scale: bool

    def __call__(self, particle):
        weights = particle["weights"]
        squares = jnp.sum((weights / self.scale) ** 2)
        if self.infers_scale:
            value = -0.5 * (_WORTH + weights.size) * jnp.log1p(squares / _WORTH)
        else:
            value = -0.5 * squares
        if "intercept" in particle:
            value = value - 0.5 * jnp.sum((particle["intercept"] / self.intercept_sd) ** 2)
        return value + log_noise_prior(particle)

    def scales(self, weights, rng):
        """tau for every particle, drawn given its weights."""
        flat = weights.reshape(len(weights), -1)
        if not self.infers_scale:
            return np.full(len(flat), float(self.scale))
        both = _WORTH * self.scale**2 + np.sum(flat**2, axis=1)
        return np.sqrt(0.5 * both / rng.gamma(0.5 * (_WORTH + flat.shape[1]), size=len(flat)))


def log_noise_prior(particle: dict) -> Any:
    """The log prior of the log of the noise, if a particle has one."""
    if "log_noise" not in particle:
        return 0.0
    return -0.5 * ((particle["log_noise"] - _NOISE) / _NOISE_SPREAD) ** 2


def linear_model(
    num_inputs: int,
    outputs: tuple[int, ...],
    size: float,
    intercept_sd: float,
    fit_intercept: bool,
    prior_scale: float | None,
    infers_noise: bool,
    rng: np.random.Generator,
) -> tuple[LinearPrior, dict, Callable[[int], dict]]:
    """The prior, a particle, and ``init(num)``, which draws particles near the prior's middle."""
    if prior_scale is not None and not prior_scale > 0:
        raise ValueError(f"prior_scale must be None or positive, got {prior_scale!r}.")
    scale = size / np.sqrt(num_inputs) if prior_scale is None else float(prior_scale)
    shapes: dict[str, tuple[int, ...]] = {"weights": (num_inputs, *outputs)}
    middles, widths = {"weights": 0.0}, {"weights": 0.5 * scale}
    if fit_intercept:
        shapes["intercept"], middles["intercept"], widths["intercept"] = outputs, 0.0, 0.5
    if infers_noise:
        shapes["log_noise"], middles["log_noise"], widths["log_noise"] = (), float(_NOISE), 0.3

    def init(num):
        return {
            name: middles[name] + widths[name] * rng.normal(size=(num, *shape))
            for name, shape in shapes.items()
        }

    arrays = np.asarray(float(scale)), np.asarray(float(intercept_sd))
    prior = LinearPrior(*arrays, prior_scale is None)
    return prior, {name: np.zeros(shape) for name, shape in shapes.items()}, init
