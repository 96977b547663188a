"""Apart: a sampler that runs on some of very many particles, and leaves the cloud as it is.

For what a stage only finds out (a frame, a step, whether there is rest), some thousand particles
do as well as a million.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from parvi.cloud import Cloud, Place, chosen
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.stopping import Never


class Aside(NamedTuple):
    """The particles of a sampler that moves them outside the cloud, and its memory."""

    place: Place
    memory: PyTree[Array]

    @classmethod
    def begun(cls, sampler: AbstractSampler, key: Key[Array, ""], cloud: Cloud) -> "Aside":
        """Before the first step, from these particles."""
        return cls(cloud.place, sampler.init(key, cloud))

    def stepped(
        self, sampler: AbstractSampler, key: Key[Array, ""], log_density: Any
    ) -> tuple["Aside", Info]:
        """After one more step, without points that are not finite."""
        here = Cloud.of(self.place, log_density)
        points, pending = sampler.propose(key, here, self.memory)
        there = points if isinstance(points, Cloud) else Cloud.at(log_density, points)
        accepted, memory, info = sampler.conclude(here, pending, there)
        sound = jnp.isfinite(there.log_densities) & jnp.all(jnp.isfinite(there.scores), axis=1)
        return Aside(chosen(accepted & sound, there.place, self.place), memory), info


class Apart(AbstractSampler):
    """Runs a sampler on 8192 evenly spaced particles, and leaves all of them where they are.

    It ends as the sampler does and reports what the sampler reports.

    Parameters
    ----------
    sampler
        One that proposes points and lets the run evaluate them.
    """

    sampler: AbstractSampler
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 20_000

    @property
    def asks_means_only(self):
        return True

    @property
    def compares_densities(self):
        return self.sampler.compares_densities

    def told(self, start, reports):
        return Apart(self.sampler.told(start, reports), self.stopping_rule, self.max_steps)

    def report(self, memory):
        return self.sampler.report(memory.memory)

    def init(self, key, cloud):
        return Aside.begun(self.sampler, key, cloud.some())

    def propose(self, key, cloud, memory):
        return cloud, memory.stepped(self.sampler, key, cloud.log_density)

    def conclude(self, cloud, pending, arrived):
        memory, info = pending
        gradients = info.gradients + len(memory.place.particles)
        return jnp.zeros((), bool), memory, info._replace(gradients=gradients)
