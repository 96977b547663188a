"""Steppers: how far the particles move along a fitted velocity, and whether the move is kept.

A stepper proposes a displacement, the log density and scores are evaluated there once, and the
stepper judges the move. A rejected move leaves the particles and their scores unchanged, and the
next step tries a shorter one.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from parvi.cloud import AbstractCloud
from parvi.interface import Fit


class Proposal(NamedTuple):
    """A displacement of every particle, ``factor * direction``, and the step size behind it.

    The two are kept apart so that its length can be computed without one more array of its size.
    """

    direction: Float[Array, "n d"]
    factor: Float[Array, ""]
    step_size: Float[Array, ""]

    @property
    def displacement(self) -> Float[Array, "n d"]:
        """How far each particle moves."""
        return self.factor * self.direction


class Verdict(NamedTuple):
    """Whether a move is kept, and whether the stepper has nothing left to try."""

    accepted: Bool[Array, ""]
    exhausted: Bool[Array, ""]


class AbstractStepper(eqx.Module):
    """Turns a fitted velocity into a displacement."""

    @property
    def asks_means_only(self) -> bool:
        """Whether it moves along the velocity itself and uses scores only in ``cloud.mean``."""
        return False

    def init(self, particles: Float[Array, "n d"]) -> PyTree[Array]:
        """The memory before the first step: nothing unless overridden."""
        return ()

    @abc.abstractmethod
    def propose(
        self, step: Int[Array, ""], cloud: AbstractCloud, fit: Fit, memory: PyTree[Array]
    ) -> tuple[Proposal, Any]:
        """Propose a displacement for this step."""

    def judge(
        self, before: AbstractCloud, after: AbstractCloud, fit: Fit, memory: PyTree[Array]
    ) -> tuple[Verdict, Any]:
        """Decide whether the move is kept. By default, every finite move is."""
        return Verdict(after.finite, ~after.finite), memory


class Constant(AbstractStepper):
    """x <- x + eta f(x)."""

    step_size: Float[ArrayLike, ""] = 0.1

    def __check_init__(self):
        _check_positive("step_size", self.step_size)

    def propose(self, step, cloud, fit, memory):
        return _along(fit, self.step_size), memory


class Decaying(AbstractStepper):
    """eta_t = eta (1 + t / horizon)^-power."""

    step_size: Float[ArrayLike, ""] = 0.1
    horizon: float = 100.0
    power: float = 0.5

    def __check_init__(self):
        _check_positive("step_size", self.step_size)

    def propose(self, step, cloud, fit, memory):
        time = step.astype(fit.values.dtype) / self.horizon
        return _along(fit, self.step_size * (1 + time) ** -self.power), memory


class Curvature(AbstractStepper):
    """eta = factor / |H^-1 E[grad^2 log p]|, the largest curvature seen through the metric.

    This follows the remark after Theorem 1 of Dong et al. 2023. The largest eigenvalue is tracked
    by one power iteration per step (``warm_up`` of them at the first). Each is a Hessian-vector
    product averaged over the particles and costs about two gradient evaluations.

    Parameters
    ----------
    factor
        Share of the bound. The paper's analysis of the discrete case uses 1/2.
    max_step
        Upper limit of the step, for nearly flat densities.
    warm_up
        Number of power iterations before the first move.
    """

    factor: float = 0.5
    max_step: float = 1.0
    warm_up: int = 20

    def init(self, particles):
        dim, dtype = particles.shape[1], particles.dtype
        # A start with equal entries could be orthogonal to the top eigenvector.
        start = jnp.cos(jnp.arange(dim, dtype=dtype)) + 0.1
        return start / jnp.linalg.norm(start), jnp.zeros((), bool)

    def propose(self, step, cloud, fit, memory):
        direction, started = memory

        def iterate(_, carry):
            vector, _ = carry
            image = fit.velocity.precondition(cloud.mean_hessian_product(vector))
            norm = jnp.linalg.norm(image)
            return jnp.where(norm > 0, image / norm, vector), norm

        num = jnp.where(started, 1, self.warm_up)
        zero = jnp.zeros((), direction.dtype)
        direction, norm = jax.lax.fori_loop(0, num, iterate, (direction, zero))
        step_size = jnp.minimum(self.factor / norm, self.max_step)
        return _along(fit, step_size), (direction, jnp.ones((), bool))


class Optax(AbstractStepper):
    """Any optax transformation, with minus the velocity as its gradient.

    Parameters
    ----------
    transformation
        For instance ``optax.adam(0.1)``. Build it once, since a new object is compiled anew.
    factor
        Factor on its updates. If it is an array, it can change without a compilation, unlike a
        learning rate.
    """

    transformation: optax.GradientTransformation
    factor: Float[ArrayLike, ""] = 1.0

    def init(self, particles):
        return self.transformation.init(particles)

    def propose(self, step, cloud, fit, memory):
        updates, memory = self.transformation.update(-fit.values, memory, cloud.particles)
        updates = self.factor * updates
        scale = jnp.linalg.norm(fit.values)
        size = jnp.linalg.norm(updates) / jnp.where(scale > 0, scale, 1.0)
        return Proposal(updates, jnp.ones((), updates.dtype), size), memory


class TrustRegion(AbstractStepper):
    """Shortens the displacements of any stepper to a radius in units of the particles' spread.

    The length of a displacement is the root mean square over the particles of its largest
    coordinate, in standard deviations of that coordinate. A velocity that was fitted in a frame is
    measured in the coordinates of that frame. All particles are shortened by one factor, so that
    an affine move stays affine.

    Parameters
    ----------
    stepper
        The stepper whose moves are shortened.
    radius
        Radius in standard deviations of the particles.
    grow
        Factor by which the radius grows after each shortened move that is kept. After each move
        that is not kept, the radius falls by the square of this factor, but not below ``radius``.
        Values above 1 are only for a stepper that judges its moves: they let a cloud reach a
        target 10^5 of its own standard deviations away.
    """

    stepper: AbstractStepper
    radius: float = 1.0
    grow: float = 1.0

    @property
    def asks_means_only(self):
        return self.stepper.asks_means_only

    def init(self, particles):
        radius = jnp.asarray(self.radius, particles.dtype)
        return self.stepper.init(particles), radius, jnp.zeros((), bool)

    def propose(self, step, cloud, fit, memory):
        inner, radius, _ = memory
        (direction, whole, step_size), inner = self.stepper.propose(step, cloud, fit, inner)
        length = whole * fit.velocity.length(cloud, direction)
        share = jnp.minimum(1.0, radius / jnp.where(length > 0, length, 1.0))
        return Proposal(direction, share * whole, share * step_size), (inner, radius, share < 1)

    def judge(self, before, after, fit, memory):
        inner, radius, limited = memory
        verdict, inner = self.stepper.judge(before, after, fit, inner)
        longer = jnp.where(limited, radius * self.grow, radius)
        shorter = jnp.maximum(radius / self.grow**2, self.radius)
        return verdict, (inner, jnp.where(verdict.accepted, longer, shorter), limited)


class LineSearch(AbstractStepper):
    """A step size that grows while the fitted velocity still descends at the proposed particles.

    At the proposed particles the KL rate along the same velocity f, -E[f . s + div f], must not
    exceed ``slack`` times minus the old rate. For a quadratic KL the step is then at most
    1 + slack times the minimiser along f, and the KL decreases. A kept move multiplies the step
    by ``grow``; a rejected move, or one to non-finite densities, multiplies it by ``shrink``.

    Parameters
    ----------
    step_size
        The first step size.
    max_step, min_step
        Limits of the step size. Below ``min_step`` the run has stalled.
    grow, shrink, slack
        See above.
    """

    step_size: float = 0.5
    max_step: float = 0.5
    min_step: float = 1e-8
    grow: float = 1.2
    shrink: float = 0.5
    slack: float = 0.5

    @property
    def asks_means_only(self):
        return True

    def init(self, particles):
        return jnp.asarray(self.step_size, particles.dtype)

    def propose(self, step, cloud, fit, memory):
        return _along(fit, memory), memory

    def judge(self, before, after, fit, memory):
        rate = fit.velocity.kl_rate(after)
        # If scores are not held, a density that is not finite makes them and the rate NaN.
        finite = jnp.isfinite(rate) & (after.finite if after.is_held else True)
        # A rate at the level of rounding says nothing: at rest every finite move is kept.
        resolution = 8 * jnp.finfo(memory.dtype).eps * before.shape[1]
        known = jnp.abs(fit.kl_rate) > resolution
        accepted = finite & ((rate <= self.slack * jnp.abs(fit.kl_rate)) | ~known)
        longer = jnp.minimum(memory * self.grow, self.max_step)
        step_size = jnp.where(accepted, longer, memory * self.shrink)
        return Verdict(accepted, step_size < self.min_step), step_size


def _along(fit, step_size):
    step_size = jnp.asarray(step_size, fit.values.dtype)
    return Proposal(fit.values, step_size, step_size)


def _check_positive(name: str, value: Any) -> None:
    """Raise a ``ValueError`` unless a setting is a positive number, or not yet known."""
    if isinstance(value, jax.core.Tracer):
        return
    try:
        right = bool(np.all(np.asarray(value) > 0))
    except TypeError as error:
        raise ValueError(f"{name} must be a positive number, got {value!r}.") from error
    if not right:
        raise ValueError(f"{name} must be a positive number, got {value!r}.")
