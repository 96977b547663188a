"""Flow: any field and any stepper make a sampler.

    x <- x + eta f(x)

The log density and its gradient are evaluated once a step, at the proposed particles, and kept
with them: a rejected move costs no second evaluation, and what is in the state is always finite.
With mini-batches each evaluation sees the batch of its own step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from parvi.interface import (
    AbstractField,
    AbstractSampler,
    AbstractStoppingRule,
    Cloud,
    Info,
    State,
)
from parvi.samplers.steppers import AbstractStepper
from parvi.samplers.stopping import KLRate
from parvi.status import Status


class FlowMemory(NamedTuple):
    """What is known at the particles, and what the parts remember."""

    scores: Float[Array, "n d"]
    log_densities: Float[Array, " n"]
    field: PyTree[Array]
    stepper: PyTree[Array]


class Flow(AbstractSampler):
    """Moves the particles along a field.

    Parameters
    ----------
    field
        Gives the velocity.
    stepper
        Gives the step, and judges it.
    stopping_rule
        Ends a run for which no number of steps was asked.
    max_steps
        Ends it at the latest.
    """

    field: AbstractField
    stepper: AbstractStepper
    stopping_rule: AbstractStoppingRule
    max_steps: int

    def __init__(
        self,
        field: AbstractField,
        stepper: AbstractStepper,
        stopping_rule: AbstractStoppingRule | None = None,
        max_steps: int = 1000,
    ):
        self.field = field
        self.stepper = stepper
        self.stopping_rule = KLRate() if stopping_rule is None else stopping_rule
        self.max_steps = max_steps

    def init(self, key, particles, log_density):
        cloud = Cloud.at(log_density, particles)
        memory = FlowMemory(
            cloud.scores,
            cloud.log_densities,
            self.field.init(key, particles),
            self.stepper.init(particles),
        )
        return State(jnp.zeros((), jnp.int32), particles, memory)

    def step(self, key, state, log_density):
        memory = state.memory
        cloud = Cloud(state.particles, memory.scores, memory.log_densities, log_density)
        fit, field = self.field.fit(key, cloud, memory.field)
        proposal, stepper = self.stepper.propose(state.step, cloud, fit, memory.stepper)
        proposed = Cloud.at(log_density, state.particles + proposal.displacement)
        verdict, stepper = self.stepper.judge(cloud, proposed, fit, stepper)

        def keep(new, old):
            return jnp.where(verdict.accepted, new, old)

        failure = jnp.where(proposed.finite, Status.STALLED, Status.NONFINITE)
        info = Info(
            status=jnp.where(verdict.exhausted, failure, Status.RUNNING).astype(jnp.int32),
            kl_rate=fit.kl_rate,
            stein_ratio=cloud.stein_ratio(),
            step_size=proposal.step_size,
            accepted=verdict.accepted,
            extra=fit.extra,
        )
        memory = FlowMemory(
            keep(proposed.scores, cloud.scores),
            keep(proposed.log_densities, cloud.log_densities),
            # A fit from finite scores may still overflow; its memory is kept only with its move.
            jax.tree_util.tree_map(keep, field, memory.field),
            stepper,
        )
        return State(state.step + 1, keep(proposed.particles, cloud.particles), memory), info
