"""Follow: very many particles make the transitions that brought some of them to rest.

``Apart(Explore())`` moves some thousand particles until they are at rest, and reports its frame,
its step and the number of its transitions. All particles began as those did, so they are at rest
after the same number of transitions with the same settings. The settings do not adapt any more, so
particles need not wait for each other: a block at a time makes a whole transition. No more than
the particles, their new places and the arrays of one block are in memory.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from parvi.cloud import Cloud, LogDensity, Place, chosen
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, required
from parvi.samplers.exploration import Explored
from parvi.samplers.flight import CAREFUL, Flight, landed, launched
from parvi.samplers.keys import cheap
from parvi.status import Status
from parvi.stopping import Never


class _Flying(NamedTuple):
    """The particles of a block in the middle of a transition."""

    place: Place
    flight: Flight
    begun: Bool[Array, ""]


class Follow(AbstractSampler):
    """Hamiltonian transitions of very many particles, tuned by some of them. O(n d) memory.

    A step is one transition of all particles.

    Parameters
    ----------
    length, most_leapfrogs
        Settings of the transitions, as in ``Explore``.
    explored
        What some particles have found; the run passes it in.
    """

    length: float = jnp.pi / 2
    most_leapfrogs: int = 128
    explored: Any = None
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 20_000

    @property
    def asks_means_only(self):
        return True

    @property
    def compares_densities(self):
        return True

    def told(self, start, reports):
        found = required(reports, Explored, "Follow", "Apart(Explore())")
        return eqx.tree_at(lambda s: s.explored, self, found, is_leaf=lambda x: x is None)

    def init(self, key, cloud):
        return jnp.zeros((), jnp.int32)

    def propose(self, key, cloud, memory):
        def moved(own, block):
            return self._transition(cheap(own), cloud.log_density, block.particles)

        return self._arrived(cloud, cloud.random_values(key, moved)), memory + 1

    def conclude(self, cloud, pending, arrived):
        done = pending >= self.explored.num_transitions
        # One evaluation begins a transition; the run counts the evaluation of the points itself.
        leapfrogs = self._num_leapfrogs
        info = Info.of(
            cloud,
            jnp.exp(self.explored.log_step),
            status=jnp.where(done, Status.CONVERGED, Status.RUNNING),
            gradients=(1 + leapfrogs) * cloud.shape[0],
        )
        return jnp.ones((), bool), pending, info

    def _arrived(self, cloud: Cloud, points: Float[Array, "n d"]) -> Any:
        return points if cloud.is_held else Cloud.unread(cloud.log_density, points)

    @property
    def _num_leapfrogs(self) -> Int[Array, ""]:
        step = jnp.exp(self.explored.log_step)
        return jnp.clip(jnp.round(self.length / step), 1, self.most_leapfrogs).astype(jnp.int32)

    def _transition(
        self, key: Key[Array, ""], log_density: LogDensity, particles: Float[Array, "m d"]
    ) -> Float[Array, "m d"]:
        """Where one transition takes the particles of a block."""
        frame = self.explored.frame
        home = Cloud.at(log_density, particles).place
        flight = Flight.grounded(home)._replace(log_step=self.explored.log_step)

        def flies(state):
            return ~state.begun | (state.flight.left > 0)

        def leap(state):
            flight = launched(
                key, frame, state.place, state.flight, self.length, self.most_leapfrogs, CAREFUL
            )
            there = Cloud.at(log_density, flight.here.particles).place
            flight, stays, _ = landed(frame, flight, there)
            return _Flying(chosen(stays, there, state.place), flight, jnp.ones((), bool))

        start = _Flying(home, flight, jnp.zeros((), bool))
        return jax.lax.while_loop(flies, leap, start).place.particles
