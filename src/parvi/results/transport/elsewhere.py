"""A look for a mode that neither particles nor draws of a map have reached.

Draws see only where the map leads, and particles where they went. So points from a few and from
many standard deviations around climb along their own gradients. The highest of those that end
behind a valley, seen from their nearest particle, has the mass of a Gaussian with the curvature
there (Laplace). Modes much narrower than the particles are not found.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from parvi.cloud import Cloud, LogDensity
from parvi.evaluation import quickly
from parvi.geometry.bridge import hessian_axes
from parvi.geometry.frame import DenseFrame
from parvi.geometry.peaks import DEPTH, climbed, depths

# Points that climb, and how far out they begin, in standard deviations of the particles.
_NUM_POINTS, _NEAR, _FAR = 64, 4.0, 8.0
# Where a score in the axes of the peak is smaller than this, a climb has ended.
_ENDED = 1.0


class Peak(NamedTuple):
    """The highest peak behind a valley and the log of its mass; -inf if there is none."""

    place: Float[Array, " d"]
    log_mass: Float[Array, ""]


@quickly
def elsewhere(log_density: LogDensity, flat: Float[Array, "n d"], key: Key[Array, ""]) -> Peak:
    """Look around particles."""
    frame = DenseFrame.of(flat)
    dim, unit = flat.shape[1], 1 / jnp.std(flat, axis=0)
    lengths = jnp.where(jnp.arange(_NUM_POINTS) % 2, _NEAR, _FAR).astype(flat.dtype)
    around = lengths[:, None] * jax.random.normal(key, (_NUM_POINTS, dim), flat.dtype)
    ends, heights = climbed(log_density, frame.leave(around), unit)
    # On a ring there is a valley between most particles, but not between neighbours.
    own, seen = frame.enter(ends), frame.enter(flat)
    nearest = jnp.argmin(jax.vmap(lambda z: jnp.sum((seen - z) ** 2, axis=1))(own), axis=1)
    homes = flat[nearest]
    behind = depths(log_density, ends, heights, homes, jax.vmap(log_density)(homes)) > DEPTH
    sound = jnp.isfinite(heights) & jnp.all(jnp.isfinite(ends), axis=1)
    heights = jnp.where(behind & sound, heights, -jnp.inf)
    highest = jnp.argmax(heights)
    place = ends[highest]
    axes = hessian_axes(log_density, place, unit)
    score = Cloud.at(log_density, place[None]).place.scores[0] @ axes.factor
    log_mass = heights[highest] + axes.log_volume + 0.5 * dim * np.log(2 * np.pi)
    return Peak(place, jnp.where(jnp.linalg.norm(score) < _ENDED, log_mass, -jnp.inf))
