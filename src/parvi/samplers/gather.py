"""Gather: transitions from particles at rest, and visited places that sum up all of them.

n chains at rest are as good as n independent draws, and no better. But T transitions visit n T
places, whose mean moments are known sqrt(T) times more exactly where transitions forget where they
began. The stage keeps the places that each chain visits, and takes one from each chain, so that
together their means and squares, in the frame of the particles, are closest to those of all the
places. Every particle is then a place that its chain has really visited, so nothing is moved out
of a thin part of the target, as an affine correction would do.

``Compare`` asks whether particles that a flow has moved since have the same moments.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.cloud import chosen
from parvi.geometry.drift import BOUND, Axes, Moments, added, compared, scaled, tails_beyond
from parvi.geometry.frame import AbstractGaussianFrame
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, reported, required
from parvi.samplers.exploration import Changed, Explored
from parvi.samplers.flight import CAREFUL, Flight, counts, landed, launched
from parvi.samplers.keys import cheap
from parvi.status import Status
from parvi.stopping import Never

# Tries per transition that counts.
_MOST_TRIES = 4
# Number of times that every particle may change its place for another.
_NUM_SWEEPS = 4


class Gathered(NamedTuple):
    """The axes of the moments, and for every particle their means over the places it visited."""

    axes: Axes
    moments: Moments


class Gathering(NamedTuple):
    """The flights, the places visited so far, and the sums of their moments."""

    axes: Axes
    flight: Flight
    visits: Float[Array, "t n d"]
    sums: Moments
    num_made: Int[Array, ""]
    num_tried: Int[Array, ""]
    over: Bool[Array, ""]


class Gather(AbstractSampler):
    """Hamiltonian transitions, and the particles that sum up what they visited. O(t n d) memory.

    Parameters
    ----------
    num_transitions
        Number of transitions t whose places are kept.
    length, most_leapfrogs
        Settings of the transitions, as in ``Explore``.
    log_step
        Log of the first leapfrog's length; the run passes in the one that ``Explore`` has found.
    """

    num_transitions: int = 16
    length: float = math.pi / 2
    most_leapfrogs: int = 128
    log_step: Any = None
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 20_000

    @property
    def compares_densities(self):
        return True

    def told(self, start, reports):
        found = reported(reports, Explored)
        if found is None:
            return self
        return eqx.tree_at(lambda s: s.log_step, self, found.log_step, is_leaf=lambda x: x is None)

    def report(self, memory):
        return Gathered(memory.axes, scaled(memory.sums, 1 / jnp.maximum(memory.num_made, 1)))

    def init(self, key, cloud):
        axes = Axes.of(cloud.place)
        flight = Flight.grounded(cloud.place)
        if self.log_step is not None:
            flight = flight._replace(log_step=jnp.asarray(self.log_step, cloud.dtype))
        zero = jnp.zeros((), jnp.int32)
        return Gathering(
            axes=axes,
            flight=flight,
            visits=jnp.broadcast_to(cloud.particles, (self.num_transitions, *cloud.shape)),
            sums=scaled(Moments.at(axes, cloud.particles), 0.0),
            num_made=zero,
            num_tried=zero,
            over=jnp.zeros((), bool),
        )

    def propose(self, key, cloud, memory):
        def flown():
            flight = launched(
                cheap(key),
                memory.axes.frame,
                cloud.place,
                memory.flight,
                self.length,
                self.most_leapfrogs,
                CAREFUL,
            )
            return flight.here.particles, flight

        def summed_up():
            return _summed_up(memory.axes.frame, memory.visits), memory.flight

        points, flight = jax.lax.cond(memory.over, summed_up, flown)
        return points, memory._replace(flight=flight)

    def conclude(self, cloud, pending, arrived):
        flight, stays, rate = landed(pending.axes.frame, pending.flight, arrived.place)
        place = chosen(stays, arrived.place, cloud.place)
        ended = (flight.left == 0) & ~pending.over
        kept = ended & counts(rate)
        made, tried = pending.num_made + kept, pending.num_tried + ended
        memory = pending._replace(
            flight=flight,
            visits=_put(pending.visits, place.particles, pending.num_made, kept),
            sums=added(pending.sums, Moments.at(pending.axes, place.particles), kept),
            num_made=made,
            num_tried=tried,
            over=(made >= self.num_transitions) | (tried >= _MOST_TRIES * self.num_transitions),
        )
        taken = jnp.where(pending.over, jnp.ones_like(stays), stays)
        # Chains that hardly moved have visited nothing to sum up.
        fewest = jnp.where(made >= self.num_transitions, Status.CONVERGED, Status.NOT_AT_REST)
        info = Info.of(
            cloud,
            jnp.exp(flight.log_step),
            status=jnp.where(pending.over, fewest, Status.RUNNING),
            extra={"acceptance": jnp.where(ended, rate, jnp.nan).astype(cloud.dtype)},
        )
        return taken, memory, info


class Compare(AbstractSampler):
    """Whether the particles have the moments that ``Gather`` has found, without any gradient.

    The stage ends as ``NOT_AT_REST`` if they have not, and leaves the particles where they are.

    Parameters
    ----------
    gathered
        The moments; the run passes them in.
    """

    gathered: Any = None
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 1

    @property
    def compares_densities(self):
        return True

    def told(self, start, reports):
        found = required(reports, Gathered, "Compare", "Gather")
        return Compare(found, self.stopping_rule, self.max_steps)

    def init(self, key, cloud):
        return jnp.zeros(cloud.shape[1], cloud.dtype)

    def report(self, memory):
        return Changed(memory)

    def propose(self, key, cloud, memory):
        return cloud, memory

    def conclude(self, cloud, pending, arrived):
        axes, moments = self.gathered
        own = Moments.at(axes, cloud.particles)
        drift, changes = compared(axes, own, moments, strict=True)
        drift = jnp.maximum(drift, tails_beyond(axes.frame, cloud.place))
        status = jnp.where(drift <= BOUND, Status.CONVERGED, Status.NOT_AT_REST)
        info = Info.of(cloud, jnp.zeros(()), status=status, extra={"drift": drift})
        return jnp.zeros((), bool), changes, info


def _put(visits, particles, number, when):
    row = jnp.minimum(number, len(visits) - 1)
    return visits.at[row].set(jnp.where(when, particles, visits[row]))


def _summed_up(frame: AbstractGaussianFrame, visits: Float[Array, "t n d"]) -> Float[Array, "n d"]:
    """One place of every chain, so that their moments are close to those of all the places.

    Each particle in turn takes the one of its places that brings the mean of (z, z^2) closest to
    the mean over all places.
    """
    num = visits.shape[1]
    z = frame.enter(visits)
    features = jnp.concatenate([z, z**2], axis=2).transpose(1, 0, 2)
    aim = jnp.mean(features, axis=(0, 1))
    last = jnp.full(num, len(visits) - 1, jnp.int32)
    gap = num * (jnp.mean(features[:, -1], axis=0) - aim)

    def one(gap, args):
        own, present = args
        left = gap - own[present] + own
        best = jnp.argmin(jnp.sum(left**2, axis=1)).astype(jnp.int32)
        return left[best], best

    def sweep(_, state):
        gap, rows = state
        return jax.lax.scan(one, gap, (features, rows))

    _, rows = jax.lax.fori_loop(0, _NUM_SWEEPS, sweep, (gap, last))
    return jnp.take_along_axis(visits, rows[None, :, None], axis=0)[0]
