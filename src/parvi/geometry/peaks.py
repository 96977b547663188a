"""Peaks: where lone points end along their own gradients, and how deep the valleys between are."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.cloud import LogDensity, Place

# A valley that separates modes is deeper than this, in nats; and one that may lie between modes of
# which transitions hardly meet the other, because it is much narrower or the dimensions are many.
DEPTH, SHALLOW = 2.0, 0.25
# Points on the way from one place to another.
NUM_POINTS = 16
# Steps of a climb, and the first and last of them in the modes' own widths.
NUM_STEPS, _LONG, _SHORT = 120, 0.3, 0.01
# Decays of Adam's averages.
FIRST, SECOND = 0.9, 0.99


def climbed(
    log_density: LogDensity, points: Float[Array, "m d"], unit: Float[Array, " d"]
) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    """Where the points end along their own gradients, and the log densities there.

    ``unit``: one over the width of a mode along every coordinate, such as the scores' spread.
    """
    slope = jax.vmap(jax.value_and_grad(log_density))

    def one(step, state):
        points, first, second = state
        slopes = jnp.nan_to_num(slope(points)[1])
        length = _LONG * (_SHORT / _LONG) ** (step / NUM_STEPS) / unit
        first, second, direction = adam(first, second, slopes, step + 1.0)
        return points + (length * direction).astype(points.dtype), first, second

    zeros = jnp.zeros_like(points)
    points = jax.lax.fori_loop(0, NUM_STEPS, one, (points, zeros, zeros))[0]
    return points, slope(points)[0]


def adam(first, second, slopes, past):
    """Adam's averages after a step, and its direction: about 1 along every coordinate."""
    first = FIRST * first + (1 - FIRST) * slopes
    second = SECOND * second + (1 - SECOND) * slopes**2
    root = jnp.sqrt(second / (1 - SECOND**past)) + jnp.finfo(slopes.dtype).tiny
    return first, second, first / (1 - FIRST**past) / root


def depths(
    log_density: LogDensity,
    points: Float[Array, "m d"],
    heights: Float[Array, " m"],
    ends: Float[Array, "... d"],
    end_heights: Float[Array, "..."],
) -> Float[Array, " m"]:
    """How deep the valley is between each point and its end, or one end for all, in nats.

    Where level sets are convex there is no valley, however far the end is.
    """
    shares = jnp.linspace(0, 1, NUM_POINTS + 2, dtype=points.dtype)[1:-1]
    values = jax.lax.map(
        lambda share: jax.vmap(log_density)((1 - share) * points + share * ends), shares
    )
    lowest = jnp.min(jnp.nan_to_num(values, nan=-jnp.inf), axis=0)
    return jnp.minimum(heights, end_heights) - lowest


def depths_from(log_density, there: Place, home) -> Float[Array, " m"]:
    """How deep the valley is between each place and the one at row ``home``."""
    points, heights = there.particles, there.log_densities
    return depths(log_density, points, heights, points[home], heights[home])
