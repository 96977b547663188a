"""Scout: some of the first particles descend alone, to find modes that the cloud has left behind.

A flow contracts on the way and may carry every particle into one mode of several that the start
covered. Lone descents do not follow the others. Half of them begin farther out than the start,
as modes may lie around it. Where one of them ends behind a valley, the target may have more modes
than the cloud, or the cloud may be in the wrong place; ``Weigh`` finds out which.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.cloud import Cloud, Place
from parvi.geometry.frame import DenseFrame
from parvi.geometry.peaks import SHALLOW, adam, depths_from
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.samplers.keys import cheap
from parvi.status import Status
from parvi.stopping import Never

# Steps of the scouts in one step of the run.
_AT_ONCE = 20
# The first step in standard deviations of the start, and the last in those of the cloud.
_LONG, _SHORT = 0.3, 0.05
# Distance between two modes, in standard deviations of the cloud.
_APART = 3.0
# Distance at which a scout is outside the cloud, in 1 + sqrt(d) of these standard deviations.
_OUTSIDE = 2.0
_MOST_MODES = 8
# How much farther out than the start the second half of the scouts begins.
FARTHER = 4.0


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
    num_more
        Number of further scouts, from draws of Gaussians around the start. A narrow mode beside a
        wide one may attract one start in thirty.
    start
        Where they begin; the run passes it in.
    """

    num_steps: int = 120
    num_more: int = 0
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
        begins = _spread_out(cloud.log_density, self.start)
        if self.num_more:
            more = _further(key, self.start, self.num_more)
            begins = jnp.concatenate([begins, _sound_or(cloud.log_density, more, self.start)])
        place = Cloud.at(cloud.log_density, begins).place
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


def _sighted(cloud, there: Place) -> Sighted:
    """The ends behind a valley, the highest first, and far from each other."""
    z = DenseFrame.of(cloud.particles).enter(there.particles)
    sound = jnp.isfinite(there.log_densities) & jnp.all(jnp.isfinite(z), axis=1)
    distances = jnp.nan_to_num(jnp.linalg.norm(z, axis=1), nan=jnp.inf)
    home = jnp.argmin(distances)
    # If no scout ended in the cloud, all of them are elsewhere.
    outside = distances[home] > _OUTSIDE * (1 + math.sqrt(cloud.shape[1]))
    candidates = sound & ((depths_from(cloud.log_density, there, home) > SHALLOW) | outside)

    def one(open_, _):
        """The highest end that is left, without those around it."""
        row = jnp.argmax(jnp.where(open_, there.log_densities, -jnp.inf))
        closed = jnp.linalg.norm(z - z[row], axis=1) <= _APART
        return open_ & ~closed, (row, open_[row])

    _, (rows, real) = jax.lax.scan(one, candidates, length=_MOST_MODES)
    # If all of them are elsewhere, the cloud stands for itself.
    centre = jnp.where(outside, jnp.mean(cloud.particles, axis=0), there.particles[home])
    return Sighted(there.particles[rows], real, centre)


def _spread_out(log_density, start: Float[Array, "m d"]) -> Float[Array, "k d"]:
    """The start, and as many points farther out, where the density is finite there."""
    centre = jnp.mean(start, axis=0)
    farther = centre + FARTHER * (start - centre)
    return jnp.concatenate([start, _sound_or(log_density, farther, start)])


def _further(key, start: Float[Array, "m d"], num: int) -> Float[Array, "k d"]:
    """Draws from Gaussians that are once and twice as wide as the start along every coordinate."""
    normals = jax.random.normal(cheap(key), (num, start.shape[1]), start.dtype)
    widths = 1.0 + jnp.arange(num, dtype=start.dtype) % 2
    return jnp.mean(start, axis=0) + widths[:, None] * jnp.std(start, axis=0) * normals


def _sound_or(log_density, points: Float[Array, "k d"], start) -> Float[Array, "k d"]:
    """The points where the density and its gradient are finite, elsewhere rows of the start."""
    place = Cloud.at(log_density, points).place
    sound = jnp.isfinite(place.log_densities) & jnp.all(jnp.isfinite(place.scores), axis=1)
    rows = jnp.arange(len(points)) % len(start)
    return jnp.where(sound[:, None], points, start[rows])
