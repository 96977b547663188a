"""The protocol that everything else is built on.

    log density -> Cloud -> Field.fit -> velocity -> Sampler.step -> State

All arrays are flat and unconstrained here: ``(n, d)``. Pytrees and constraints end at the
border, in ``parvi.targets``.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from parvi.evaluation import values_and_scores

LogDensity = Callable[[Float[Array, " d"]], Float[Array, ""]]


class State(NamedTuple):
    """What the next step needs, and nothing else: the carry of the compiled loop."""

    step: Int[Array, ""]
    particles: Float[Array, "n d"]
    memory: PyTree[Array]


class Info(NamedTuple):
    """What a human needs to know of one step; the history is a stack of these.

    ``kl_rate`` is the estimate of dKL/dt along the step's velocity (NaN where a sampler has
    none), ``status`` is ``RUNNING`` unless the sampler knows that it failed.
    """

    status: Int[Array, ""]
    kl_rate: Float[Array, ""]
    stein_ratio: Float[Array, ""]
    step_size: Float[Array, ""]
    accepted: Bool[Array, ""]
    extra: dict[str, Array]


class Cloud(eqx.Module):
    """All that a field may know: the particles, their scores, and the log density itself."""

    particles: Float[Array, "n d"]
    scores: Float[Array, "n d"]
    log_densities: Float[Array, " n"]
    log_density: LogDensity

    @classmethod
    def at(cls, log_density: LogDensity, particles: Float[Array, "n d"]) -> "Cloud":
        """Evaluate log density and score at every particle, once."""
        values, scores = values_and_scores(log_density, particles)
        return cls(particles, scores, values, log_density)

    @property
    def finite(self) -> Bool[Array, ""]:
        """Whether every log density and every score is finite."""
        return jnp.all(jnp.isfinite(self.scores)) & jnp.all(jnp.isfinite(self.log_densities))

    def mean_hessian_product(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[grad^2 log p] v over the particles: one forward-over-reverse pass, O(n d) memory."""

        def product(x):
            return jax.jvp(jax.grad(self.log_density), (x,), (vector,))[1]

        return jnp.mean(jax.vmap(product)(self.particles), axis=0)

    def stein_ratio(self) -> Float[Array, ""]:
        """-E[(x - mean) . score] / d, which is 1 at the target and falls with a collapse."""
        centred = self.particles - jnp.mean(self.particles, axis=0)
        return -jnp.mean(jnp.sum(centred * self.scores, axis=1)) / self.particles.shape[1]


class AbstractVelocity(eqx.Module):
    """A vector field ``x -> dx``, itself a pytree: a stack of velocities is a transport map."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The velocity at one point."""

    def on(self, cloud: Cloud) -> Float[Array, "n d"]:
        """The velocity at every particle; may use the cloud's scores instead of asking again."""
        return jax.vmap(self)(cloud.particles)

    def divergences(self, cloud: Cloud) -> Float[Array, " n"]:
        """The divergence at every particle; exact, by forward mode unless overridden."""
        return jax.vmap(lambda x: jnp.trace(jax.jacfwd(self)(x)))(cloud.particles)

    def precondition(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        """H^-1 v for the metric H that the velocity was fitted in (identity unless overridden)."""
        return vector


class Fit(NamedTuple):
    """A fitted velocity with its values at the cloud's particles, so that none asks twice."""

    velocity: AbstractVelocity
    values: Float[Array, "n d"]
    kl_rate: Float[Array, ""]
    extra: dict[str, Array]


def kl_rate(
    values: Float[Array, "n d"], divergences: Float[Array, " n"], scores: Float[Array, "n d"]
) -> Float[Array, ""]:
    """dKL/dt = -E[f . grad log p + div f] along the velocity f (Dong et al. 2023, Eq. 3)."""
    return -jnp.mean(jnp.sum(values * scores, axis=1) + divergences)


class AbstractField(eqx.Module):
    """Estimates a velocity from a cloud."""

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], particles: Float[Array, "n d"]) -> PyTree[Array]:
        """What the field remembers from one fit to the next."""

    @abc.abstractmethod
    def fit(self, key: Key[Array, ""], cloud: Cloud, memory: PyTree[Array]) -> tuple[Fit, Any]:
        """Fit a velocity; returns it with the new memory."""


class AbstractStoppingRule(eqx.Module):
    """Says from the history of ``Info`` whether a run is done. Its memory is part of the carry."""

    @abc.abstractmethod
    def init(self, particles: Float[Array, "n d"]) -> PyTree[Array]:
        """What the rule remembers."""

    @abc.abstractmethod
    def update(self, info: Info, memory: PyTree[Array]) -> tuple[Bool[Array, ""], Any]:
        """Whether the run is done after this step."""


class AbstractSampler(eqx.Module):
    """All that the driver knows. Keep what the next step needs in ``State``, the rest in ``Info``.

    ``stopping_rule`` ends a run for which no number of steps was asked, ``max_steps`` at the
    latest. ``State.particles`` are always the last ones with finite log densities and scores.
    """

    stopping_rule: eqx.AbstractVar[AbstractStoppingRule]
    max_steps: eqx.AbstractVar[int]

    @abc.abstractmethod
    def init(
        self, key: Key[Array, ""], particles: Float[Array, "n d"], log_density: LogDensity
    ) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def step(
        self, key: Key[Array, ""], state: State, log_density: LogDensity
    ) -> tuple[State, Info]:
        """Move the whole ensemble once."""

    @property
    def brief(self) -> bool:
        """Whether runs are of so few steps that on small problems they end before a compiler."""
        return False

    def keeps_finite(self, particles: Float[Array, "n d"]) -> bool:
        """Whether ``step`` itself throws away moves to particles that are not finite.

        Then the loop does not: to fall back on the old particles takes an array of their size.
        """
        return False

    def onward(self, state: State) -> "tuple[AbstractSampler, State]":
        """The next stage, for a sampler whose ``Info`` said ``PAUSED``, and its state.

        A stage is a program of its own: what few runs need is compiled for those only. The step
        that paused has changed nothing, its number included, and is done again by the next stage.
        """
        raise NotImplementedError(f"{type(self).__name__} has one stage.")


class AbstractTwoPartSampler(AbstractSampler):
    """A sampler that asks the log density once a step, in the middle of it.

    What is before and what is after can then be programs of their own: around a log density that
    takes long they need not be fast, and are compiled sooner.
    """

    @abc.abstractmethod
    def begin(self, key: Key[Array, ""], cloud: Cloud) -> State:
        """The state before the first step, from what was found at the first particles."""

    @abc.abstractmethod
    def propose(
        self, key: Key[Array, ""], state: State, log_density: LogDensity
    ) -> tuple[Float[Array, "n d"], Any]:
        """Where the log density is asked for next, and what ``conclude`` has to know."""

    @abc.abstractmethod
    def conclude(self, state: State, proposal: Any, proposed: Cloud) -> tuple[State, Info]:
        """The end of the step, with what was found there."""

    def init(self, key, particles, log_density):
        return self.begin(key, Cloud.at(log_density, particles))

    def step(self, key, state, log_density):
        moved, proposal = self.propose(key, state, log_density)
        return self.conclude(state, proposal, Cloud.at(log_density, moved))
