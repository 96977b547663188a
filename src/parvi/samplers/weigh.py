"""Weigh: the peaks above what scouts have sighted, and their masses.

A peak behind a valley counts if its mass, by Laplace's approximation, is not small beside the
cloud's.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.cloud import Cloud, Place
from parvi.geometry.frame import DenseFrame
from parvi.geometry.peaks import DEPTH, depths_from
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, required
from parvi.samplers.scout import Sighted
from parvi.status import Status
from parvi.stopping import Never

# A peak whose log mass is this much less than the cloud's does not count.
_LEAST = 5.0
# Step of the differences for the Hessian, in standard deviations of the cloud.
_DIFFERENCE = 0.01
# Newton steps towards the peak, and the longest of them in standard deviations of the cloud.
_NUM_CLIMBS, _LONGEST = 8, 1.0
# A point is a peak if twice the gain in nats that Newton's method still expects is below this. An
# unbounded density, such as that in the neck of a funnel, has no peak.
_PEAK = 1.0


class Modes(NamedTuple):
    """Peaks outside the cloud, and the logs of their masses over the cloud's.

    Places that do not count have a log mass of -inf.
    """

    places: Float[Array, "k d"]
    log_masses: Float[Array, " k"]


class Weigh(AbstractSampler):
    """Climbs from what scouts have sighted to the peaks there, and weighs them.

    The stage ends as ``NOT_AT_REST`` if a peak has a mass that counts, else as ``CONVERGED``.

    Parameters
    ----------
    sighted
        Where to climb from; the run passes it in.
    """

    sighted: Any = None
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 1

    @property
    def compares_densities(self):
        return True

    def told(self, start, reports):
        found = required(reports, Sighted, "Weigh", "Scout")
        return Weigh(found, self.stopping_rule, self.max_steps)

    def report(self, memory):
        return memory

    def init(self, key, cloud):
        places = self.sighted.places
        return Modes(places, jnp.full(len(places), -jnp.inf, places.dtype))

    def propose(self, key, cloud, memory):
        few = cloud.some()
        frame = DenseFrame.of(few.particles)
        # One after another: d points each. The last one is home.
        points = jnp.concatenate([self.sighted.places, self.sighted.home[None]])
        real = jnp.append(self.sighted.real, True)
        climbs = jax.lax.map(
            lambda args: jax.lax.cond(
                args[1],
                lambda point: _climbed(few, frame, point),
                lambda point: _Climb.nowhere(point),
                args[0],
            ),
            (points, real),
        )
        place = Place(frame.leave(climbs.z), None, climbs.log_density)
        # Scouts that are still on their way along a bent ridge climb to the same peak.
        behind = depths_from(few.log_density, place, -1) > DEPTH
        masses = climbs.log_density - 0.5 * climbs.log_curvature
        masses = masses - jnp.mean(few.log_densities) - 0.5 * few.shape[1]
        # A comparison with NaN is false, so a peak that is not finite does not count.
        counts = real & behind & (climbs.gain < _PEAK) & (masses > -_LEAST)
        masses = jnp.where(counts, masses, -jnp.inf).astype(cloud.dtype)
        return cloud, Modes(place.particles[:-1], masses[:-1])

    def conclude(self, cloud, pending, arrived):
        counts = jnp.any(pending.log_masses > -jnp.inf)
        climbs = (1 + jnp.sum(self.sighted.real)) * (_NUM_CLIMBS + 1)
        info = Info.of(
            cloud,
            jnp.full((), jnp.nan),
            status=jnp.where(counts, Status.NOT_AT_REST, Status.CONVERGED),
            gradients=climbs * (1 + cloud.shape[1]),
        )
        return jnp.zeros((), bool), pending, info


class _Climb(NamedTuple):
    """A point in the cloud's frame, its log density, and what Newton's method expects there."""

    z: Float[Array, " d"]
    log_density: Float[Array, ""]
    step: Float[Array, " d"]
    gain: Float[Array, ""]
    log_curvature: Float[Array, ""]

    @classmethod
    def nowhere(cls, point: Float[Array, " d"]) -> "_Climb":
        """The climb of a row that is not a scout."""
        nan = jnp.full((), jnp.nan, point.dtype)
        return cls(point, nan, point, nan, nan)


def _climbed(cloud, frame, point) -> _Climb:
    """The peak above a point, by Newton's method."""

    def at(z):
        """The curvature is that in the cloud's frame, by differences of scores."""
        offsets = _DIFFERENCE * jnp.eye(cloud.shape[1], dtype=cloud.dtype)
        around = jnp.concatenate([z[None], z + offsets])
        place = Cloud.at(cloud.log_density, frame.leave(around)).place
        pulls = frame.pull(place.scores)
        curvature = (pulls[0] - pulls[1:]) / _DIFFERENCE
        values, vectors = jnp.linalg.eigh((curvature + curvature.T) / 2)
        # A direction in which the density is flat is taken to be ten times as wide as the cloud.
        wide = jnp.maximum(jnp.abs(values), 0.01)
        along = vectors.T @ pulls[0]
        step = vectors @ (along / wide)
        step = step * jnp.minimum(1.0, _LONGEST / jnp.maximum(jnp.linalg.norm(step), 1e-9))
        gain, log_curvature = jnp.sum(along**2 / wide), jnp.sum(jnp.log(wide))
        return _Climb(z, place.log_densities[0], step, gain, log_curvature)

    first = at(frame.enter(point))
    return jax.lax.fori_loop(0, _NUM_CLIMBS, lambda _, climb: at(climb.z + climb.step), first)
