"""Exploration: Hamiltonian transitions in windows, each of which ends with a comparison.

Every particle is a chain, and the ensemble tunes them: the frame comes from the particles, the
step from their mean acceptance, and the end from a test that n chains together can make. At the
end of a window, the mean moments of its later transitions are compared with those of the earlier
ones (``geometry.drift``). The stage is at rest when no moment differs by more than chance and the
particles have really moved: a window that hardly moves them says nothing. The next window is twice
as long.

Particles that are too few for a frame of all their directions move along the slow ones as a random
walk. They stop early where the drift falls so slowly from window to window that the last would not
find rest either.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.cloud import Place
from parvi.geometry.drift import (
    BOUND,
    Axes,
    Moments,
    Moved,
    added,
    compared,
    scaled,
    tails_beyond,
)
from parvi.geometry.frame import AbstractGaussianFrame, DenseFrame
from parvi.interface import AbstractSampler, Info
from parvi.samplers.flight import Flight, counts, launched
from parvi.samplers.keys import cheap
from parvi.status import Status

# Tries per transition that counts.
_MOST_TRIES = 4
# Windows from which on too few particles may stop early: two give a pace, and the first still moves
# the particles to their places.
_PATIENCE = 3


class Explored(NamedTuple):
    """What a stage of transitions reports.

    ``changes``: the change of every coordinate in the last window, in standard errors.
    ``log_step``: the log of the tuned leapfrog. ``frame``: the frame of the particles.
    ``num_transitions``: the number of transitions that counted.
    """

    changes: Float[Array, " d"]
    log_step: Float[Array, ""]
    frame: AbstractGaussianFrame
    num_transitions: Int[Array, ""]


class Changed(NamedTuple):
    """The report of a stage that only compares: the change of every coordinate, as in Explored."""

    changes: Float[Array, " d"]


class Exploring(NamedTuple):
    """The state of the flights and of the present window.

    ``home``: where the particles of the test are, if that is not the cloud itself. ``num_made``
    and ``num_tried``: the transitions of this window that count, and all. ``total``: those of all
    windows that count. ``start``: the particles at the beginning of this window. ``before`` and
    ``after``: sums of moments. ``drift`` and ``changes``: those of the last window; ``changes``
    has one for every coordinate. ``tails``: the error of the tails of particles that are tested.
    """

    axes: Axes
    home: Place | None
    flight: Flight
    num_made: Int[Array, ""]
    num_tried: Int[Array, ""]
    total: Int[Array, ""]
    window: Int[Array, ""]
    num_windows: Int[Array, ""]
    start: Float[Array, "n d"]
    before: Moments
    after: Moments
    drift: Float[Array, ""]
    changes: Float[Array, " d"]
    tails: Float[Array, ""]


class _Judged(NamedTuple):
    memory: Exploring
    drift: Float[Array, ""]
    mobility: Float[Array, ""]
    rests: Any
    ends: Any

    @classmethod
    def nothing(cls, memory: Exploring) -> "_Judged":
        """No window has ended."""
        nan, no = jnp.full_like(memory.tails, jnp.nan), jnp.zeros((), bool)
        return cls(memory, nan, nan, no, no)


class AbstractExploration(AbstractSampler):
    """Transitions in windows, each of which ends with a comparison."""

    length: eqx.AbstractVar[float]
    window: eqx.AbstractVar[int]
    num_windows: eqx.AbstractVar[int]
    least_mobility: eqx.AbstractVar[float]
    most_leapfrogs: eqx.AbstractVar[int]

    @abc.abstractmethod
    def _num_before(self, window: Int[Array, ""]) -> Int[Array, ""]:
        """The number of transitions that are compared with the rest of the window."""

    def _next_axes(self, memory: Exploring, place: Place) -> Axes:
        """The axes of the next window."""
        return Axes.of(place)

    def _tails(self, memory: Exploring, place: Place) -> Float[Array, ""]:
        """The error of the tails of the particles that are tested: those that have arrived."""
        return tails_beyond(memory.axes.frame, place)

    @property
    def compares_densities(self):
        return True

    def _first(self, place: Place, home: Place | None) -> Exploring:
        particles = place.particles
        dtype, dim = particles.dtype, particles.shape[1]
        axes = Axes.of(place)
        nothing = scaled(Moments.at(axes, particles), 0.0)
        zero = jnp.zeros((), jnp.int32)
        return Exploring(
            axes=axes,
            home=home,
            flight=Flight.grounded(place),
            num_made=zero,
            num_tried=zero,
            total=zero,
            window=jnp.asarray(self.window, jnp.int32),
            num_windows=zero,
            start=particles,
            before=nothing,
            after=nothing,
            drift=jnp.full((), jnp.finfo(dtype).max, dtype),
            changes=jnp.zeros(dim, dtype),
            tails=jnp.full((), jnp.finfo(dtype).min, dtype),
        )

    def _launched(self, key, home: Place, memory: Exploring, careful: float = 0.0) -> Exploring:
        frame, flight = memory.axes.frame, memory.flight
        most = self.most_leapfrogs
        flight = launched(cheap(key), frame, home, flight, self.length, most, careful)
        return memory._replace(flight=flight)

    def _judged(self, memory: Exploring, place: Place, rate, strict: bool = False) -> _Judged:
        """The sums after this step and, at the end of a window, the verdict.

        ``strict``: the particles before are taken as exact.
        """
        return jax.lax.cond(
            memory.flight.left == 0,
            lambda: self._counted(memory, place, rate, strict),
            lambda: _Judged.nothing(memory),
        )

    def _counted(self, memory: Exploring, place: Place, rate, strict: bool) -> _Judged:
        moments = Moments.at(memory.axes, place.particles)
        kept = counts(rate)
        early = memory.num_made < self._num_before(memory.window)
        before = added(memory.before, moments, kept & early)
        after = added(memory.after, moments, kept & ~early)
        made, tried = memory.num_made + kept, memory.num_tried + 1
        memory = memory._replace(before=before, after=after, num_made=made, num_tried=tried)
        memory = memory._replace(total=memory.total + kept)
        return jax.lax.cond(
            (made >= memory.window) | (tried >= _MOST_TRIES * memory.window),
            lambda: self._closed(memory, place, strict),
            lambda: _Judged.nothing(memory),
        )

    def _closed(self, memory: Exploring, place: Place, strict: bool) -> _Judged:
        """The end of a window: its verdict, and the beginning of the next."""
        first = self._num_before(memory.window)
        before = scaled(memory.before, 1 / jnp.maximum(first, 1))
        after = scaled(memory.after, 1 / (memory.window - first))
        moved = Moved.between(memory.axes.frame, memory.start, place.particles)
        drift, changes = compared(memory.axes, before, after, strict, moved)
        # If too few transitions were accepted, there is nothing to judge by.
        made = memory.num_made >= memory.window
        drift = jnp.where(made, jnp.maximum(drift, self._tails(memory, place)), jnp.inf)
        rests = (drift <= BOUND) & (moved.least >= self.least_mobility)
        futile = self._is_futile(memory, drift)
        nothing = scaled(memory.before, 0.0)
        memory = memory._replace(
            axes=self._next_axes(memory, place),
            num_made=jnp.zeros((), jnp.int32),
            num_tried=jnp.zeros((), jnp.int32),
            window=2 * memory.window,
            num_windows=memory.num_windows + 1,
            start=place.particles,
            before=nothing,
            after=nothing,
            drift=jnp.minimum(drift, jnp.finfo(drift.dtype).max),
            changes=changes,
        )
        ends = ~rests & ((memory.num_windows >= self.num_windows) | futile)
        return _Judged(memory, drift, moved.least, rests, ends)

    def _is_futile(self, memory: Exploring, drift: Float[Array, ""]) -> Bool[Array, ""] | bool:
        """Whether drifts that go on falling as they did in this window end above the bound."""
        if isinstance(memory.axes.frame, DenseFrame):
            return False
        made = memory.num_windows + 1
        pace = drift / jnp.maximum(memory.drift, BOUND)
        last = drift * pace ** (self.num_windows - made)
        return (made >= _PATIENCE) & jnp.isfinite(drift) & (drift > BOUND) & (last > BOUND)

    def _info(self, cloud, judged: _Judged, rate, gradients: Any = 0) -> Info:
        status = jnp.select(
            [judged.rests, judged.ends], [Status.CONVERGED, Status.NOT_AT_REST], Status.RUNNING
        )
        flight = judged.memory.flight
        ended = flight.left == 0
        extra = {
            "acceptance": jnp.where(ended, rate, jnp.nan).astype(cloud.dtype),
            "drift": judged.drift,
            "mobility": judged.mobility,
        }
        step = jnp.exp(flight.log_step)
        return Info.of(cloud, step, status=status, gradients=gradients, extra=extra)

    def report(self, memory):
        return Explored(memory.changes, memory.flight.log_step, memory.axes.frame, memory.total)
