"""Fly: Hamiltonian transitions of all particles, one gradient per step.

This stage is for clouds that a flow cannot finish. If the target is far from Gaussian, features
miss the error in its thin parts, but transitions that leave the target invariant carry particles
there. Every particle draws a new step size for every transition, from a range wide enough for both
wide and thin parts.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from parvi.cloud import Cloud
from parvi.geometry.frame import AbstractFrame, own_frame
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.samplers.keys import cheap
from parvi.status import Status
from parvi.stopping import Never


class Flight(NamedTuple):
    """The current state of all trajectories, and their energies at the beginning."""

    positions: Float[Array, "n d"]
    scores: Float[Array, "n d"]
    momenta: Float[Array, "n d"]
    step_sizes: Float[Array, " n"]
    energies: Float[Array, " n"]


class Flying(NamedTuple):
    """The frame, the trajectories, and the number of leapfrogs made."""

    frame: AbstractFrame
    flight: Flight
    step: Int[Array, ""]


class _Pending(NamedTuple):
    memory: Flying
    uniforms: Float[Array, " n"]


class Fly(AbstractSampler):
    """Hamiltonian Monte Carlo from every particle, in the particles' own frame; O(n d) memory.

    Parameters
    ----------
    num_transitions
        Number of transitions, after which the stage is done.
    num_leapfrogs
        Number of leapfrogs per transition; each is one step of the sampler.
    longest
        The longest leapfrog, in standard deviations of the particles.
    spread
        Ratio of the longest leapfrog to the shortest; lengths are drawn log-uniformly between them.
    """

    num_transitions: int = 40
    num_leapfrogs: int = 8
    longest: float = 1.0
    spread: float = 8.0
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 5000

    def __check_init__(self):
        if self.num_transitions < 1 or self.num_leapfrogs < 1:
            raise ValueError(
                "num_transitions and num_leapfrogs must be at least 1, got "
                f"{self.num_transitions} and {self.num_leapfrogs}."
            )
        if not (self.longest > 0 and self.spread >= 1):
            raise ValueError(
                "longest must be positive and spread at least 1, got "
                f"{self.longest} and {self.spread}."
            )

    @property
    def compares_densities(self):
        return True

    def init(self, key, cloud):
        zeros = jnp.zeros_like(cloud.particles)
        flight = Flight(cloud.particles, cloud.scores, zeros, zeros[:, 0], zeros[:, 0])
        return Flying(own_frame(cloud.particles), flight, jnp.zeros((), jnp.int32))

    def propose(self, key, cloud, memory):
        key_begin, key_end = jax.random.split(cheap(key))
        begins = memory.step % self.num_leapfrogs == 0
        flight = jax.lax.cond(begins, lambda: self._begun(key_begin, cloud), lambda: memory.flight)
        # The first half of a leapfrog.
        frame, steps = memory.frame, flight.step_sizes[:, None]
        halfway = flight.momenta + 0.5 * steps * frame.pull(flight.scores)
        positions = frame.leave(frame.enter(flight.positions) + steps * halfway)
        flight = flight._replace(positions=positions, momenta=halfway)
        uniforms = jax.random.uniform(key_end, (cloud.shape[0],), cloud.dtype)
        return positions, _Pending(memory._replace(flight=flight), uniforms)

    def conclude(self, cloud, pending, arrived):
        (frame, flight, step), uniforms = pending
        steps = flight.step_sizes[:, None]
        momenta = flight.momenta + 0.5 * steps * frame.pull(arrived.scores)
        gain = arrived.log_densities - 0.5 * jnp.sum(momenta**2, axis=1) - flight.energies
        ends = (step + 1) % self.num_leapfrogs == 0
        # A comparison with NaN is false, so points that are not finite are not taken.
        taken = (jnp.log(uniforms) < gain) & ends
        done = step + 1 >= self.num_transitions * self.num_leapfrogs
        rate = jnp.mean(jnp.exp(jnp.minimum(jnp.nan_to_num(gain, nan=-jnp.inf), 0.0)))
        info = Info.of(
            cloud,
            jnp.mean(flight.step_sizes),
            status=jnp.where(done, Status.CONVERGED, Status.RUNNING),
            extra={"acceptance": jnp.where(ends, rate, jnp.nan).astype(cloud.dtype)},
        )
        flight = flight._replace(scores=arrived.scores, momenta=momenta)
        return taken, Flying(frame, flight, step + 1), info

    def _begun(self, key: Key[Array, ""], cloud: Cloud) -> Any:
        key_momenta, key_steps = jax.random.split(key)
        momenta = paired_normal(key_momenta, cloud.shape, cloud.dtype)
        uniforms = jax.random.uniform(key_steps, (cloud.shape[0],), cloud.dtype)
        energies = cloud.log_densities - 0.5 * jnp.sum(momenta**2, axis=1)
        steps = self.longest * self.spread**-uniforms
        return Flight(cloud.particles, cloud.scores, momenta, steps, energies)


def paired_normal(key: Key[Array, ""], shape: tuple[int, int], dtype: Any) -> Float[Array, "n d"]:
    """Normal draws in pairs of opposite sign, so that their odd moments are exact."""
    num, dim = shape
    half = jax.random.normal(key, ((num + 1) // 2, dim), dtype)
    return jnp.stack([half, -half], axis=1).reshape(-1, dim)[:num]
