"""The protocol that everything else is built on.

    log density -> Cloud -> Sampler.propose -> the run evaluates, once -> Sampler.conclude -> Cloud

A *cloud* is the particles with their scores and log densities. A sampler proposes points and
concludes from the cloud that is found there. The run does the rest: it evaluates the log density,
counts the gradients, and puts back points that were rejected or are not finite. All arrays here
are flat and unconstrained, ``(n, d)``; ``parvi.targets`` handles pytrees and constraints.
"""

import abc
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from parvi.cloud import AbstractCloud, Cloud
from parvi.status import Status


class Info(NamedTuple):
    """What a user needs to know about one step; the history is a stack of these.

    ``status`` is ``RUNNING`` until the sampler knows that it is done (``CONVERGED``) or that it
    failed. ``kl_rate`` is the estimate of dKL/dt along the step's velocity (NaN for a sampler
    without one). ``gradients`` counts evaluations: a sampler gives those that it made itself, and
    the run adds its own at the proposed points.
    """

    status: Int[Array, ""]
    kl_rate: Float[Array, ""]
    stein_ratio: Float[Array, ""]
    step_size: Float[Array, ""]
    gradients: Int[Array, ""]
    extra: dict[str, Array]

    @classmethod
    def of(
        cls,
        cloud: AbstractCloud,
        step_size: Float[Array, ""],
        *,
        status: Any = Status.RUNNING,
        kl_rate: Any = jnp.nan,
        stein_ratio: Any = None,
        gradients: Any = 0,
        extra: dict[str, Array] | None = None,
    ) -> "Info":
        """The info of a step from this cloud, in its dtype."""
        dtype = cloud.dtype
        ratio = cloud.stein_ratio() if stein_ratio is None else stein_ratio
        return cls(
            jnp.asarray(status, jnp.int32),
            jnp.asarray(kl_rate, dtype),
            jnp.asarray(ratio, dtype),
            jnp.asarray(step_size, dtype),
            jnp.asarray(gradients, jnp.int32),
            {} if extra is None else extra,
        )


class AbstractVelocity(eqx.Module):
    """A vector field ``x -> dx``, itself a pytree: a stack of velocities is a transport map."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The velocity at one point."""

    def on(self, cloud: AbstractCloud) -> Float[Array, "n d"]:
        """The velocity at every particle; may use the cloud's scores instead of new gradients."""
        return jax.vmap(self)(cloud.particles)

    def divergences(self, cloud: AbstractCloud) -> Float[Array, " n"]:
        """The exact divergence at every particle, by forward mode unless overridden."""
        return jax.vmap(lambda x: jnp.trace(jax.jacfwd(self)(x)))(cloud.particles)

    def kl_rate(self, cloud: AbstractCloud) -> Float[Array, ""]:
        """dKL/dt along this velocity at these particles."""

        def rate(block, weights):
            return -weights @ gains(self.on(block), self.divergences(block), block.scores)

        return cloud.mean(rate)

    def length(self, cloud: AbstractCloud, displacement: Float[Array, "n d"]) -> Float[Array, ""]:
        """The length of a displacement in units of the particles' spread.

        It is the largest, over the coordinates, of the root mean squares over the particles.
        """
        spread = jnp.std(cloud.particles, axis=0)
        root_mean_square = jnp.sqrt(jnp.mean(displacement**2, axis=0))
        # Particles that coincide have no spread to measure with, so they move freely.
        relative = root_mean_square / jnp.where(spread > 0, spread, 1.0)
        return jnp.max(jnp.where(spread > 0, relative, 0.0))

    def precondition(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        """H^-1 v for the metric H that the velocity was fitted in (identity unless overridden)."""
        return vector


class AbstractJointVelocity(AbstractVelocity):
    """A velocity that computes values and divergences together, for many points at once."""

    @abc.abstractmethod
    def with_divergences(
        self, points: Float[Array, "m d"]
    ) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
        """The values and the divergences at the points."""

    def __call__(self, x):
        return self.with_divergences(x[None])[0][0]

    def on(self, cloud):
        return self.with_divergences(cloud.particles)[0]

    def divergences(self, cloud):
        return self.with_divergences(cloud.particles)[1]


class Fit(NamedTuple):
    """A fitted velocity with its values at the particles, so that none is computed twice."""

    velocity: AbstractVelocity
    values: Float[Array, "n d"]
    kl_rate: Float[Array, ""]
    extra: dict[str, Array]


def gains(
    values: Float[Array, "n d"], divergences: Float[Array, " n"], scores: Float[Array, "n d"]
) -> Float[Array, " n"]:
    """f . grad log p + div f at each particle."""
    return jnp.sum(values * scores, axis=1) + divergences


def kl_rate(
    values: Float[Array, "n d"], divergences: Float[Array, " n"], scores: Float[Array, "n d"]
) -> Float[Array, ""]:
    """dKL/dt = -E[f . grad log p + div f] along the velocity f (Dong et al. 2023, Eq. 3)."""
    return -jnp.mean(gains(values, divergences, scores))


def default_of(part: Any) -> Any:
    """A field of a module whose default is this part; None stands for the default too."""
    return eqx.field(default=part, converter=lambda given: part if given is None else given)


class AbstractField(eqx.Module):
    """Estimates a velocity from a cloud."""

    @property
    def asks_means_only(self) -> bool:
        """Whether it uses scores only through ``cloud.mean``, so that they need not be kept."""
        return False

    def init(self, key: Key[Array, ""], particles: Float[Array, "n d"]) -> PyTree[Array]:
        """The memory before the first fit: nothing unless overridden."""
        return ()

    @abc.abstractmethod
    def fit(
        self, key: Key[Array, ""], cloud: AbstractCloud, memory: PyTree[Array]
    ) -> tuple[Fit, Any]:
        """Fit a velocity, and return it with the new memory."""


def reported(reports: dict[str, Any], kind: type) -> Any:
    """The last report of this kind, or None."""
    return next((r for r in reversed(reports.values()) if isinstance(r, kind)), None)


def required(reports: dict[str, Any], kind: type, stage: str, before: str) -> Any:
    """The last report of this kind, which a stage ``before`` this one makes."""
    found = reported(reports, kind)
    if found is None:
        raise ValueError(f"{stage} needs a stage {before} before it in its Sequence.")
    return found


class AbstractStoppingRule(eqx.Module):
    """Decides from each step's ``Info`` whether a run is done. Its memory is part of the carry."""

    @abc.abstractmethod
    def init(self, particles: Float[Array, "n d"]) -> PyTree[Array]:
        """The memory before the first step."""

    @abc.abstractmethod
    def update(
        self, info: Info, accepted: Bool[Array, ""], memory: PyTree[Array]
    ) -> tuple[Bool[Array, ""], Any]:
        """Whether the run is done after this step; ``accepted`` says if any particle moved."""


class AbstractSampler(eqx.Module):
    """Moves the whole ensemble: proposes points, and concludes from what is found there.

    ``stopping_rule`` ends a run, after ``max_steps`` at the latest. A sampler that knows by itself
    when it is done reports it in ``Info.status``. Its memory from one step to the next may be any
    pytree of arrays with fixed shapes and dtypes.
    """

    if TYPE_CHECKING:
        # A type checker would take abstract variables for fields before the sampler's own.
        @property
        def stopping_rule(self) -> AbstractStoppingRule: ...
        @property
        def max_steps(self) -> int: ...
    else:
        stopping_rule: eqx.AbstractVar[AbstractStoppingRule]
        max_steps: eqx.AbstractVar[int]

    @property
    def asks_means_only(self) -> bool:
        """Whether it uses scores only through ``cloud.mean``, so that they need not be kept.

        Very many particles then take only two arrays of their size, at the price of a gradient
        for every mean.
        """
        return False

    @property
    def compares_densities(self) -> bool:
        """Whether it compares log densities of different steps, which must then stay the same.

        A sequence with such a stage sees all rows of a ``MiniBatch``, or subsets that stay the same
        for a round. In a sequence such a stage is left out if there is no such log density, and on
        several processes.
        """
        return False

    def told(self, start: Float[Array, "m d"], reports: dict[str, Any]) -> "AbstractSampler":
        """The sampler, given where some particles of the run began and what stages reported."""
        return self

    def report(self, memory: PyTree[Array]) -> Any:
        """What the run and later stages should know when the stage is over, by its name."""
        return None

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], cloud: Cloud) -> PyTree[Array]:
        """The memory before the first step."""

    @abc.abstractmethod
    def propose(
        self, key: Key[Array, ""], cloud: Cloud, memory: PyTree[Array]
    ) -> tuple[Float[Array, "n d"] | Cloud, Any]:
        """The points to evaluate next, and what ``conclude`` has to know.

        The run evaluates the points. A sampler that has evaluated them itself returns a ``Cloud``.
        """

    @abc.abstractmethod
    def conclude(
        self, cloud: Cloud, pending: Any, arrived: Cloud
    ) -> tuple[Bool[Array, "..."], Any, Info]:
        """Which points are taken (one flag for all, or one for each), the new memory, and info.

        The run puts back particles whose points are not taken. Points that are not finite are
        never taken: with a flag for each, only those are dropped; with one flag for all, taking
        them ends the run as ``NONFINITE``.
        """
