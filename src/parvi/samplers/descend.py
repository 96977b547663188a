"""Descend: every particle climbs to high density alone, along its own gradient.

It is for targets with more hills than particles, such as the posteriors of neural networks: maps
that all particles share cannot fit networks that differ from each other. The steps are Adam's
(Kingma and Ba 2015), in units of the start's own spread in every coordinate. A particle takes
shorter steps once it gains little, and the stage ends when nearly all of them do.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.samplers.keys import cheap
from parvi.status import Status
from parvi.stopping import Never

# Decay of Adam's averages. The second forgets a wild start within a hundred steps.
_FIRST, _SECOND = 0.9, 0.99
# Steps between two looks at the gain of a particle, and the gain that counts as little, in nats
# per dimension: on a hill, all but d / 2 nats are gained before flights begin.
_LOOK, _LITTLE = 20, 0.02
# Factor of a step after little gain, and the share of the first step at which a particle rests.
_SHORTER, _REST = 0.5, 0.1
# Share of the particles that have to rest. Some may be slower than all others.
_MOST = 0.9
# Share of all steps over which steps fall to zero if they have not fallen before.
_FADE = 0.2


class Descending(NamedTuple):
    """Adam's averages, and how far each particle is.

    ``spread``: the unit of a step in every coordinate. ``shares``: the step of every particle over
    the first one. ``heights``: its log density at the last look.
    """

    first: Float[Array, "n d"]
    second: Float[Array, "n d"]
    spread: Float[Array, " d"]
    shares: Float[Array, " n"]
    heights: Float[Array, " n"]
    step: Int[Array, ""]


class Descend(AbstractSampler):
    """Lone descents of all particles. O(n d), one gradient a step.

    The first step spreads coordinates in which all particles start alike, as biases and precisions
    of networks often do. The particles are not a sample then: they are near the tops of their
    hills.

    Parameters
    ----------
    num_steps
        The largest number of steps.
    length
        The first step, in standard deviations of the start.
    """

    num_steps: int = 400
    length: float = 0.05
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 5000

    def __check_init__(self):
        if self.num_steps < 1 or not self.length > 0:
            raise ValueError(
                "num_steps must be at least 1 and length positive, got "
                f"{self.num_steps} and {self.length}."
            )

    @property
    def compares_densities(self):
        return True

    def init(self, key, cloud):
        zeros = jnp.zeros_like(cloud.particles)
        return Descending(
            first=zeros,
            second=zeros,
            spread=_spread(cloud.particles)[0],
            shares=jnp.ones_like(zeros[:, 0]),
            heights=cloud.log_densities,
            step=jnp.zeros((), jnp.int32),
        )

    def propose(self, key, cloud, memory):
        return jax.lax.cond(
            memory.step == 0,
            lambda: (_spread_out(cheap(key), cloud.particles), memory),
            lambda: self._descended(cloud, memory),
        )

    def _descended(self, cloud, memory):
        past = memory.step.astype(cloud.dtype)
        first = _FIRST * memory.first + (1 - _FIRST) * cloud.scores
        second = _SECOND * memory.second + (1 - _SECOND) * cloud.scores**2
        roots = jnp.sqrt(second / (1 - _SECOND**past)) + jnp.finfo(cloud.dtype).tiny
        fade = jnp.minimum(1.0, (1 - past / self.num_steps) / _FADE)
        lengths = self.length * fade * memory.shares[:, None] * memory.spread
        points = cloud.particles + lengths * (first / (1 - _FIRST**past)) / roots
        return points, memory._replace(first=first, second=second)

    def conclude(self, cloud, pending, arrived):
        # The run puts back points that are not finite; their particles go on with shorter steps.
        sound = jnp.isfinite(arrived.log_densities)
        sound &= jnp.all(jnp.isfinite(arrived.scores), axis=1)
        heights = jnp.where(sound, arrived.log_densities, cloud.log_densities)
        looks = pending.step % _LOOK == 0
        slow = looks & (heights - pending.heights < _LITTLE * cloud.shape[1]) & (pending.step > 0)
        shares = jnp.where(slow | ~sound, _SHORTER, 1.0) * pending.shares
        memory = pending._replace(
            first=jnp.where(sound[:, None], pending.first, 0.0),
            shares=shares.astype(cloud.dtype),
            heights=jnp.where(looks, heights, pending.heights),
            step=pending.step + 1,
        )
        resting = jnp.mean(shares < _REST) > _MOST
        done = resting | (memory.step >= self.num_steps)
        status = jnp.where(done, Status.CONVERGED, Status.RUNNING)
        info = Info.of(cloud, self.length * jnp.mean(pending.shares), status=status)
        return jnp.ones(cloud.shape[:1], bool), memory, info


def _spread(particles: Float[Array, "n d"]) -> tuple[Float[Array, " d"], Array]:
    """The particles' spread in every coordinate, and where there was none.

    There it is the geometric mean of the others, or 1 if all particles coincide.
    """
    spread = jnp.std(particles, axis=0)
    rounding = 10 * jnp.finfo(particles.dtype).eps
    alike = spread <= rounding * jnp.abs(jnp.mean(particles, axis=0))
    logs = jnp.where(alike, 0.0, jnp.log(jnp.where(alike, 1.0, spread)))
    middle = jnp.exp(jnp.sum(logs) / jnp.maximum(jnp.sum(~alike), 1))
    return jnp.where(alike, middle, spread).astype(particles.dtype), alike


def _spread_out(key, particles: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The particles, with noise in the coordinates in which all are alike."""
    if len(particles) == 1:
        return particles
    spread, alike = _spread(particles)
    noise = jax.random.normal(key, particles.shape, particles.dtype)
    return particles + jnp.where(alike, spread * noise, 0.0)
