"""Bridge sampling between a mode and a Gaussian (Meng & Wong 1996)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.cloud import Cloud, LogDensity

# Step of the differences for a Hessian, and its smallest eigenvalue, in units of a mode's width.
_DIFFERENCE, _FLATTEST = 0.03, 0.01
# A mode's covariance begins with this many prior particles, as wide as its Hessian says.
_PRIOR = 10.0
# Iterations of a bridge.
_NUM_ITERATIONS = 30
# Particles of a path are partly copies of each other: this many of them are worth one.
_ALIKE = 4.0


class Mass(NamedTuple):
    """The log of a mode's mass, and the variance of that log."""

    log_mass: Float[Array, ""]
    variance: Float[Array, ""]


class HessianAxes(NamedTuple):
    """Axes at a peak: the factor, its inverse, and the log of its determinant."""

    factor: Float[Array, "d d"]
    inverse: Float[Array, "d d"]
    log_volume: Float[Array, ""]


def hessian_axes(log_density: LogDensity, peak, unit) -> HessianAxes:
    """Axes in which the density at a peak is about N(0, I)."""
    offsets = _DIFFERENCE * jnp.diag(1 / unit)
    around = jnp.concatenate([peak[None], peak + offsets])
    scores = Cloud.at(log_density, around).place.scores / unit
    hessian = (scores[0] - scores[1:]) / _DIFFERENCE
    values, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    # If this is not finite, the bridge is not either, and the path's weights are used.
    widths = jnp.maximum(jnp.abs(values), _FLATTEST) ** -0.5
    factor = vectors * widths / unit[:, None]
    volume = jnp.sum(jnp.log(widths)) - jnp.sum(jnp.log(unit))
    return HessianAxes(factor, (vectors / widths).T * unit, volume)


def fitted(z, weights) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Mean and standard deviations of weighted points, and of some points of N(0, I)."""
    total = jnp.maximum(jnp.sum(weights), jnp.finfo(z.dtype).tiny)
    number = total**2 / jnp.maximum(jnp.sum(weights**2), jnp.finfo(z.dtype).tiny)
    mean = (weights / total) @ z * number / (number + _PRIOR)
    squares = (weights / total) @ (z - mean) ** 2
    return mean, jnp.sqrt((number * squares + _PRIOR) / (number + _PRIOR))


def bridge(here, weights, there) -> Mass:
    """The ratio of constants from log ratios at weighted points of p and at draws of q."""
    tiny = jnp.finfo(here.dtype).tiny
    total = jnp.maximum(jnp.sum(weights), tiny)
    weights = weights / total
    worth = 1 / jnp.maximum(jnp.sum(weights**2), tiny) / _ALIKE
    centre = weights @ jnp.where(weights > 0, here, 0.0)
    share = worth / (worth + len(there))
    here, there = (jnp.clip(log_ratios - centre, -60, 60) for log_ratios in (here, there))

    def terms(log_mass):
        """The terms of the two means; both are bounded, whatever the ratios."""
        of_q = 1 / (share + (1 - share) * jnp.exp(log_mass - there))
        of_p = 1 / (share * jnp.exp(here - log_mass) + (1 - share))
        return of_q, of_p

    def iterate(_, log_mass):
        of_q, of_p = terms(log_mass)
        return log_mass + jnp.log(jnp.mean(of_q)) - jnp.log(weights @ of_p)

    log_mass = jax.lax.fori_loop(0, _NUM_ITERATIONS, iterate, jnp.zeros((), here.dtype))
    of_q, of_p = terms(log_mass)
    mean = weights @ of_p
    spread = weights @ (of_p - mean) ** 2 / mean**2
    variance = jnp.var(of_q) / jnp.mean(of_q) ** 2 / len(there) + spread / worth
    return Mass(log_mass + centre, variance)
