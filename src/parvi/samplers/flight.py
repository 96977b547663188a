"""Flights: Hamiltonian trajectories of all particles at once, a leapfrog at a time.

The ensemble tunes them: all have the same number of leapfrogs, and the step follows their mean
acceptance.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from parvi.cloud import Place
from parvi.geometry.frame import AbstractFrame
from parvi.samplers.fly import paired_normal

# The first step, the acceptance that it is tuned to, and the gain of the tuning.
_FIRST_STEP, _WANTED, _GAIN = 0.4, 0.8, 1.0
# Shortest and longest step of a particle, in units of the tuned one.
_SHORTEST, _LONGEST = 0.6, 1.2
# Share of the particles that take much shorter steps in exploring, and the shortest of these, as a
# part of the others' steps. Thin parts of a target, such as the neck of a funnel, reject every
# step that is tuned to the rest. In a test of a few transitions, such steps would lose a quarter
# of what it sees.
CAREFUL, _THINNEST = 0.25, 1 / 16
# A transition that a smaller share of the particles accepts does not count. This is half of the
# acceptance to which steps are tuned.
_FEWEST = 0.4


class Flight(NamedTuple):
    """Where all trajectories are, and their energies at the beginning.

    ``log_step``: the tuned step. ``left``: the number of leapfrogs left. ``uniforms``: decide
    which trajectories are accepted at their end.
    """

    here: Place
    momenta: Float[Array, "n d"]
    step_sizes: Float[Array, " n"]
    energies: Float[Array, " n"]
    uniforms: Float[Array, " n"]
    log_step: Float[Array, ""]
    left: Int[Array, ""]

    @classmethod
    def grounded(cls, place: Place) -> "Flight":
        """There is no trajectory yet; the next leapfrog begins one."""
        zeros = jnp.zeros_like(place.particles)
        log_step = jnp.asarray(math.log(_FIRST_STEP), zeros.dtype)
        column = zeros[:, 0]
        return cls(place, zeros, column, column, column, log_step, jnp.zeros((), jnp.int32))


def launched(
    key: Key[Array, ""],
    frame: AbstractFrame,
    home: Place,
    flight: Flight,
    length: float,
    most_leapfrogs: int,
    careful: float = 0.0,
) -> Flight:
    """The first half of a leapfrog, of new trajectories from home if the last ones are over.

    ``careful``: share of the particles that take much shorter steps.
    """

    def begun():
        num, dtype = len(home.particles), home.particles.dtype
        # One draw for all: every call of a generator is a tenth of a second of compilation.
        normals = paired_normal(key, (num, home.particles.shape[1] + 4), dtype)
        momenta, rest = normals[:, :-4], normals[:, -4:]
        usual, thin, share, end = jax.scipy.stats.norm.cdf(rest).T
        energies = home.log_densities - 0.5 * jnp.sum(momenta**2, axis=1)
        step = jnp.exp(flight.log_step)
        steps = step * _lengths(usual, thin, share < careful)
        left = jnp.clip(jnp.round(length / step), 1, most_leapfrogs).astype(jnp.int32)
        return Flight(home, momenta, steps, energies, end, flight.log_step, left)

    flight = jax.lax.cond(flight.left == 0, begun, lambda: flight)
    steps = flight.step_sizes[:, None]
    momenta = flight.momenta + 0.5 * steps * frame.pull(flight.here.scores)
    positions = flight.here.particles + frame.stretch(steps * momenta)
    return flight._replace(here=flight.here._replace(particles=positions), momenta=momenta)


def _lengths(usual, thin, careful) -> Float[Array, " n"]:
    """The steps of all particles in units of the tuned one, from uniform draws."""
    shorter = jnp.where(careful, _THINNEST**thin, 1.0)
    return (_SHORTEST + (_LONGEST - _SHORTEST) * usual) * shorter


def counts(rate: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether a transition with this acceptance counts."""
    return rate >= _FEWEST


def landed(
    frame: AbstractFrame, flight: Flight, arrived: Place
) -> tuple[Flight, Bool[Array, " n"], Float[Array, ""]]:
    """The second half of a leapfrog: the flight, which particles stay there, and the acceptance.

    A particle stays if its trajectory is over and accepted. Otherwise it flies on or is still at
    home.
    """
    momenta = flight.momenta + 0.5 * flight.step_sizes[:, None] * frame.pull(arrived.scores)
    gain = arrived.log_densities - 0.5 * jnp.sum(momenta**2, axis=1) - flight.energies
    over = flight.left == 1
    # A comparison with NaN is false, so points that are not finite are not taken.
    stays = (jnp.log(flight.uniforms) < gain) & over
    rate = jnp.mean(jnp.exp(jnp.minimum(jnp.nan_to_num(gain, nan=-jnp.inf), 0.0)))
    log_step = flight.log_step + jnp.where(over, _GAIN * (rate - _WANTED), 0.0)
    flight = flight._replace(here=arrived, momenta=momenta, log_step=log_step, left=flight.left - 1)
    return flight, stays, rate
