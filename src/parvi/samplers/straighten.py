"""Straighten: a stage that changes the coordinates in which later stages see the target.

It moves no particle. Where the scales or means of most coordinates follow a few others, as in
funnels, hierarchies and bent ridges, a coupling is fitted to particles and scores
(``geometry.straightening``). In its coordinates the target is closer to a Gaussian, so flows and
flights reach what they would miss.
"""

import abc

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from parvi.geometry.coupling import Coupling
from parvi.geometry.straightening import straightened
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.status import Status
from parvi.stopping import Never


class AbstractChange(AbstractSampler):
    """A stage that changes the coordinates of a run and moves no particle.

    In a ``Sequence`` the run asks it for a coupling between two stages, and the stage counts as run
    only if there is one. It is left out for mini-batches, on a mesh, and for very many particles.
    By itself it is a step that does nothing, as there is no later stage.
    """

    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 1

    @property
    def compares_densities(self):
        return True

    @abc.abstractmethod
    def coupling(
        self,
        particles: Float[np.ndarray, "n d"],
        scores: Float[np.ndarray, "n d"],
        present: Coupling | None,
    ) -> Coupling | None:
        """The new coordinates, from particles and scores in the target's own.

        None if there are none better than those of the present coupling.
        """

    def init(self, key, cloud):
        return ()

    def propose(self, key, cloud, memory):
        return cloud, memory

    def conclude(self, cloud, pending, arrived):
        info = Info.of(cloud, jnp.full((), jnp.nan), status=Status.CONVERGED)
        return jnp.zeros((), bool), pending, info


class Straighten(AbstractChange):
    """Changes the coordinates of a run if that makes the particles more Gaussian.

    Parameters
    ----------
    least_growth
        The share by which a leader of the present coupling must have become wider since the fit; 0
        for no such condition. A coupling that has been outgrown is not compared with the new one,
        as too few particles have reached more of the target to judge.
    """

    least_growth: float = 0.0

    def coupling(self, particles, scores, present):
        if present is not None and self.least_growth > 0:
            # The units are the reciprocals of the standard deviations at the fit.
            grown = np.std(particles, axis=0)[present.leaders] * np.asarray(present.units)
            if not np.max(grown) > 1 + self.least_growth:
                return None
            present = None
        return straightened(particles, scores, present)
