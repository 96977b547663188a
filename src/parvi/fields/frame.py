"""Fields that see standardised particles.

With x = m + L z, a velocity f(x) = L g(z) has div_x f = div_z g, the score in z is L^T s, and the
metric is L^T H L: the whole fit may be done in z. With L L^T the covariance of the particles the
method becomes affine invariant, and one learning rate fits every problem.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.interface import AbstractField, AbstractVelocity, Cloud, Fit, LogDensity


class AbstractFrame(eqx.Module):
    """Coordinates z in which x = mean + L z."""

    mean: eqx.AbstractVar[Float[Array, " d"]]

    @abc.abstractmethod
    def stretch(self, z: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """L z: directions from the frame to the original coordinates."""

    @abc.abstractmethod
    def pull(self, s: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """L^T s: scores from the original coordinates to the frame."""

    @abc.abstractmethod
    def shrink(self, dx: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """L^-1 dx: directions from the original coordinates to the frame."""

    @abc.abstractmethod
    def push(self, s: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """L^-T s: scores from the frame to the original coordinates."""

    def enter(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Points from the original coordinates to the frame."""
        return self.shrink(x - self.mean)

    def leave(self, z: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Points from the frame to the original coordinates."""
        return self.mean + self.stretch(z)


class DiagonalFrame(AbstractFrame):
    """L = diag(standard deviations). O(n d)."""

    mean: Float[Array, " d"]
    scale: Float[Array, " d"]

    @classmethod
    def of(cls, particles: Float[Array, "n d"]) -> "DiagonalFrame":
        """The particles' own mean and standard deviations."""
        return cls(jnp.mean(particles, axis=0), jnp.sqrt(_variances(particles)))

    def stretch(self, z):
        return z * self.scale

    def pull(self, s):
        return s * self.scale

    def shrink(self, dx):
        return dx / self.scale

    def push(self, s):
        return s / self.scale


class DenseFrame(AbstractFrame):
    """L = the Cholesky factor of the particles' covariance. O(n d^2 + d^3)."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    inverse: Float[Array, "d d"]

    @classmethod
    def of(cls, particles: Float[Array, "n d"]) -> "DenseFrame":
        """The particles' own mean and covariance; shrunk to its diagonal where singular."""
        num, dim = particles.shape
        mean = jnp.mean(particles, axis=0)
        sd = jnp.sqrt(_variances(particles))
        standard = (particles - mean) / sd
        correlation = standard.T @ standard / num
        intensity = _shrinkage(correlation, num) if num < dim + 2 else 0.0
        # The jitter keeps the factorisation alive for particles in a subspace; it is far below
        # what the covariance of n particles can resolve.
        jitter = 100 * jnp.finfo(particles.dtype).eps
        identity = jnp.eye(dim, dtype=particles.dtype)
        correlation = (1 - intensity) * correlation + (intensity + jitter) * identity
        factor = jnp.linalg.cholesky(correlation)
        inverse = jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
        return cls(mean, sd[:, None] * factor, inverse / sd)

    def stretch(self, z):
        return z @ self.factor.T

    def pull(self, s):
        return s @ self.factor

    def shrink(self, dx):
        return dx @ self.inverse.T

    def push(self, s):
        return s @ self.inverse


def tells_covariance(particles: Float[Array, "n d"]) -> bool:
    """Whether there are enough particles, three for two dimensions, for their covariance."""
    num, dim = particles.shape
    return num >= 1.5 * dim + 2


def own_frame(particles: Float[Array, "n d"]) -> AbstractFrame:
    """Dense where the particles can tell their covariance, else diagonal."""
    return (DenseFrame if tells_covariance(particles) else DiagonalFrame).of(particles)


def _variances(particles):
    """Variances over the particles, 1 where all particles coincide."""
    variances = jnp.var(particles, axis=0)
    return jnp.where(variances > 0, variances, 1.0)


def _shrinkage(correlation, num):
    """Weight of the diagonal: oracle approximating shrinkage (Chen et al. 2010, Eq. 23)."""
    dim = correlation.shape[0]
    square = jnp.sum(correlation**2)
    above = (1 - 2 / dim) * square + dim**2
    below = (num + 1 - 2 / dim) * jnp.maximum(square - dim, jnp.finfo(correlation.dtype).tiny)
    return jnp.minimum(1.0, above / below)


class FramedDensity(eqx.Module):
    """The log density of z, up to the constant log |det L|."""

    frame: AbstractFrame
    log_density: LogDensity

    def __call__(self, z):
        return self.log_density(self.frame.leave(z))


class FramedVelocity(AbstractVelocity):
    """A velocity that was fitted in a frame: f(x) = L g(L^-1 (x - m))."""

    frame: AbstractFrame
    inner: AbstractVelocity

    def __call__(self, x):
        return self.frame.stretch(self.inner(self.frame.enter(x)))

    def on(self, cloud):
        return self.frame.stretch(self.inner.on(_enter(self.frame, cloud)))

    def divergences(self, cloud):
        return self.inner.divergences(_enter(self.frame, cloud))

    def precondition(self, vector):
        return self.frame.stretch(self.inner.precondition(self.frame.pull(vector)))


def _enter(frame: AbstractFrame, cloud: Cloud) -> Cloud:
    return Cloud(
        frame.enter(cloud.particles),
        frame.pull(cloud.scores),
        cloud.log_densities,
        FramedDensity(frame, cloud.log_density),
    )


class Whitened(AbstractField):
    """Any field, fitted where the particles have mean 0 and covariance I.

    Affine invariant where the field inside does not care for rotations (``Linear`` with
    ``Identity``, ``Hessian``, ``RegressedHessian``; SVGD); others depend on the order of the
    coordinates through the Cholesky factor. O(n d^2 + d^3).
    """

    field: AbstractField

    def init(self, key, particles):
        return self.field.init(key, DenseFrame.of(particles).enter(particles))

    def fit(self, key, cloud, memory):
        return _fit_in(DenseFrame.of(cloud.particles), self.field, key, cloud, memory)


class Standardised(AbstractField):
    """Any field, fitted where each coordinate has mean 0 and variance 1. O(n d)."""

    field: AbstractField

    def init(self, key, particles):
        return self.field.init(key, DiagonalFrame.of(particles).enter(particles))

    def fit(self, key, cloud, memory):
        return _fit_in(DiagonalFrame.of(cloud.particles), self.field, key, cloud, memory)


def _fit_in(frame, field, key, cloud, memory):
    inner, memory = field.fit(key, _enter(frame, cloud), memory)
    velocity = FramedVelocity(frame, inner.velocity)
    return Fit(velocity, frame.stretch(inner.values), inner.kl_rate, inner.extra), memory
