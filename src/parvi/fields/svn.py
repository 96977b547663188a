"""Stein variational Newton (Detommaso, Cui, Spantini, Marzouk & Scheichl 2018).

This is Newton's method for the KL in a space of functions. With phi the velocity of SVGD,

    h(y, z) = E_x[ A(x) k(x, y) k(x, z) + grad k(x, z) grad k(x, y)^T ],    A = -grad^2 log p,

is the second variation of the KL (their Theorem 1), and the particles move by the solution a of
sum_k h(x_s, x_k) a_k = phi(x_s). Distances in k are those of the average Hessian, k =
exp(-|x - y|_M^2 / (2 d)) with M = E[A] (their scaled Hessian kernel), so the whole fit is done in
the coordinates M^1/2 x and is affine invariant.

A must be positive. The paper uses Gauss-Newton, which only some targets have. Here the eigenvalues
of -grad^2 log p at each particle are replaced by their absolute values and clipped from below, as
in ``Hessian``.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from parvi.cloud import Cloud
from parvi.fields.framed import FramedVelocity
from parvi.fields.matrix_svgd import MetricFrame
from parvi.fields.pfg.metric import DenseMetric
from parvi.interface import AbstractField, AbstractJointVelocity, AbstractVelocity, Fit, kl_rate
from parvi.kernels import RBF, AbstractBandwidth, AbstractRadialKernel


class Dimension(AbstractBandwidth):
    """h = factor * d, where d is the number of coordinates in which the particles differ.

    The factor 2 is the scaled Hessian kernel of the paper, exp(-|x - y|_M^2 / (2 d)).
    """

    factor: float = 2.0

    def of(self, particles, max_points):
        varying = jnp.sum(jnp.max(particles, axis=0) > jnp.min(particles, axis=0))
        return (self.factor * jnp.maximum(varying, 1)).astype(particles.dtype)


class Curved(eqx.Module):
    """The inputs of a Newton system: particles, scores, curvatures A and the kernel.

    ``active`` marks the coordinates in which the velocity lives; in all others the particles and
    the scores are zero.
    """

    particles: Float[Array, "n d"]
    scores: Float[Array, "n d"]
    curvatures: Float[Array, "n d d"]
    active: Bool[Array, " d"]
    kernel: AbstractRadialKernel


class AbstractSystem(eqx.Module):
    """Decides which part of the Newton system is solved."""

    @abc.abstractmethod
    def solve(self, curved: Curved) -> AbstractVelocity:
        """The velocity of a unit step."""


class BlockDiagonalSystem(AbstractSystem):
    """Each particle moves by its own Newton step, f(x) = h(x, x)^-1 phi(x). O(n^2 d^2 + n d^3).

    The blocks of the paper's block-diagonal system are read as a function of x, so that the
    velocity is also defined between the particles. The sum of all a_k k(x, x_k) would not do:
    with a wide kernel it is n Newton steps at once.
    """

    def solve(self, curved):
        return BlockVelocity(curved)


class FullSystem(AbstractSystem):
    """The whole system, f(x) = sum_k a_k k(x, x_k). O((n d)^3) time, O((n d)^2) memory.

    The second variation need not be positive away from the target, and the kernel matrix in it is
    close to singular, so its eigenvalues are replaced by their absolute values and clipped from
    below. The KL rate is then -sum_k a_k . phi(x_k), which is never positive, and is zero where the
    particles are at rest.

    Parameters
    ----------
    damping
        The smallest eigenvalue, as a share of the largest.
    """

    damping: float = 1e-3

    def __check_init__(self):
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must be above 0 and at most 1, got {self.damping}.")

    def solve(self, curved):
        x, kernel = curved.particles, curved.kernel
        num, dim = x.shape
        difference = x[:, None] - x
        value, first, _ = kernel.profile(jnp.sum(difference**2, axis=-1), dim)
        # gradients[j, k] = grad k(x, x_k) at x_j.
        gradients = 2 * first[..., None] * difference
        weighted = jnp.einsum("js,jab->sabj", value, curved.curvatures)
        blocks = jnp.einsum("sabj,jk->sakb", weighted, value)
        blocks = blocks + jnp.einsum("jka,jsb->sakb", gradients, gradients)
        matrix = blocks.reshape(num * dim, num * dim) / num
        right = (value.T @ curved.scores + jnp.sum(gradients, axis=0)) / num
        values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
        values = jnp.abs(values)
        values = jnp.maximum(values, self.damping * jnp.max(values))
        coefficients = vectors @ ((vectors.T @ right.reshape(-1)) / values)
        coefficients = coefficients.reshape(num, dim) * curved.active
        return KernelSum(x, coefficients, kernel)


class BlockVelocity(AbstractJointVelocity):
    """f(x) = h(x, x)^-1 phi(x). O(m n d^2 + m d^3) at m points, with divergences."""

    curved: Curved

    def with_divergences(self, points):
        return jax.vmap(self._at)(points)

    def _at(self, x):
        particles, scores = self.curved.particles, self.curved.scores
        num, dim = particles.shape
        towards = particles - x
        value, first, second = self.curved.kernel.profile(jnp.sum(towards**2, axis=1), dim)
        gradients = 2 * first[:, None] * towards
        block = jnp.einsum("j,jab->ab", value**2, self.curved.curvatures)
        block = (block + gradients.T @ gradients) / num
        factor = jax.scipy.linalg.cho_factor(block)
        velocity = jax.scipy.linalg.cho_solve(factor, (value @ scores + gradients.sum(0)) / num)
        velocity = velocity * self.curved.active

        # div f = tr h^-1 J, J = grad_x [phi(x) - h(x, x) f] with f held fixed. For a radial kernel
        # grad_x k = -g and grad_x g = -W, W = 2 phi' I + 4 phi'' t t^T, g = 2 phi' t, t = y - x.
        bent = self.curved.curvatures @ velocity
        along = gradients @ velocity
        pushed = 2 * first[:, None] * velocity
        pushed = pushed + 4 * (second * (towards @ velocity))[:, None] * towards
        slope = (2 * value[:, None] * bent - scores).T @ gradients + gradients.T @ pushed
        slope = slope - 2 * jnp.sum((1 - along) * first) * jnp.eye(dim, dtype=x.dtype)
        slope = slope - 4 * (towards.T * ((1 - along) * second)) @ towards
        solved = jax.scipy.linalg.cho_solve(factor, slope / num)
        return velocity, jnp.sum(jnp.diagonal(solved) * self.curved.active)


class KernelSum(AbstractJointVelocity):
    """f(x) = sum_k a_k k(x, x_k), with its divergence sum_k a_k . grad k. O(n d) at a point."""

    centres: Float[Array, "n d"]
    coefficients: Float[Array, "n d"]
    kernel: AbstractRadialKernel

    def with_divergences(self, points):
        return jax.vmap(self._at)(points)

    def _at(self, x):
        away = x - self.centres
        value, first, _ = self.kernel.profile(jnp.sum(away**2, axis=1), x.shape[0])
        divergence = 2 * first @ jnp.sum(away * self.coefficients, axis=1)
        return value @ self.coefficients, divergence


class SVN(AbstractField):
    """The velocity of Stein variational Newton; a unit step is Newton's.

    Each fit computes the exact Hessian at every particle, which takes d Hessian-vector products per
    particle and O(n d^2) memory. Each system states the cost of its solve.

    Parameters
    ----------
    system
        ``BlockDiagonalSystem`` or ``FullSystem``.
    kernel
        A radial kernel of distances in the norm of the average Hessian. The default is the paper's.
    damping
        The smallest eigenvalue of a particle's Hessian, as a share of its largest.
    """

    system: AbstractSystem = BlockDiagonalSystem()
    kernel: AbstractRadialKernel = RBF(Dimension())
    damping: float = 1e-6

    def __check_init__(self):
        if not isinstance(self.kernel, AbstractRadialKernel):
            raise ValueError(
                f"SVN needs a radial kernel, got {type(self.kernel).__name__}; use "
                "parvi.kernels.RBF() or parvi.kernels.IMQ()."
            )
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must be above 0 and at most 1, got {self.damping}.")

    def fit(self, key, cloud, memory):
        basis = jnp.eye(cloud.particles.shape[1], dtype=cloud.particles.dtype)
        curvatures = positive(-hessians_along(cloud, basis), self.damping)
        active = jnp.ones(len(basis), bool)
        velocity = self.newton(cloud.particles, cloud.scores, curvatures, active)
        values = velocity.on(cloud)
        rate = kl_rate(values, velocity.divergences(cloud), cloud.scores)
        return Fit(velocity, values, rate, {}), memory

    def newton(
        self,
        particles: Float[Array, "n d"],
        scores: Float[Array, "n d"],
        curvatures: Float[Array, "n d d"],
        active: Bool[Array, " d"],
    ) -> FramedVelocity:
        """The velocity in the coordinates of the arguments, solved for in those of E[A]."""
        values, vectors = jnp.linalg.eigh(jnp.mean(curvatures, axis=0))
        frame = MetricFrame.of(DenseMetric(values, vectors), jnp.mean(particles, axis=0))
        # Inactive coordinates must stay zero in spite of rounding in the frame.
        z = frame.enter(particles) * active
        # L^T A L.
        framed = frame.pull(jnp.swapaxes(frame.pull(curvatures), -1, -2))
        kernel = self.kernel.adapted(z, None)
        curved = Curved(z, frame.pull(scores) * active, framed, active, kernel)
        return FramedVelocity(frame, self.system.solve(curved))


def hessians_along(cloud: Cloud, basis: Float[Array, "r d"]) -> Float[Array, "n r r"]:
    """B (grad^2 log p) B^T at every particle, one row of B at a time."""

    def column(vector):
        return jax.vmap(lambda x: basis @ cloud.hessian_product(x, vector))(cloud.particles)

    return jnp.swapaxes(jax.lax.map(column, basis), 0, 1)


def positive(matrices: Float[Array, "n d d"], damping: float) -> Float[Array, "n d d"]:
    """The matrices with absolute eigenvalues, clipped at ``damping`` times the largest."""
    values, vectors = jnp.linalg.eigh((matrices + jnp.swapaxes(matrices, -1, -2)) / 2)
    values = jnp.abs(values)
    smallest = damping * jnp.max(values, axis=-1, keepdims=True)
    values = jnp.maximum(values, jnp.maximum(smallest, jnp.finfo(values.dtype).tiny))
    return jnp.einsum("nab,nb,ncb->nac", vectors, values, vectors)
