"""Part: some particles descend alone, to tell whether they end on one hill or on many.

On one hill the scores of two ends differ by as much as the curvature between them says:

    -(s_i - s_j) . (x_i - x_j) = -(x_i - x_j) . H (x_i - x_j),

with H the mean Hessian between them, which is everywhere the same for a Gaussian. Ends on hills of
their own have scores near zero, however far apart they are, while each hill is steep in the
direction of the other. A flow that moves all particles by one map is at home on one hill only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from parvi.cloud import Cloud
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.samplers.apart import Aside
from parvi.samplers.descend import Descend
from parvi.status import Status
from parvi.stopping import Never

# Number of particles that descend, and their steps in one step of the run.
_NUM, _AT_ONCE = 24, 20
# Gradients for the curvatures: two products with a Hessian per pair, each about two gradients.
_CURVATURES = 4


class Parting(NamedTuple):
    """The particles of the trial with the memory of their descent, and the verdict.

    ``share``: the curvature between two ends over that at the ends, as a median over pairs.
    """

    descent: Aside
    step: Int[Array, ""]
    share: Float[Array, ""]


class Part(AbstractSampler):
    """Lone descents of a few particles, which leave the cloud as it is.

    The stage ends as ``NOT_AT_REST`` if the descents end on hills of their own, else as
    ``CONVERGED``.

    Parameters
    ----------
    descend
        How they descend.
    least
        The share of the curvature that two ends on one hill must show.
    """

    descend: Descend = Descend(num_steps=100)
    least: float = 0.5
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 5000

    @property
    def asks_means_only(self):
        return True

    @property
    def compares_densities(self):
        return True

    def init(self, key, cloud):
        few = cloud.some(_NUM)
        zero = jnp.zeros((), jnp.int32)
        nan = jnp.full((), jnp.nan, cloud.dtype)
        return Parting(Aside.begun(self.descend, key, few), zero, nan)

    def propose(self, key, cloud, memory):
        def descended(i, memory):
            own = jax.random.fold_in(key, i)
            descent, _ = memory.descent.stepped(self.descend, own, cloud.log_density)
            return memory._replace(descent=descent, step=memory.step + 1)

        memory = jax.lax.fori_loop(0, _AT_ONCE, descended, memory)
        share = jax.lax.cond(
            memory.step >= self.descend.num_steps,
            lambda: _share(Cloud.of(memory.descent.place, cloud.log_density)),
            lambda: memory.share,
        )
        return cloud, memory._replace(share=share)

    def conclude(self, cloud, pending, arrived):
        num = len(pending.descent.place.particles)
        done = pending.step >= self.descend.num_steps
        # A comparison with NaN is false: ends that coincide are on one hill.
        status = jnp.where(pending.share < self.least, Status.NOT_AT_REST, Status.CONVERGED)
        info = Info.of(
            cloud,
            jnp.full((), jnp.nan),
            status=jnp.where(done, status, Status.RUNNING),
            gradients=num * (_AT_ONCE + jnp.where(done, _CURVATURES, 0)),
            extra={"share": pending.share},
        )
        return jnp.zeros((), bool), pending, info


def _share(ends: Cloud) -> Float[Array, ""]:
    """The median curvature between neighbours over the smaller of those at the two.

    On a hill that is steeper on one side, the curvature between them is above the smaller.
    """
    apart = ends.particles - jnp.roll(ends.particles, 1, axis=0)
    between = -jnp.sum((ends.scores - jnp.roll(ends.scores, 1, axis=0)) * apart, axis=1)

    def curvatures(particles):
        # One after another: a product takes several arrays of a particle's rows.
        products = jax.lax.map(lambda pair: ends.hessian_product(*pair), (particles, apart))
        return -jnp.sum(products * apart, axis=1)

    here, there = curvatures(ends.particles), curvatures(jnp.roll(ends.particles, 1, axis=0))
    least = jnp.maximum(jnp.minimum(here, there), jnp.finfo(between.dtype).tiny)
    return jnp.median(between / least)
