"""Frames: coordinates z with x = m + L z, in which particles are standardised."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.cloud import AbstractLens, LogDensity, in_blocks

# Flights use a dense frame from this many particles per dimension on.
_PER_DIMENSION = 3


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


class AbstractGaussianFrame(AbstractFrame):
    """A frame in which N(mean, L L^T) is N(0, I)."""

    @property
    @abc.abstractmethod
    def sds(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate."""

    @property
    @abc.abstractmethod
    def log_volume(self) -> Float[Array, ""]:
        """log |det L|."""


class DiagonalFrame(AbstractGaussianFrame):
    """L = diag(standard deviations). O(n d)."""

    mean: Float[Array, " d"]
    scale: Float[Array, " d"]

    @classmethod
    def of(cls, particles: Float[Array, "n d"]) -> "DiagonalFrame":
        """The frame of the particles' own mean and standard deviations."""
        return cls(jnp.mean(particles, axis=0), jnp.sqrt(_variances(particles)))

    @property
    def sds(self):
        return self.scale

    @property
    def log_volume(self):
        return jnp.sum(jnp.log(self.scale))

    def stretch(self, z):
        return z * self.scale

    def shrink(self, dx):
        return dx / self.scale

    # L is symmetric.
    pull, push = stretch, shrink


class DenseFrame(AbstractGaussianFrame):
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

    @property
    def sds(self):
        return jnp.sqrt(jnp.sum(self.factor**2, axis=1))

    @property
    def log_volume(self):
        return jnp.linalg.slogdet(self.factor)[1]

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


class LowRankFrame(AbstractGaussianFrame):
    """L = diag(scale) (I + U (R - I) U^T), with orthonormal columns U and roots R. O(n d k).

    It is for fewer particles than would determine a covariance. The particles and their scores
    together say more: for a Gaussian of covariance C the covariance of the scores is C^-1, and
    both covariances carry the same noise, so C is the geometric mean of the first and the inverse
    of the second, exactly. It is taken in the span of the widest directions of both (nutpie adapts
    chains so).
    """

    mean: Float[Array, " d"]
    scale: Float[Array, " d"]
    vectors: Float[Array, "d k"]
    roots: Float[Array, " k"]

    @classmethod
    def of(
        cls, particles: Float[Array, "n d"], scores: Float[Array, "n d"], rank: int = 32
    ) -> "LowRankFrame":
        """The frame of these particles and scores, with ``rank`` directions of each."""
        num, dim = particles.shape
        rank = max(1, min(rank, num // 8, dim // 4))
        mean = jnp.mean(particles, axis=0)
        spread, pulls = jnp.sqrt(_variances(particles)), jnp.sqrt(_variances(scores))
        scale = jnp.sqrt(spread / pulls)
        x = (particles - mean) / scale
        s = (scores - jnp.mean(scores, axis=0)) * scale
        both = jnp.concatenate([_widest(x, rank), _widest(s, rank)], axis=1)
        basis = jnp.linalg.qr(both)[0]
        wide, steep = (_moment(rows @ basis) for rows in (x, s))
        values, turned = jnp.linalg.eigh(_geometric_mean(wide, steep))
        roots = jnp.sqrt(jnp.maximum(values, jnp.finfo(x.dtype).eps))
        return cls(mean, scale, basis @ turned, roots)

    @property
    def sds(self):
        return self.scale * jnp.sqrt(1 + self.vectors**2 @ (self.roots**2 - 1))

    @property
    def log_volume(self):
        return jnp.sum(jnp.log(self.scale)) + jnp.sum(jnp.log(self.roots))

    def _turned(self, rows, roots):
        return rows + ((rows @ self.vectors) * (roots - 1)) @ self.vectors.T

    def stretch(self, z):
        return self._turned(z, self.roots) * self.scale

    def pull(self, s):
        return self._turned(s * self.scale, self.roots)

    def shrink(self, dx):
        return self._turned(dx / self.scale, 1 / self.roots)

    def push(self, s):
        return self._turned(s, 1 / self.roots) / self.scale


def _widest(rows: Float[Array, "n d"], rank: int) -> Float[Array, "d k"]:
    """Orthonormal directions of about the largest variance, by power iterations."""
    first = jax.random.rademacher(jax.random.key(0), (rows.shape[1], rank), rows.dtype)

    def multiply(_, basis):
        return jnp.linalg.qr(rows.T @ (rows @ basis))[0]

    return jax.lax.fori_loop(0, 4, multiply, first)


def _moment(rows):
    identity = jnp.eye(rows.shape[1], dtype=rows.dtype)
    return rows.T @ rows / len(rows) + 1e-5 * identity


def _geometric_mean(wide: Float[Array, "k k"], steep: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """The positive solution C of C steep C = wide."""
    root, inverse = _roots(steep)
    return inverse @ _roots(root @ wide @ root)[0] @ inverse


def _roots(matrix):
    """The square root of a positive matrix, and its inverse."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    roots = jnp.sqrt(jnp.maximum(values, jnp.finfo(matrix.dtype).eps))
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


def frame_for_flights(
    particles: Float[Array, "n d"], scores: Float[Array, "n d"]
) -> AbstractGaussianFrame:
    """A dense frame if there are many particles per dimension, else one of low rank.

    A particle that flies in a frame fitted to itself does not leave the target quite as it was.
    With 1.7 particles per dimension, exact draws of a Gaussian had a drift of 8 in a dense frame,
    with 2.3 one of 2 to 3, and with three none.
    """
    num, dim = particles.shape
    if num >= _PER_DIMENSION * dim + 2:
        return DenseFrame.of(particles)
    return LowRankFrame.of(particles, scores)


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
