"""The protocol that everything else is built on.

    log density -> Cloud -> Sampler.propose -> the run evaluates, once -> Sampler.conclude -> Cloud

A *cloud* is what was found at the particles. A sampler proposes points and concludes from what was
found there; the run does the rest: it evaluates the log density, counts the gradients, and puts
back what was rejected or is not finite. All arrays are flat and unconstrained here: ``(n, d)``.
Pytrees and constraints end at the border, in ``parvi.targets``.
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
    """What a human needs to know of one step; the history is a stack of these.

    ``status`` is ``RUNNING`` until the sampler knows that it is done (``CONVERGED``) or that it
    failed. ``kl_rate`` is the estimate of dKL/dt along the step's velocity (NaN where a sampler
    has none). ``gradients`` counts evaluations: a sampler gives those that it made by itself, and
    the run adds the one that it makes at every proposed point.
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
        """What is known of a step from this cloud; in its dtype."""
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
        """The velocity at every particle; may use the cloud's scores instead of asking again."""
        return jax.vmap(self)(cloud.particles)

    def divergences(self, cloud: AbstractCloud) -> Float[Array, " n"]:
        """The divergence at every particle; exact, by forward mode unless overridden."""
        return jax.vmap(lambda x: jnp.trace(jax.jacfwd(self)(x)))(cloud.particles)

    def kl_rate(self, cloud: AbstractCloud) -> Float[Array, ""]:
        """dKL/dt along this velocity, were the particles these."""

        def rate(block, weights):
            return -weights @ gains(self.on(block), self.divergences(block), block.scores)

        return cloud.mean(rate)

    def length(self, cloud: AbstractCloud, displacement: Float[Array, "n d"]) -> Float[Array, ""]:
        """The length of a displacement in units of the particles' spread.

        The largest, over the coordinates, of its root mean square over the particles.
        """
        spread = jnp.std(cloud.particles, axis=0)
        root_mean_square = jnp.sqrt(jnp.mean(displacement**2, axis=0))
        # Particles that coincide have no spread to measure by: they move freely.
        relative = root_mean_square / jnp.where(spread > 0, spread, 1.0)
        return jnp.max(jnp.where(spread > 0, relative, 0.0))

    def precondition(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        """H^-1 v for the metric H that the velocity was fitted in (identity unless overridden)."""
        return vector


class AbstractJointVelocity(AbstractVelocity):
    """A velocity whose values and divergences are found together, for many points at once."""

    @abc.abstractmethod
    def with_divergences(
        self, points: Float[Array, "m d"]
    ) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
        """Values and divergences."""

    def __call__(self, x):
        return self.with_divergences(x[None])[0][0]

    def on(self, cloud):
        return self.with_divergences(cloud.particles)[0]

    def divergences(self, cloud):
        return self.with_divergences(cloud.particles)[1]


class Fit(NamedTuple):
    """A fitted velocity with its values at the cloud's particles, so that none asks twice."""

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


class AbstractField(eqx.Module):
    """Estimates a velocity from a cloud."""

    @property
    def asks_means_only(self) -> bool:
        """Whether of scores it asks ``cloud.mean`` only, so that they need not be kept."""
        return False

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], particles: Float[Array, "n d"]) -> PyTree[Array]:
        """What the field remembers from one fit to the next."""

    @abc.abstractmethod
    def fit(
        self, key: Key[Array, ""], cloud: AbstractCloud, memory: PyTree[Array]
    ) -> tuple[Fit, Any]:
        """Fit a velocity; returns it with the new memory."""


class AbstractStoppingRule(eqx.Module):
    """Says from the history of ``Info`` whether a run is done. Its memory is part of the carry."""

    @abc.abstractmethod
    def init(self, particles: Float[Array, "n d"]) -> PyTree[Array]:
        """What the rule remembers."""

    @abc.abstractmethod
    def update(
        self, info: Info, accepted: Bool[Array, ""], memory: PyTree[Array]
    ) -> tuple[Bool[Array, ""], Any]:
        """Whether the run is done after this step, which moved some particle or none."""


class AbstractSampler(eqx.Module):
    """Moves the whole ensemble: proposes points, and concludes from what was found there.

    ``stopping_rule`` ends a run, ``max_steps`` at the latest; a sampler that knows by itself when
    it is done says so by ``Info.status``. What it remembers from one step to the next is its own
    business: any pytree of arrays whose shapes and dtypes stay.
    """

    if TYPE_CHECKING:
        # A type checker takes abstract variables for fields that come before a sampler's own.
        @property
        def stopping_rule(self) -> AbstractStoppingRule: ...
        @property
        def max_steps(self) -> int: ...
    else:
        stopping_rule: eqx.AbstractVar[AbstractStoppingRule]
        max_steps: eqx.AbstractVar[int]

    @property
    def asks_means_only(self) -> bool:
        """Whether of scores it asks ``cloud.mean`` only, so that they need not be kept.

        Then very many particles take two arrays of their size and no more, at the price of a
        gradient whenever a mean is asked for.
        """
        return False

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], cloud: Cloud) -> PyTree[Array]:
        """The memory before the first step."""

    @abc.abstractmethod
    def propose(
        self, key: Key[Array, ""], cloud: Cloud, memory: PyTree[Array]
    ) -> tuple[Float[Array, "n d"] | Cloud, Any]:
        """Where to look next, and what ``conclude`` has to know.

        Points are evaluated by the run; a sampler that has found out by itself what is there gives
        a ``Cloud``.
        """

    @abc.abstractmethod
    def conclude(
        self, cloud: Cloud, pending: Any, arrived: Cloud
    ) -> tuple[Bool[Array, "..."], Any, Info]:
        """Which points are taken (all or none, or a flag for each), the new memory, and facts.

        The run puts back particles whose points are not taken. Points that are not finite are
        never taken: of a flag for each, such a one is dropped; a move of all that was taken as a
        whole ends the run as ``NONFINITE``.
        """
