"""Hamiltonian transitions of all particles, one gradient a step.

For clouds that a flow cannot finish: where the target is far from Gaussian, features do not see
what is missing in its thin parts, but transitions that leave the target as it is carry particles
there. Step sizes are drawn anew for every particle and transition, over a factor of 8: wide parts
and thin ones each find theirs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.fields.frame import AbstractFrame
from parvi.interface import Cloud

_LEAPFROGS = 8
_TRANSITIONS = 40
# In standard deviations of the particles.
_LONGEST, _SPREAD = 1.0, 8.0

NUM_STEPS = _LEAPFROGS * _TRANSITIONS


class Flight(NamedTuple):
    """Trajectories under way: where they are, and their energies where they began."""

    positions: Float[Array, "n d"]
    scores: Float[Array, "n d"]
    momenta: Float[Array, "n d"]
    step_sizes: Float[Array, " n"]
    energies: Float[Array, " n"]


def grounded(particles: Float[Array, "n d"]) -> Flight:
    """No trajectory yet."""
    zeros = jnp.zeros_like(particles)
    return Flight(particles, zeros, zeros, zeros[:, 0], zeros[:, 0])


def leapt(
    left: Int[Array, ""],
    flight: Flight,
    cloud: Cloud,
    frame: AbstractFrame,
    momenta: Float[Array, "n d"],
    uniforms: Float[Array, " n"],
) -> Flight:
    """The first half of a leapfrog, with the new positions; ``left`` of them are to be done.

    The scores are those of the old positions. Where a transition begins, at the particles of
    ``cloud``, ``momenta`` are the new ones.
    """
    steps = _LONGEST * _SPREAD**-uniforms
    energies = cloud.log_densities - 0.5 * jnp.sum(momenta**2, axis=1)
    begun = Flight(cloud.particles, cloud.scores, momenta, steps, energies)
    begins = left % _LEAPFROGS == 0
    flight = jax.tree_util.tree_map(lambda a, b: jnp.where(begins, a, b), begun, flight)
    steps = flight.step_sizes[:, None]
    halfway = flight.momenta + 0.5 * steps * frame.pull(flight.scores)
    positions = frame.leave(frame.enter(flight.positions) + steps * halfway)
    return flight._replace(positions=positions, momenta=halfway)


def landed(
    left: Int[Array, ""],
    flight: Flight,
    proposed: Cloud,
    frame: AbstractFrame,
    uniforms: Float[Array, " n"],
) -> tuple[Flight, Bool[Array, " n"]]:
    """The second half; and, where a transition ends, which particles take their new positions."""
    steps = flight.step_sizes[:, None]
    momenta = flight.momenta + 0.5 * steps * frame.pull(proposed.scores)
    gain = proposed.log_densities - 0.5 * jnp.sum(momenta**2, axis=1) - flight.energies
    finite = jnp.all(jnp.isfinite(proposed.scores), axis=1)
    taken = (jnp.log(uniforms) < gain) & finite & (left % _LEAPFROGS == 1)
    return flight._replace(scores=proposed.scores, momenta=momenta), taken
