"""Scout: some of the first particles descend alone, to find modes that the cloud has left behind.

A flow contracts on the way and may carry every particle into one mode of several that the start
covered. Lone descents do not follow the others. Where one of them ends behind a valley, with a mass
that counts (Laplace's), the target has more modes than the cloud, or the cloud is in the wrong
place.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from parvi.cloud import Cloud, Place
from parvi.geometry.frame import DenseFrame
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.status import Status
from parvi.stopping import Never

# Decay of Adam's averages.
_FIRST, _SECOND = 0.9, 0.99
# Steps of the scouts in one step of the run.
_AT_ONCE = 20
# The first step in standard deviations of the start, and the last in those of the cloud.
_LONG, _SHORT = 0.3, 0.05
# Distance between two modes, in standard deviations of the cloud.
_APART = 3.0
# Distance at which a scout is outside the cloud, in units of 1 + sqrt(d) of the same.
_OUTSIDE = 2.0
# Points on the way from a scout to another, and the depth of a valley between them, in nats.
_NUM_POINTS = 16
_DEPTH = 2.0
# Log mass, less than the cloud's, that no longer counts.
_LEAST = 5.0
_MOST_MODES = 8
# Step of the differences for the Hessian, in standard deviations of the cloud.
_DIFFERENCE = 0.01


class Modes(NamedTuple):
    """Places outside the cloud, and the logs of their masses over the cloud's.

    Places that do not count have a log mass of -inf.
    """

    places: Float[Array, "k d"]
    log_masses: Float[Array, " k"]


class Scouting(NamedTuple):
    """The scouts, Adam's averages, and the modes once they have arrived."""

    place: Place
    first: Float[Array, "m d"]
    second: Float[Array, "m d"]
    step: Int[Array, ""]
    modes: Modes


class Scout(AbstractSampler):
    """Lone descents from the start, which leave the cloud as it is.

    The stage ends as ``NOT_AT_REST`` if there are modes outside the cloud, else as ``CONVERGED``.

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
        return memory.modes

    def init(self, key, cloud):
        if self.start is None:
            raise ValueError("Scout needs to know where the run began; it works inside a Sequence.")
        place = Cloud.at(cloud.log_density, self.start).place
        zeros = jnp.zeros_like(self.start)
        none = jnp.full(_MOST_MODES, -jnp.inf, zeros.dtype)
        modes = Modes(jnp.zeros((_MOST_MODES, zeros.shape[1]), zeros.dtype), none)
        return Scouting(place, zeros, zeros, jnp.zeros((), jnp.int32), modes)

    def propose(self, key, cloud, memory):
        sds = jnp.std(cloud.particles, axis=0)
        widest = jnp.maximum(jnp.std(self.start, axis=0), sds)

        def descended(_, memory):
            step = memory.step + 1
            past = step.astype(cloud.dtype)
            scores = jnp.nan_to_num(memory.place.scores)
            first = _FIRST * memory.first + (1 - _FIRST) * scores
            second = _SECOND * memory.second + (1 - _SECOND) * scores**2
            roots = jnp.sqrt(second / (1 - _SECOND**past)) + jnp.finfo(cloud.dtype).tiny
            share = (memory.step / self.num_steps).astype(cloud.dtype)
            lengths = (_LONG * widest) ** (1 - share) * (_SHORT * sds) ** share
            points = memory.place.particles + lengths * (first / (1 - _FIRST**past)) / roots
            there = Cloud.at(cloud.log_density, points).place
            return Scouting(there, first, second, step, memory.modes)

        memory = jax.lax.fori_loop(0, _AT_ONCE, descended, memory)
        modes = jax.lax.cond(
            memory.step >= self.num_steps,
            lambda: _modes(cloud.some(), memory.place),
            lambda: memory.modes,
        )
        return cloud, memory._replace(modes=modes)

    def conclude(self, cloud, pending, arrived):
        found = jnp.any(pending.modes.log_masses > -jnp.inf)
        done = pending.step >= self.num_steps
        status = jnp.where(found, Status.NOT_AT_REST, Status.CONVERGED)
        info = Info.of(
            cloud,
            jnp.full((), jnp.nan),
            status=jnp.where(done, status, Status.RUNNING),
            gradients=_AT_ONCE * len(self.start),
        )
        return jnp.zeros((), bool), pending, info


def _modes(cloud, there: Place) -> Modes:
    """The ends behind a valley and far from each other, with their masses over the cloud's."""
    frame = DenseFrame.of(cloud.particles)
    dim = cloud.shape[1]
    z = frame.enter(there.particles)
    sound = jnp.isfinite(there.log_densities) & jnp.all(jnp.isfinite(z), axis=1)
    candidates = sound & (_valleys(cloud, there, z) > _DEPTH)
    home = jnp.mean(cloud.log_densities) + 0.5 * dim

    def one(open_, _):
        """The highest end that is left, without those around it."""
        row = jnp.argmax(jnp.where(open_, there.log_densities, -jnp.inf))
        closed = jnp.linalg.norm(z - z[row], axis=1) <= _APART
        return open_ & ~closed, (row, open_[row])

    _, (rows, real) = jax.lax.scan(one, candidates, length=_MOST_MODES)

    def weighed(row):
        gain = there.log_densities[row] - home - 0.5 * _log_curvature(cloud, frame, there, row)
        return jnp.where(gain > -_LEAST, gain, -jnp.inf).astype(cloud.dtype)

    # One after another: d points each.
    masses = jax.lax.map(
        lambda args: jax.lax.cond(
            args[1], weighed, lambda _: jnp.full((), -jnp.inf, cloud.dtype), args[0]
        ),
        (rows, real),
    )
    return Modes(there.particles[rows], masses)


def _valleys(cloud, there: Place, z) -> Float[Array, " m"]:
    """How deep the valley is between each scout and the one that came home, in nats.

    Where level sets are convex there is none, however far the scout is. If no scout ended in the
    cloud, all of them are elsewhere.
    """
    distances = jnp.nan_to_num(jnp.linalg.norm(z, axis=1), nan=jnp.inf)
    home = jnp.argmin(distances)
    shares = jnp.linspace(0, 1, _NUM_POINTS + 2, dtype=cloud.dtype)[1:-1, None, None]
    between = (1 - shares) * there.particles + shares * there.particles[home]
    values = jax.lax.map(jax.vmap(cloud.log_density), between)
    lower = jnp.minimum(there.log_densities, there.log_densities[home])
    depths = lower - jnp.min(jnp.nan_to_num(values, nan=-jnp.inf), axis=0)
    outside = distances[home] > _OUTSIDE * (1 + math.sqrt(cloud.shape[1]))
    return jnp.where(outside, jnp.inf, depths)


def _log_curvature(cloud, frame, there: Place, row) -> Float[Array, ""]:
    """log det of minus the Hessian in the cloud's frame, by differences of scores."""
    dim = cloud.shape[1]
    offsets = _DIFFERENCE * jnp.eye(dim, dtype=cloud.dtype)
    scores = Cloud.at(cloud.log_density, there.particles[row] + frame.stretch(offsets)).scores
    curvature = -frame.pull(scores - there.scores[row]) / _DIFFERENCE
    values = jnp.linalg.eigvalsh((curvature + curvature.T) / 2)
    # A direction that is flat there is taken to be ten times as wide as the cloud.
    return jnp.sum(jnp.log(jnp.maximum(values, 0.01)))
