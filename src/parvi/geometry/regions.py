"""Regions: the space cut into modes, by climbs from particles."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.cloud import Cloud
from parvi.geometry.peaks import DEPTH, climbed, depths
from parvi.geometry.resampling import neighbours_in_order


class Regions(NamedTuple):
    """The space cut into modes: every point belongs to the mode of the nearest end of a climb.

    ``peaks``: the highest end of each mode; ``real``: which rows are modes.
    """

    ends: Float[Array, "c d"]
    modes: Int[Array, " c"]
    peaks: Float[Array, "k d"]
    real: Bool[Array, " k"]
    unit: Float[Array, " d"]

    def of(self, points: Float[Array, "m d"]) -> Int[Array, " m"]:
        """The mode of every point."""
        ends = self.ends * self.unit
        squares = jnp.sum(ends**2, axis=1) - 2 * (points * self.unit) @ ends.T
        return self.modes[jnp.argmin(squares, axis=1)]

    @classmethod
    def around(cls, cloud: Cloud, num_climbs: int, most_modes: int) -> "Regions":
        """The modes, the highest first: each takes the ends without a valley towards it."""
        unit = jnp.std(cloud.scores, axis=0) + jnp.finfo(cloud.dtype).tiny
        num = min(num_climbs, cloud.shape[0])
        order = neighbours_in_order(cloud.particles * unit)
        rows = order[jnp.arange(num) * cloud.shape[0] // num]
        ends, heights = climbed(cloud.log_density, cloud.particles[rows], unit)
        heights = jnp.nan_to_num(heights, nan=-jnp.inf)

        def one(left, _):
            peak = jnp.argmax(jnp.where(left, heights, -jnp.inf))
            valleys = jax.lax.cond(
                left[peak],
                lambda: depths(cloud.log_density, ends, heights, ends[peak], heights[peak]),
                lambda: jnp.full_like(heights, jnp.inf),
            )
            valleys = valleys.at[peak].set(jnp.where(left[peak], -jnp.inf, jnp.inf))
            return left & (valleys > DEPTH), (peak, left[peak], valleys)

        first = jnp.ones(num, bool)
        _, (peaks, real, valleys) = jax.lax.scan(one, first, length=most_modes)
        return cls(ends, jnp.argmin(valleys, axis=0), ends[peaks], real, unit)
