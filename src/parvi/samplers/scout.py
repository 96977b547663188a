"""Scout: some of the first particles descend alone, to find modes that the cloud has left behind.

A flow contracts on the way and may carry every particle into one mode of several that the start
covered. Lone descents do not follow the others. Half of them begin farther out than the start,
as modes may lie around it. Where one of them ends behind a valley, at a peak with a mass that
counts (Laplace's), the target has more modes than the cloud, or the cloud is in the wrong place.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.cloud import Cloud, Place
from parvi.geometry.frame import DenseFrame
from parvi.geometry.peaks import DEPTH, adam, depths
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, required
from parvi.status import Status
from parvi.stopping import Never

# Steps of the scouts in one step of the run.
_AT_ONCE = 20
# The first step in standard deviations of the start, and the last in those of the cloud.
_LONG, _SHORT = 0.3, 0.05
# Distance between two modes, in standard deviations of the cloud.
_APART = 3.0
# Distance at which a scout is outside the cloud, in units of 1 + sqrt(d) of the same.
_OUTSIDE = 2.0
# Log mass, less than the cloud's, that no longer counts.
_LEAST = 5.0
_MOST_MODES = 8
# Step of the differences for the Hessian, in standard deviations of the cloud.
_DIFFERENCE = 0.01
# How much farther out than the start the second half of the scouts begins.
_FARTHER = 4.0
# Newton's steps towards the peak, and the longest of them in standard deviations of the cloud.
_NUM_CLIMBS, _LONGEST = 8, 1.0
# Twice the gain in nats that Newton's method still expects, below which a point is a peak. An
# unbounded density, such as that in the neck of a funnel, has none.
_PEAK = 1.0


class Modes(NamedTuple):
    """Peaks outside the cloud, and the logs of their masses over the cloud's.

    Places that do not count have a log mass of -inf.
    """

    places: Float[Array, "k d"]
    log_masses: Float[Array, " k"]


class Sighted(NamedTuple):
    """The scouts that ended behind a valley: the highest ones, far from each other.

    ``real`` says which rows are scouts; the others fill up. ``home``: the end nearest to the cloud.
    """

    places: Float[Array, "k d"]
    real: Bool[Array, " k"]
    home: Float[Array, " d"]


class Scouting(NamedTuple):
    """The scouts, Adam's averages, and what they have sighted once they have arrived."""

    place: Place
    first: Float[Array, "m d"]
    second: Float[Array, "m d"]
    step: Int[Array, ""]
    sighted: Sighted


class Scout(AbstractSampler):
    """Lone descents from the start, which leave the cloud as it is.

    The stage ends as ``NOT_AT_REST`` if some end behind a valley, else as ``CONVERGED``.

    Parameters
    ----------
    num_steps
        Number of steps of every scout.
    start
        Where they begin; the run tells it.
    """

    num_steps: int = 120
    start: Any = None
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 5000

    @property
    def asks_means_only(self):
        return True

    @property
    def compares_densities(self):
        return True

    def told(self, start, reports):
        return eqx.tree_at(lambda s: s.start, self, start, is_leaf=lambda leaf: leaf is None)

    def report(self, memory):
        return memory.sighted

    def init(self, key, cloud):
        if self.start is None:
            raise ValueError("Scout needs to know where the run began; it works inside a Sequence.")
        place = Cloud.at(cloud.log_density, _spread_out(cloud.log_density, self.start)).place
        zeros = jnp.zeros_like(place.particles)
        nowhere = jnp.zeros((_MOST_MODES, zeros.shape[1]), zeros.dtype)
        sighted = Sighted(nowhere, jnp.zeros(_MOST_MODES, bool), nowhere[0])
        return Scouting(place, zeros, zeros, jnp.zeros((), jnp.int32), sighted)

    def propose(self, key, cloud, memory):
        sds = jnp.std(cloud.particles, axis=0)
        widest = jnp.maximum(jnp.std(self.start, axis=0), sds)

        def descended(_, memory):
            step = memory.step + 1
            scores = jnp.nan_to_num(memory.place.scores)
            past = step.astype(cloud.dtype)
            first, second, direction = adam(memory.first, memory.second, scores, past)
            share = (memory.step / self.num_steps).astype(cloud.dtype)
            lengths = (_LONG * widest) ** (1 - share) * (_SHORT * sds) ** share
            points = memory.place.particles + lengths * direction
            there = Cloud.at(cloud.log_density, points).place
            return memory._replace(place=there, first=first, second=second, step=step)

        memory = jax.lax.fori_loop(0, _AT_ONCE, descended, memory)
        sighted = jax.lax.cond(
            memory.step >= self.num_steps,
            lambda: _sighted(cloud.some(), memory.place),
            lambda: memory.sighted,
        )
        return cloud, memory._replace(sighted=sighted)

    def conclude(self, cloud, pending, arrived):
        done = pending.step >= self.num_steps
        found = jnp.any(pending.sighted.real)
        status = jnp.where(found, Status.NOT_AT_REST, Status.CONVERGED)
        info = Info.of(
            cloud,
            jnp.full((), jnp.nan),
            status=jnp.where(done, status, Status.RUNNING),
            gradients=_AT_ONCE * len(pending.first),
        )
        return jnp.zeros((), bool), pending, info


class Weigh(AbstractSampler):
    """Climbs from what scouts have sighted to the peaks there, and weighs them.

    The stage ends as ``NOT_AT_REST`` if a peak has a mass that counts, else as ``CONVERGED``.

    Parameters
    ----------
    sighted
        Where to climb from; the run tells it.
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
        behind = _depths_from(few.log_density, place, -1) > DEPTH
        masses = climbs.log_density - 0.5 * climbs.log_curvature
        masses = masses - jnp.mean(few.log_densities) - 0.5 * few.shape[1]
        # A comparison with NaN is false, so what is not finite does not count.
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


def _sighted(cloud, there: Place) -> Sighted:
    """The ends behind a valley, the highest first, and far from each other."""
    z = DenseFrame.of(cloud.particles).enter(there.particles)
    sound = jnp.isfinite(there.log_densities) & jnp.all(jnp.isfinite(z), axis=1)
    distances = jnp.nan_to_num(jnp.linalg.norm(z, axis=1), nan=jnp.inf)
    home = jnp.argmin(distances)
    # If no scout ended in the cloud, all of them are elsewhere.
    outside = distances[home] > _OUTSIDE * (1 + math.sqrt(cloud.shape[1]))
    candidates = sound & ((_depths_from(cloud.log_density, there, home) > DEPTH) | outside)

    def one(open_, _):
        """The highest end that is left, without those around it."""
        row = jnp.argmax(jnp.where(open_, there.log_densities, -jnp.inf))
        closed = jnp.linalg.norm(z - z[row], axis=1) <= _APART
        return open_ & ~closed, (row, open_[row])

    _, (rows, real) = jax.lax.scan(one, candidates, length=_MOST_MODES)
    # With all of them elsewhere, the cloud stands for itself.
    centre = jnp.where(outside, jnp.mean(cloud.particles, axis=0), there.particles[home])
    return Sighted(there.particles[rows], real, centre)


def _depths_from(log_density, there: Place, home) -> Float[Array, " m"]:
    """How deep the valley is between each place and the one at row ``home``."""
    points, heights = there.particles, there.log_densities
    return depths(log_density, points, heights, points[home], heights[home])


class _Climb(NamedTuple):
    """A point in the cloud's frame, its log density, and what Newton's method expects there."""

    z: Float[Array, " d"]
    log_density: Float[Array, ""]
    step: Float[Array, " d"]
    gain: Float[Array, ""]
    log_curvature: Float[Array, ""]

    @classmethod
    def nowhere(cls, point: Float[Array, " d"]) -> "_Climb":
        """Of a row that is no scout."""
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
        # A direction that is flat there is taken to be ten times as wide as the cloud.
        wide = jnp.maximum(jnp.abs(values), 0.01)
        along = vectors.T @ pulls[0]
        step = vectors @ (along / wide)
        step = step * jnp.minimum(1.0, _LONGEST / jnp.maximum(jnp.linalg.norm(step), 1e-9))
        gain, log_curvature = jnp.sum(along**2 / wide), jnp.sum(jnp.log(wide))
        return _Climb(z, place.log_densities[0], step, gain, log_curvature)

    first = at(frame.enter(point))
    return jax.lax.fori_loop(0, _NUM_CLIMBS, lambda _, climb: at(climb.z + climb.step), first)


def _spread_out(log_density, start: Float[Array, "m d"]) -> Float[Array, "k d"]:
    """The start, and as many points farther out, where the density is finite there."""
    centre = jnp.mean(start, axis=0)
    farther = centre + _FARTHER * (start - centre)
    place = Cloud.at(log_density, farther).place
    sound = jnp.isfinite(place.log_densities) & jnp.all(jnp.isfinite(place.scores), axis=1)
    return jnp.concatenate([start, jnp.where(sound[:, None], farther, start)])
