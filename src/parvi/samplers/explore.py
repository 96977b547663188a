"""Explore: Hamiltonian transitions of all particles until nothing drifts any more.

The windows double in length, and the second half of each is compared with the first.
"""

import math

from parvi.cloud import chosen
from parvi.interface import AbstractStoppingRule
from parvi.samplers.exploration import AbstractExploration
from parvi.samplers.flight import CAREFUL, landed
from parvi.stopping import Never


class Explore(AbstractExploration):
    """Hamiltonian transitions in the particles' own frame, until they are at rest. O(n d) memory.

    Parameters
    ----------
    length
        Mean length of a trajectory in the frame. A quarter of a Gaussian's period is pi / 2.
    window
        Number of transitions in the first window.
    num_windows
        Number of windows, each twice as long as the one before. The stage then ends as
        ``NOT_AT_REST``; with fewer than three particles per dimension, it does so from the third
        window on if the drift falls too slowly.
    least_mobility
        How far the slowest direction must move in a window: 0 for no move, 1 for a new place.
    most_leapfrogs
        The largest number of leapfrogs in a transition.
    """

    length: float = math.pi / 2
    window: int = 8
    num_windows: int = 6
    least_mobility: float = 0.5
    most_leapfrogs: int = 128
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 20_000

    def init(self, key, cloud):
        return self._first(cloud.place, None)

    def propose(self, key, cloud, memory):
        memory = self._launched(key, cloud.place, memory, CAREFUL)
        return memory.flight.here.particles, memory

    def conclude(self, cloud, pending, arrived):
        flight, stays, rate = landed(pending.axes.frame, pending.flight, arrived.place)
        place = chosen(stays, arrived.place, cloud.place)
        judged = self._judged(pending._replace(flight=flight), place, rate)
        return stays, judged.memory, self._info(cloud, judged, rate)

    def _num_before(self, window):
        return window // 2
