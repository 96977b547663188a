"""Frames: coordinates z with x = m + L z, in which particles are standardised."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.cloud import AbstractLens, LogDensity, in_blocks


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

    def mean_squares(self, dx: Float[Array, "n d"]) -> Float[Array, " d"]:
        """The mean over n rows of the squares of L^-1 dx."""
        return jnp.mean(self.shrink(dx) ** 2, axis=0)

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
        """The frame of the particles' own mean and standard deviations."""
        return cls(jnp.mean(particles, axis=0), jnp.sqrt(_variances(particles)))

    def stretch(self, z):
        return z * self.scale

    def shrink(self, dx):
        return dx / self.scale

    # L is symmetric.
    pull, push = stretch, shrink


class DenseFrame(AbstractFrame):
    """L = the Cholesky factor of the particles' covariance. O(n d^2 + d^3)."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    inverse: Float[Array, "d d"]

    @classmethod
    def of(cls, particles: Float[Array, "n d"]) -> "DenseFrame":
        """The frame of the particles' mean and covariance, shrunk to its diagonal if singular."""
        num, dim = particles.shape
        mean = jnp.mean(particles, axis=0)
        sd = jnp.sqrt(_variances(particles))

        def share(block, weights):
            standard = (block.particles - mean) / sd
            return standard.T @ (weights[:, None] * standard)

        # Without blocks the standardised particles would be one more array of their size.
        correlation = in_blocks(particles, share)
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

    def mean_squares(self, dx):
        # This needs no second array of the size of dx.
        moment = dx.T @ dx / len(dx)
        return jnp.sum((self.inverse @ moment) * self.inverse, axis=1)


def tells_covariance(shape: tuple[int, ...]) -> bool:
    """Whether n particles in d dimensions, three for every two, determine their covariance."""
    num, dim = shape
    return num >= 1.5 * dim + 2


def own_frame(particles: Float[Array, "n d"]) -> AbstractFrame:
    """A dense frame if the particles determine their covariance, else a diagonal one."""
    return (DenseFrame if tells_covariance(particles.shape) else DiagonalFrame).of(particles)


def _variances(particles):
    """Variances over the particles, or 1 where all particles coincide."""
    mean = jnp.mean(particles, axis=0)
    variances = in_blocks(particles, lambda block, w: w @ (block.particles - mean) ** 2)
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


class InFrame(AbstractLens):
    """Shows a cloud in the coordinates of a frame."""

    frame: AbstractFrame

    def particles(self, particles):
        return self.frame.enter(particles)

    def scores(self, particles, scores):
        return self.frame.pull(scores)

    def log_density(self, log_density):
        return FramedDensity(self.frame, log_density)
