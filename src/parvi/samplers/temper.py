"""Temper: from a broad Gaussian N along p^b N^(1 - b), with a round of bending for each b up to 1.

No flow of the KL carries mass between separated modes, so clumps at rest have the weights of the
start. A path from a Gaussian that covers them all moves the mass while it can still flow.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from parvi.cloud import AbstractLens, View
from parvi.fields.pfg.preconditioners import at_least_one
from parvi.geometry.frame import DenseFrame, InFrame
from parvi.interface import AbstractSampler, AbstractStoppingRule
from parvi.samplers.bend import Bend, Bending
from parvi.samplers.fly import paired_normal
from parvi.samplers.keys import cheap
from parvi.status import Status
from parvi.stopping import Never

_FIRST_BETA = 0.01


class Tempered(AbstractLens):
    """Shows the scores of p^b N^(1 - b), where N is a Gaussian in a frame."""

    frame: DenseFrame
    breadth: float
    beta: Float[Array, ""]

    def particles(self, particles):
        return particles

    def scores(self, particles, scores):
        towards = -self.frame.push(self.frame.enter(particles)) / self.breadth**2
        return self.beta * scores + (1 - self.beta) * towards

    def log_density(self, log_density):
        def mixed(x):
            square = jnp.sum(self.frame.enter(x) ** 2) / self.breadth**2
            return self.beta * log_density(x) - (1 - self.beta) * 0.5 * square

        return mixed


class Tempering(NamedTuple):
    """The broad Gaussian, the place on the path, and the rounds of bending.

    ``started``: whether the particles have already been drawn from the broad Gaussian.
    """

    broad: DenseFrame
    beta: Float[Array, ""]
    started: Bool[Array, ""]
    bending: Bending


class _Pending(NamedTuple):
    memory: Tempering
    bent: Any


class Temper(AbstractSampler):
    """Takes the particles to a broad Gaussian and back along a tempered path.

    Parameters
    ----------
    bend
        Makes one round for each temperature. It must not rest by itself: ``gain=math.inf``.
    num_temperatures
        Number of values of b, geometric from 0.01 to 1.
    breadth
        Width of the broad Gaussian in sds of the particles. If it is large, the Gaussian's centre
        hardly tilts the weights of the modes.
    max_steps
        The largest number of steps of the stage.
    """

    bend: Bend
    num_temperatures: int = 80
    breadth: float = 3.0
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 5000

    def init(self, key, cloud):
        frame = DenseFrame.of(cloud.particles)
        fisher = View(cloud, InFrame(frame)).mean(
            lambda block, weights: block.scores.T @ (weights[:, None] * block.scores)
        )
        return Tempering(
            _broad(frame, at_least_one(fisher)),
            jnp.asarray(_FIRST_BETA, cloud.dtype),
            jnp.zeros((), bool),
            self.bend.init(key, cloud),
        )

    def propose(self, key, cloud, memory):
        seen = View(cloud, self._lens(memory))
        along, bent = self.bend.propose(key, seen, memory.bending)

        def broad():
            normal = paired_normal(cheap(key), cloud.shape, cloud.dtype)
            return memory.broad.leave(self.breadth * normal)

        points = jax.lax.cond(memory.started, lambda: along, broad)
        return points, _Pending(memory, bent)

    def conclude(self, cloud, pending, arrived):
        old, bent = pending
        lens = self._lens(old)
        taken, bending, info = self.bend.conclude(View(cloud, lens), bent, View(arrived, lens))
        # The step to the Gaussian is not part of a round.
        bending = _where(old.started, bending, old.bending)
        warmer = jnp.minimum(old.beta * self._ratio, 1.0)
        beta = jnp.where(old.started & bending.fresh, warmer, old.beta)
        done = beta >= 1
        info = info._replace(
            status=jnp.where(done, Status.CONVERGED, Status.RUNNING).astype(jnp.int32),
            stein_ratio=cloud.stein_ratio(),
            extra={"beta": old.beta},
        )
        memory = Tempering(old.broad, beta, jnp.ones((), bool), bending)
        return taken | ~old.started, memory, info

    @property
    def _ratio(self) -> float:
        return _FIRST_BETA ** (-1 / max(self.num_temperatures - 1, 1))

    def _lens(self, memory):
        return Tempered(memory.broad, self.breadth, memory.beta)


def _where(condition, new, old):
    return jax.tree_util.tree_map(lambda a, b: jnp.where(condition, a, b), new, old)


def _broad(frame, metric):
    """A frame with the same width in every direction, in units of a clump's width there.

    The Fisher information gives the clump's width. The clumps found so far may lie on a line, and
    others beside it.
    """
    values, vectors = metric.values, metric.vectors
    wider = jnp.sqrt(jnp.max(values) / values)
    return DenseFrame(
        frame.mean,
        frame.factor @ (vectors * wider) @ vectors.T,
        (vectors / wider) @ vectors.T @ frame.inverse,
    )
