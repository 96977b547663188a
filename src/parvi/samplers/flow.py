"""Flow: any field and any stepper make a sampler.

    x <- x + eta f(x)

A rejected move costs no second evaluation, because the cloud keeps the scores at the particles.
With mini-batches, each evaluation sees the batch of its own step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from parvi.interface import AbstractField, AbstractSampler, AbstractStoppingRule, Fit, Info
from parvi.status import Status
from parvi.steppers import AbstractStepper, Proposal
from parvi.stopping import KLRate


class FlowMemory(NamedTuple):
    """The number of steps made, and the memories of the field and the stepper."""

    step: Int[Array, ""]
    field: PyTree[Array]
    stepper: PyTree[Array]


class _Pending(NamedTuple):
    fit: Fit
    proposal: Proposal
    stepper: Any
    old: FlowMemory
    field: Any


class Flow(AbstractSampler):
    """Moves the particles along a field.

    Parameters
    ----------
    field
        Fits the velocity.
    stepper
        Chooses the step, and accepts or rejects it.
    stopping_rule
        Decides when the run is done.
    max_steps
        The largest number of steps.
    """

    field: AbstractField
    stepper: AbstractStepper
    stopping_rule: AbstractStoppingRule = KLRate()
    max_steps: int = 1000

    def __check_init__(self):
        if not isinstance(self.field, AbstractField):
            raise ValueError(
                f"Flow(field, stepper): the first argument must be a field, got {self.field!r}."
            )
        if not isinstance(self.stepper, AbstractStepper):
            raise ValueError(
                "Flow(field, stepper): the second argument must be a stepper such as "
                f"parvi.steppers.Constant(0.1), got {self.stepper!r}."
            )

    @property
    def asks_means_only(self):
        return self.field.asks_means_only and self.stepper.asks_means_only

    def init(self, key, cloud):
        particles = cloud.particles
        return FlowMemory(
            jnp.zeros((), jnp.int32), self.field.init(key, particles), self.stepper.init(particles)
        )

    def propose(self, key, cloud, memory):
        fit, field = self.field.fit(key, cloud, memory.field)
        proposal, stepper = self.stepper.propose(memory.step, cloud, fit, memory.stepper)
        if cloud.is_held:
            points = cloud.particles + proposal.displacement
        else:

            def moved(block):
                return block.particles + proposal.factor * fit.velocity.on(block)

            points = cloud.values(moved, onto=fit.values)
        return points, _Pending(fit, proposal, stepper, memory, field)

    def conclude(self, cloud, pending, arrived):
        fit, proposal, stepper, old, field = pending
        verdict, stepper = self.stepper.judge(cloud, arrived, fit, stepper)

        def keep(new, before):
            return jnp.where(verdict.accepted, new, before)

        # Without held scores, the stepper has seen a NaN rate if a point is not finite.
        finite = arrived.finite if arrived.is_held else jnp.ones((), bool)
        failure = jnp.where(finite, Status.STALLED, Status.NONFINITE)
        info = Info.of(
            cloud,
            proposal.step_size,
            status=jnp.where(verdict.exhausted, failure, Status.RUNNING),
            kl_rate=fit.kl_rate,
            # Scores that are not held were computed once more for the fit.
            gradients=0 if cloud.is_held else cloud.shape[0],
            extra=fit.extra,
        )
        # A fit from finite scores may still overflow, so its memory is kept only with its move.
        field = jax.tree_util.tree_map(keep, field, old.field)
        return verdict.accepted, FlowMemory(old.step + 1, field, stepper), info
