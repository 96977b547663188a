"""Verify: a few Hamiltonian transitions from particles that are thought to be at rest.

They leave the particles where they are, and compare them with the places that they visit.
"""

import math

import jax.numpy as jnp

from parvi.cloud import BLOCK, Cloud, chosen
from parvi.geometry.drift import Moments, tails_beyond
from parvi.interface import AbstractStoppingRule
from parvi.samplers.exploration import AbstractExploration
from parvi.samplers.flight import landed
from parvi.stopping import Never


class Verify(AbstractExploration):
    """Tests whether the particles are at rest, and leaves them where they are.

    Of more than 8192 particles, evenly spaced ones are tested.

    Parameters
    ----------
    window
        Number of transitions.
    better_than_draws
        Whether the particles have to be closer to the target than independent draws are.
    least_mobility, length, num_windows, most_leapfrogs
        As in ``Explore``.
    """

    window: int = 4
    better_than_draws: bool = False
    least_mobility: float = 0.3
    length: float = math.pi / 2
    num_windows: int = 1
    most_leapfrogs: int = 128
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 5000

    @property
    def asks_means_only(self):
        return True

    def init(self, key, cloud):
        few = cloud.some().place
        memory = self._first(few, few)
        return memory._replace(
            before=Moments.at(memory.axes, few.particles),
            tails=tails_beyond(memory.axes.frame, few),
        )

    def propose(self, key, cloud, memory):
        memory = self._launched(key, memory.home, memory)
        if cloud.is_held and cloud.shape[0] <= BLOCK:
            return memory.flight.here.particles, (memory, None)
        there = Cloud.at(cloud.log_density, memory.flight.here.particles)
        return cloud, (memory, there.place)

    def conclude(self, cloud, pending, arrived):
        memory, there = pending
        gradients = 0 if there is None else len(there.particles)
        there = arrived.place if there is None else there
        flight, stays, rate = landed(memory.axes.frame, memory.flight, there)
        home = chosen(stays, there, memory.home)
        # A part of very many particles is no better than independent draws, however exact all are.
        strict = self.better_than_draws and len(home.particles) == cloud.shape[0]
        judged = self._judged(memory._replace(flight=flight, home=home), home, rate, strict)
        return jnp.zeros((), bool), judged.memory, self._info(cloud, judged, rate, gradients)

    def _num_before(self, window):
        # The particles themselves stand for the window before.
        return jnp.zeros_like(window)

    def _next_axes(self, memory, place):
        # The moments before are known along these axes only.
        return memory.axes

    def _tails(self, memory, place):
        # The tails of the particles themselves, not of the places to which transitions have taken
        # them.
        return memory.tails
