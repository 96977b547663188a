"""Weigh: the peaks above what scouts have sighted, and their masses.

A peak behind a valley counts if its mass, by Laplace's approximation, is not small beside the
cloud's. If the valley is shallow, there must also be far fewer particles around the peak than its
mass asks for: a narrow mode beside a wide one has hardly a valley between, and is not met all the
same.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.cloud import Cloud, Place
from parvi.geometry.frame import DenseFrame
from parvi.geometry.peaks import DEPTH, SHALLOW, depths_from
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, required
from parvi.samplers.scout import Sighted
from parvi.status import Status
from parvi.stopping import Never

# A peak whose log mass is this much less than the cloud's does not count.
_LEAST = 5.0
# Step of the differences for the Hessian, in standard deviations of the cloud.
_DIFFERENCE = 0.01
# Newton steps towards the peak, and the longest of them in standard deviations of the cloud.
_NUM_CLIMBS, _LONGEST = 24, 1.0
# A point is a peak if twice the gain in nats that Newton's method still expects is below this. An
# unbounded density, such as that in the neck of a funnel, has no peak.
_PEAK = 1.0
# A peak behind a shallow valley was reached this exactly, as a climb along a bent ridge is not.
# Around it there are fewer particles than this share of what its mass asks for, which is at least
# so many.
_REACHED, _MISSING, _FEWEST = 0.01, 0.25, 8.0


class Modes(NamedTuple):
    """Peaks outside the cloud, and the logs of their masses over the cloud's.

    Places that do not count have a log mass of -inf. ``frames``: those in which the density at a
    peak is about N(0, I), with one more axis, if they are known; the last is that of the peak at
    home, or the cloud's own if there is none.
    """

    places: Float[Array, "k d"]
    log_masses: Float[Array, " k"]
    frames: DenseFrame | None = None


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
        num, dim = places.shape
        axes = jnp.broadcast_to(jnp.eye(dim, dtype=places.dtype), (num + 1, dim, dim))
        nothing = jnp.full(num, -jnp.inf, places.dtype)
        return Modes(places, nothing, DenseFrame(self._points, axes, axes))

    def propose(self, key, cloud, memory):
        few = cloud.some()
        frame = DenseFrame.of(few.particles)
        # One after another: d points each.
        real = jnp.append(self.sighted.real, True)
        climbs = jax.lax.map(
            lambda args: jax.lax.cond(
                args[1],
                lambda point: _climbed(few, frame, point),
                lambda point: _Climb.nowhere(point),
                args[0],
            ),
            (self._points, real),
        )
        place = Place(frame.leave(climbs.z), None, climbs.log_density)
        # Scouts that are still on their way along a bent ridge climb to the same peak.
        valleys = depths_from(few.log_density, place, -1)
        masses = climbs.log_density - 0.5 * climbs.log_curvature
        masses = masses - jnp.mean(few.log_densities) - 0.5 * few.shape[1]
        asked = 0.5 * jnp.minimum(jnp.exp(masses), 1.0)
        missing = (few.shape[0] * asked > _FEWEST) & (climbs.around < _MISSING * asked)
        behind = (valleys > DEPTH) | (missing & (valleys > SHALLOW) & (climbs.gain < _REACHED))
        # A comparison with NaN is false, so a peak that is not finite does not count.
        peaks = climbs.gain < _PEAK
        counts = real & behind & peaks & (masses > -_LEAST)
        masses = jnp.where(counts, masses, -jnp.inf).astype(cloud.dtype)
        framed = counts.at[-1].set(peaks[-1])
        frames = _frames(frame, place.particles, framed, climbs.axes)
        return cloud, Modes(place.particles[:-1], masses[:-1], frames)

    @property
    def _points(self):
        """Where climbs begin; the last one is home."""
        return jnp.concatenate([self.sighted.places, self.sighted.home[None]])

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
    """A point in the cloud's frame, its log density, and what Newton's method expects there.

    ``around``: the share of the particles within the ellipsoid of its curvature whose squared
    radius is d, where a Gaussian there has about a half; infinite if the point is not a maximum.
    ``axes``: those of the curvature as columns, each as long as the root of the curvature along it.
    """

    z: Float[Array, " d"]
    log_density: Float[Array, ""]
    step: Float[Array, " d"]
    gain: Float[Array, ""]
    log_curvature: Float[Array, ""]
    around: Float[Array, ""]
    axes: Float[Array, "d d"]

    @classmethod
    def nowhere(cls, point: Float[Array, " d"]) -> "_Climb":
        """The climb of a row that is not a scout."""
        nan = jnp.full((), jnp.nan, point.dtype)
        return cls(point, nan, point, nan, nan, nan, jnp.eye(len(point), dtype=point.dtype))


def _frames(frame: DenseFrame, places, counts, axes) -> DenseFrame:
    """The frames of the peaks; rows that do not count have the cloud's."""
    axes = jnp.where(counts[:, None, None], axes, jnp.eye(axes.shape[-1], dtype=axes.dtype))
    places = jnp.where(counts[:, None], places, frame.mean)
    squares = jnp.sum(axes**2, axis=1, keepdims=True)
    stretched = jax.lax.map(frame.stretch, jnp.swapaxes(axes / squares, 1, 2))
    pushed = jax.lax.map(frame.push, jnp.swapaxes(axes, 1, 2))
    return DenseFrame(places, jnp.swapaxes(stretched, 1, 2), pushed)


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
        height, axes = place.log_densities[0], vectors * jnp.sqrt(wide)
        nan = jnp.full((), jnp.nan, cloud.dtype)
        return _Climb(z, height, step, gain, log_curvature, nan, axes), values[0]

    first = at(frame.enter(point))
    climb, least = jax.lax.fori_loop(
        0, _NUM_CLIMBS, lambda _, found: at(found[0].z + found[0].step), first
    )
    radii = jnp.sum(((frame.enter(cloud.particles) - climb.z) @ climb.axes) ** 2, axis=1)
    around = jnp.mean((radii <= cloud.shape[1]).astype(cloud.dtype))
    return climb._replace(around=jnp.where(least > 0, around, jnp.inf))
