"""Stein variational gradient descent (Liu & Wang 2016).

    f(x) = E_y[ k(y, x) grad log p(y) + grad_y k(y, x) ]                        (Eq. 8)

is the functional gradient of the KL with the RKHS norm as regulariser (Dong et al. 2023, Sec.
3.2). Its KL rate is minus the squared kernel Stein discrepancy of the particles.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.interface import AbstractField, AbstractJointVelocity, Fit, kl_rate
from parvi.kernels import RBF, AbstractKernel, AbstractRadialKernel, LinearKernel, square_distances

# Number of points from which a blocked run takes its median: 130 000 pairs give it to about 0.5 %.
MEDIAN_POINTS = 512


class SVGDVelocity(AbstractJointVelocity):
    """The kernel average over the particles at which it was fitted."""

    particles: Float[Array, "n d"]
    scores: Float[Array, "n d"]
    kernel: AbstractKernel

    def with_divergences(self, points):
        if isinstance(self.kernel, AbstractRadialKernel):
            return radial_average(self.kernel, self.particles, self.scores, points)
        if isinstance(self.kernel, LinearKernel):
            return _linear(self.kernel, self.particles, self.scores, points)
        return _generic(self.kernel, self.particles, self.scores, points)


class SVGD(AbstractField):
    """The SVGD velocity. O(n^2 d) time; O(n^2) memory, or O(n b + n d) in blocks of b.

    The linear kernel needs no n x n matrix and takes O(n d^2) time. A ``CallableKernel`` is
    differentiated by JAX, at O(n^2 d) evaluations for its divergence.

    Parameters
    ----------
    kernel
        ``RBF`` (median bandwidth), ``IMQ``, ``LinearKernel`` or ``CallableKernel``.
    block_size
        Number of rows of the kernel matrix that are formed at a time; None for all. With blocks,
        the median is taken over at most 512 particles.
    """

    kernel: AbstractKernel = RBF()
    block_size: int | None = None

    def __check_init__(self):
        if self.block_size is not None and self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}.")

    def fit(self, key, cloud, memory):
        kernel, particles, scores = self.kernel, cloud.particles, cloud.scores
        if isinstance(kernel, AbstractRadialKernel):
            kernel = kernel.adapted(particles, None if self.block_size is None else MEDIAN_POINTS)
        velocity = SVGDVelocity(particles, scores, kernel)
        if self.block_size is None:
            values, divergences = velocity.with_divergences(particles)
        else:
            values, divergences = _in_blocks(velocity, particles, self.block_size)
        return Fit(velocity, values, kl_rate(values, divergences, scores), {}), memory


def _in_blocks(velocity, points, block_size):
    """Values and divergences, one block of points at a time; the last block is padded."""
    num, dim = points.shape
    num_blocks = -(-num // block_size)
    padded = jnp.pad(points, ((0, num_blocks * block_size - num), (0, 0)))
    blocks = padded.reshape(num_blocks, block_size, dim)
    values, divergences = jax.lax.map(velocity.with_divergences, blocks)
    return values.reshape(-1, dim)[:num], divergences.reshape(-1)[:num]


def radial_average(kernel, particles, scores, points, weights=None):
    """E_y[w(y) (k s + grad_y k)] at the points, and its divergence; w = 1 without weights.

    For k = phi(r^2): grad_y k = 2 phi' (y - x), div_x grad_y k = -2 d phi' - 4 r^2 phi''.
    """
    num, dim = particles.shape
    square = square_distances(points, particles)
    profile = kernel.profile(square, dim)
    value, first, second = profile if weights is None else (weights * part for part in profile)
    total = jnp.sum(first, axis=1)
    values = value @ scores + 2 * (first @ particles - points * total[:, None])

    # div_x of k s(y) is -2 phi' (y - x) . s(y).
    towards = jnp.sum(points * (first @ scores), axis=1)
    along = first @ jnp.sum(particles * scores, axis=1)
    curvature = jnp.sum(second * square, axis=1)
    divergences = 2 * (towards - along) - 2 * dim * total - 4 * curvature
    return values / num, divergences / num


def _linear(kernel, particles, scores, points):
    """f(x) = (E[s y^T] + I) K x + E[s]."""
    dim = particles.shape[1]
    slope = scores.T @ particles / particles.shape[0] + jnp.eye(dim, dtype=particles.dtype)
    values = kernel.times(points) @ slope.T + jnp.mean(scores, axis=0)
    divergence = jnp.trace(kernel.times(slope))
    return values, jnp.full(points.shape[0], divergence)


def _generic(kernel, particles, scores, points):
    def velocity(x):
        def one(y, score):
            return kernel(y, x) * score + jax.grad(kernel, argnums=0)(y, x)

        return jnp.mean(jax.vmap(one)(particles, scores), axis=0)

    def both(x):
        return velocity(x), jnp.trace(jax.jacfwd(velocity)(x))

    return jax.vmap(both)(points)
