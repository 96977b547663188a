"""Preconditioners: estimates of the metric H from all particles, at every step.

H defines the regulariser 1/2 E|f|_H^2, so the fitted velocity is H^-1 grad log p*/p
(Dong et al. 2023, Proposition 1); -grad^2 log p is the ideal (Newton) choice. Estimates are
averaged over steps, damped so that they stay positive definite, and raised to ``exponent``.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from parvi.cloud import AbstractCloud, Cloud
from parvi.fields.pfg.metric import (
    AbstractMetric,
    DenseMetric,
    DiagonalMetric,
    FramedMetric,
    IdentityMetric,
    KroneckerMetric,
    split_blocks,
)
from parvi.geometry.frame import DenseFrame


class AbstractPreconditioner(eqx.Module):
    """Estimates H from a cloud, with a memory."""

    def init(self, particles: Float[Array, "n d"]) -> PyTree[Array]:
        """The memory before the first step: nothing unless overridden."""
        return ()

    @abc.abstractmethod
    def update(self, cloud: Cloud, memory: PyTree[Array]) -> tuple[AbstractMetric, Any]:
        """This step's metric, and the new memory."""


class AbstractMeansPreconditioner(AbstractPreconditioner):
    """A preconditioner that needs only means over the particles."""

    @abc.abstractmethod
    def sums(self, block: AbstractCloud, weights: Float[Array, " m"]) -> PyTree[Array]:
        """The share of a block in those means."""

    @abc.abstractmethod
    def settle(self, sums: PyTree[Array], memory: PyTree[Array]) -> tuple[AbstractMetric, Any]:
        """This step's metric, and the new memory."""

    def update(self, cloud, memory):
        return self.settle(cloud.mean(self.sums), memory)


class Identity(AbstractMeansPreconditioner):
    """H = I: the plain Wasserstein gradient."""

    def sums(self, block, weights):
        return ()

    def settle(self, sums, memory):
        return IdentityMetric(), memory


class AbstractAveraged(AbstractPreconditioner):
    """An estimate that is averaged over steps, damped and raised to a power.

    Parameters
    ----------
    exponent
        alpha in [0, 1] of H^alpha.
    decay
        Weight of the past in the moving average (bias corrected); 0 for none.
    damping
        Share of its mean that is added to a diagonal H. The eigenvalues of a dense H are clipped
        from below at this share of the largest instead.
    """

    exponent: float = 1.0
    decay: float = 0.9
    damping: float = 1e-3

    @abc.abstractmethod
    def estimate(self, cloud: AbstractCloud) -> Any:
        """The estimate from this cloud alone."""

    def metric(self, average: Any) -> AbstractMetric:
        """The metric of the average: a dense one unless overridden."""
        return self._dense(average)

    def __check_init__(self):
        name = type(self).__name__
        if not 0 <= self.exponent <= 1:
            raise ValueError(f"{name}: exponent must be between 0 and 1, got {self.exponent}.")
        if not 0 <= self.decay < 1:
            raise ValueError(f"{name}: decay must be at least 0 and below 1, got {self.decay}.")
        if not self.damping > 0:
            raise ValueError(f"{name}: damping must be positive, got {self.damping}.")

    def init(self, particles):
        """The running sum and the weight in it, before the first step."""
        shapes = jax.eval_shape(lambda x: self.estimate(Cloud(x, x, x[:, 0], jnp.sum)), particles)
        zeros = jax.tree_util.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return zeros, jnp.zeros((), particles.dtype)

    def update(self, cloud, memory):
        (total, weight), new = memory, self.estimate(cloud)
        total = jax.tree.map(lambda t, e: self.decay * t + (1 - self.decay) * e, total, new)
        weight = self.decay * weight + (1 - self.decay)
        # This corrects for the start at zero.
        return self.metric(jax.tree.map(lambda t: t / weight, total)), (total, weight)

    def _diagonal(self, average) -> DiagonalMetric:
        tiny = jnp.finfo(average.dtype).tiny
        damped = average + jnp.maximum(self.damping * jnp.mean(average), tiny)
        return DiagonalMetric(damped**self.exponent)

    def _dense(self, average) -> DenseMetric:
        """A dense metric with absolute eigenvalues, clipped at ``damping`` times the largest.

        If the curvature in a direction has the wrong sign, its absolute value still says how far a
        step may go (as in saddle-free Newton).
        """
        values, vectors = jnp.linalg.eigh(average)
        values = jnp.abs(values)
        smallest = jnp.maximum(self.damping * jnp.max(values), jnp.finfo(values.dtype).tiny)
        return DenseMetric(jnp.maximum(values, smallest) ** self.exponent, vectors)


class FisherDiagonal(AbstractAveraged):
    """H = diag E[s^2]: the paper's choice, as in Adagrad. O(n d). See ``AbstractAveraged``."""

    def estimate(self, cloud):
        return jnp.mean(cloud.scores**2, axis=0)

    def metric(self, average):
        return self._diagonal(average)


class Fisher(AbstractAveraged):
    """H = E[s s^T], the Fisher information, large and so safe far away. O(n d^2 + d^3)."""

    def estimate(self, cloud):
        return cloud.scores.T @ cloud.scores / cloud.shape[0]


class Hessian(AbstractAveraged):
    """H = -E[grad^2 log p], exact by d Hessian-vector products per particle. O(n d) memory."""

    decay: float = 0.0
    damping: float = 1e-6

    def estimate(self, cloud):
        # One basis vector at a time: all at once would hold d copies of the cloud.
        basis = jnp.eye(cloud.shape[1], dtype=cloud.dtype)
        products = -jax.lax.map(cloud.mean_hessian_product, basis)
        return (products + products.T) / 2


class InverseCovariance(AbstractAveraged):
    """H = the inverse covariance of the particles. O(n d^2 + d^3)."""

    decay: float = 0.0
    damping: float = 1e-6

    def estimate(self, cloud):
        centred = cloud.particles - jnp.mean(cloud.particles, axis=0)
        return centred.T @ centred / cloud.shape[0]

    def metric(self, average):
        covariance = self._dense(average)
        return DenseMetric(1 / covariance.values, covariance.vectors)


class RegressedHessian(AbstractPreconditioner):
    """H from a regression of scores on particles, but at least the inverse covariance.

    It needs no Hessians: for Gaussian particles -E[s (x - m)^T] C^-1 is the mean Hessian (Stein's
    lemma). Its eigenvalues in the particles' frame are clipped from below at 1. Where the cloud is
    narrower than the target, H is then the inverse covariance, and a unit step widens the cloud by
    at most a factor of 2.
    """

    def update(self, cloud, memory):
        frame = DenseFrame.of(cloud.particles)
        slope = -frame.pull(cloud.scores).T @ frame.enter(cloud.particles)
        slope = (slope + slope.T) / (2 * cloud.particles.shape[0])
        values, vectors = jnp.linalg.eigh(slope)
        return FramedMetric(frame, DenseMetric(jnp.maximum(values, 1.0), vectors)), memory


class WhitenedCurvature(AbstractMeansPreconditioner):
    """H = |E[s z^T]|, with eigenvalues of at least 1, for whitened particles z.

    By Stein's lemma this is the absolute curvature that Gaussian particles see; with the wrong
    sign it still says how far a step may go. Use it inside ``Whitened``. O(n d^2 + d^3).
    """

    def sums(self, block, weights):
        return block.scores.T @ (weights[:, None] * block.particles)

    def settle(self, sums, memory):
        return at_least_one(sums), memory


class StandardisedCurvature(AbstractMeansPreconditioner):
    """H = diag |E[s z]|, at least 1, for standardised particles z. O(n d)."""

    def sums(self, block, weights):
        return weights @ (block.scores * block.particles)

    def settle(self, sums, memory):
        return DiagonalMetric(jnp.maximum(jnp.abs(sums), 1.0)), memory


class Kronecker(AbstractAveraged):
    """H = a Kronecker product for each matrix-shaped parameter, a diagonal for the rest.

    For a block with score matrix S the Fisher information E[vec S vec S^T] is approximated by
    E[S S^T] (x) E[S^T S] / E|S|^2, which is exact if it is a Kronecker product (as in K-FAC and
    Shampoo). O(n d (a + b)) for a x b matrices.

    Parameters
    ----------
    shapes
        Shapes of the parameters, in their order in the flat particle. ``Kronecker.like(particle)``
        takes them from a pytree that looks like a particle.
    """

    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True, default=())

    def __init__(
        self,
        shapes: tuple[tuple[int, ...], ...],
        exponent: float = 1.0,
        decay: float = 0.9,
        damping: float = 1e-3,
    ):
        self.shapes = shapes
        self.exponent, self.decay, self.damping = exponent, decay, damping

    @classmethod
    def like(cls, particle: PyTree, **settings: float) -> "Kronecker":
        """The preconditioner for particles that look like this one."""
        leaves = jax.tree_util.tree_leaves(particle)
        return cls(tuple(tuple(jnp.shape(leaf)) for leaf in leaves), **settings)

    def init(self, particles):
        dim = sum(math.prod(shape) for shape in self.shapes)
        if dim != particles.shape[1]:
            raise ValueError(
                f"Kronecker was given shapes {self.shapes} of {dim} numbers, but the particles "
                f"have {particles.shape[1]}; give the shapes of the unconstrained parameters."
            )
        return super().init(particles)

    def metric(self, average):
        blocks: list[Any] = []
        for estimate in average:
            if len(estimate) == 1:
                blocks.append(self._diagonal(estimate[0]))
            else:
                left, right = estimate
                scale = jnp.maximum(jnp.trace(left), jnp.finfo(left.dtype).tiny)
                blocks.append((self._dense(left / scale), self._dense(right)))
        return KroneckerMetric(self.shapes, tuple(blocks))

    def estimate(self, cloud):
        parts: list[Any] = []
        for block in split_blocks(cloud.scores, self.shapes):
            num = block.shape[0]
            if block.ndim == 3:
                left = jnp.einsum("nij,nkj->ik", block, block) / num
                right = jnp.einsum("nji,njk->ik", block, block) / num
                parts.append((left, right))
            else:
                parts.append((jnp.mean(block.reshape(num, -1) ** 2, axis=0),))
        return tuple(parts)


def at_least_one(moment: Float[Array, "d d"]) -> DenseMetric:
    """The symmetric part of a matrix, with absolute eigenvalues of at least 1."""
    values, vectors = jnp.linalg.eigh((moment + moment.T) / 2)
    return DenseMetric(jnp.maximum(jnp.abs(values), 1.0), vectors)
