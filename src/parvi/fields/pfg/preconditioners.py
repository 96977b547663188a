"""Preconditioners: estimates of the metric H from all particles, at every step.

H stands in the regulariser 1/2 E|f|_H^2, so that the fitted velocity is H^-1 grad log p*/p
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

    @abc.abstractmethod
    def init(self, particles: Float[Array, "n d"]) -> PyTree[Array]:
        """What is remembered from one step to the next."""

    @abc.abstractmethod
    def update(self, cloud: Cloud, memory: PyTree[Array]) -> tuple[AbstractMetric, Any]:
        """This step's metric, and the new memory."""


class AbstractMeansPreconditioner(AbstractPreconditioner):
    """A preconditioner that needs nothing but means over the particles."""

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

    def init(self, particles):
        return ()

    def sums(self, block, weights):
        return ()

    def settle(self, sums, memory):
        return IdentityMetric(), memory


class FisherDiagonal(AbstractPreconditioner):
    """H = diag E[s^2]: the paper's choice, as in Adagrad. O(n d).

    Parameters
    ----------
    exponent
        alpha in [0, 1] of H^alpha.
    decay
        Weight of the past in the moving average (bias corrected); 0 for none.
    damping
        Added to the diagonal, as a share of its mean. (The dense metrics below clip their
        eigenvalues at this share of the largest instead.)
    """

    exponent: float = 1.0
    decay: float = 0.9
    damping: float = 1e-3

    def __check_init__(self):
        _check_settings(self)

    def init(self, particles):
        return _start(jnp.zeros(particles.shape[1], particles.dtype))

    def update(self, cloud, memory):
        average, memory = _average(jnp.mean(cloud.scores**2, axis=0), memory, self.decay)
        return _diagonal(average, self), memory


class Fisher(AbstractPreconditioner):
    """H = E[s s^T], the Fisher information: large, and so safe, far away. O(n d^2 + d^3)."""

    exponent: float = 1.0
    decay: float = 0.9
    damping: float = 1e-3

    def __check_init__(self):
        _check_settings(self)

    def init(self, particles):
        return _start(_square_zeros(particles))

    def update(self, cloud, memory):
        estimate = cloud.scores.T @ cloud.scores / cloud.scores.shape[0]
        average, memory = _average(estimate, memory, self.decay)
        return _dense(average, self), memory


class Hessian(AbstractPreconditioner):
    """H = -E[grad^2 log p], exactly: d Hessian-vector products per particle, O(n d) memory."""

    exponent: float = 1.0
    decay: float = 0.0
    damping: float = 1e-6

    def __check_init__(self):
        _check_settings(self)

    def init(self, particles):
        return _start(_square_zeros(particles))

    def update(self, cloud, memory):
        # One basis vector at a time: all at once would hold d copies of the cloud.
        basis = jnp.eye(cloud.particles.shape[1], dtype=cloud.particles.dtype)
        estimate = -jax.lax.map(cloud.mean_hessian_product, basis)
        average, memory = _average((estimate + estimate.T) / 2, memory, self.decay)
        return _dense(average, self), memory


class InverseCovariance(AbstractPreconditioner):
    """H = the inverse covariance of the particles. O(n d^2 + d^3)."""

    exponent: float = 1.0
    decay: float = 0.0
    damping: float = 1e-6

    def __check_init__(self):
        _check_settings(self)

    def init(self, particles):
        return _start(_square_zeros(particles))

    def update(self, cloud, memory):
        centred = cloud.particles - jnp.mean(cloud.particles, axis=0)
        estimate = centred.T @ centred / centred.shape[0]
        average, memory = _average(estimate, memory, self.decay)
        covariance = _dense(average, self)
        return DenseMetric(1 / covariance.values, covariance.vectors), memory


class RegressedHessian(AbstractPreconditioner):
    """H from the regression of scores on particles, at least the inverse covariance. No Hessians.

    For Gaussian particles -E[s (x - m)^T] C^-1 is the mean Hessian (Stein's lemma). Its
    eigenvalues in the particles' frame are clipped from below at 1: where the cloud is narrower
    than the target H is the inverse covariance, and a unit step widens it by at most a factor 2.
    """

    def init(self, particles):
        return ()

    def update(self, cloud, memory):
        frame = DenseFrame.of(cloud.particles)
        slope = -frame.pull(cloud.scores).T @ frame.enter(cloud.particles)
        slope = (slope + slope.T) / (2 * cloud.particles.shape[0])
        values, vectors = jnp.linalg.eigh(slope)
        return FramedMetric(frame, DenseMetric(jnp.maximum(values, 1.0), vectors)), memory


class WhitenedCurvature(AbstractMeansPreconditioner):
    """H = |E[s z^T]| for particles z that are whitened already; its eigenvalues at least 1.

    By Stein's lemma the curvature that Gaussian particles see, by size: where it has the wrong
    sign it still says how far a step may go. Made for ``Whitened``. O(n d^2 + d^3).
    """

    def init(self, particles):
        return ()

    def sums(self, block, weights):
        return block.scores.T @ (weights[:, None] * block.particles)

    def settle(self, sums, memory):
        return at_least_one(sums), memory


class StandardisedCurvature(AbstractMeansPreconditioner):
    """H = diag |E[s z]|, at least 1, for particles z that are standardised already. O(n d)."""

    def init(self, particles):
        return ()

    def sums(self, block, weights):
        return weights @ (block.scores * block.particles)

    def settle(self, sums, memory):
        return DiagonalMetric(jnp.maximum(jnp.abs(sums), 1.0)), memory


class Kronecker(AbstractPreconditioner):
    """H = a Kronecker product for each matrix-shaped parameter, a diagonal for the rest.

    For a block with score matrix S the Fisher information E[vec S vec S^T] is approximated by
    E[S S^T] (x) E[S^T S] / E|S|^2, which is exact where it is a Kronecker product (as in K-FAC
    and Shampoo). O(n d (a + b)) for a x b matrices.

    Parameters
    ----------
    shapes
        Shapes of the parameters, in the order in which they lie in the flat particle; a pytree
        that looks like a particle gives them by ``Kronecker.like(particle)``.
    """

    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    exponent: float = 1.0
    decay: float = 0.9
    damping: float = 1e-3

    @classmethod
    def like(cls, particle: PyTree, **settings: float) -> "Kronecker":
        """The preconditioner for particles that look like this one."""
        leaves = jax.tree_util.tree_leaves(particle)
        return cls(tuple(tuple(jnp.shape(leaf)) for leaf in leaves), **settings)

    def __check_init__(self):
        _check_settings(self)

    def init(self, particles):
        dim = sum(math.prod(shape) for shape in self.shapes)
        if dim != particles.shape[1]:
            raise ValueError(
                f"Kronecker was given shapes {self.shapes} of {dim} numbers, but the particles "
                f"have {particles.shape[1]}; give the shapes of the unconstrained parameters."
            )
        return _start(jax.tree_util.tree_map(jnp.zeros_like, self._estimate(particles)))

    def update(self, cloud, memory):
        average, memory = _average(self._estimate(cloud.scores), memory, self.decay)
        blocks: list[Any] = []
        for estimate in average:
            if len(estimate) == 1:
                blocks.append(_diagonal(estimate[0], self))
            else:
                left, right = estimate
                scale = jnp.maximum(jnp.trace(left), jnp.finfo(left.dtype).tiny)
                blocks.append((_dense(left / scale, self), _dense(right, self)))
        return KroneckerMetric(self.shapes, tuple(blocks)), memory

    def _estimate(self, scores):
        parts: list[Any] = []
        for block in split_blocks(scores, self.shapes):
            num = block.shape[0]
            if block.ndim == 3:
                left = jnp.einsum("nij,nkj->ik", block, block) / num
                right = jnp.einsum("nji,njk->ik", block, block) / num
                parts.append((left, right))
            else:
                parts.append((jnp.mean(block.reshape(num, -1) ** 2, axis=0),))
        return tuple(parts)


def at_least_one(moment: Float[Array, "d d"]) -> DenseMetric:
    """The symmetric part of a matrix, with eigenvalues by size and at least 1."""
    values, vectors = jnp.linalg.eigh((moment + moment.T) / 2)
    return DenseMetric(jnp.maximum(jnp.abs(values), 1.0), vectors)


def _square_zeros(particles):
    dim = particles.shape[1]
    return jnp.zeros((dim, dim), particles.dtype)


def _start(zeros):
    """An average over no steps: the running sum and the weight in it."""
    dtype = jax.tree_util.tree_leaves(zeros)[0].dtype
    return zeros, jnp.zeros((), dtype)


def _average(estimate, memory, decay):
    """Exponential moving average, corrected for its start at zero."""
    total, weight = memory
    total = jax.tree_util.tree_map(lambda t, e: decay * t + (1 - decay) * e, total, estimate)
    weight = decay * weight + (1 - decay)
    return jax.tree_util.tree_map(lambda t: t / weight, total), (total, weight)


def _diagonal(estimate, settings) -> DiagonalMetric:
    tiny = jnp.finfo(estimate.dtype).tiny
    damped = estimate + jnp.maximum(settings.damping * jnp.mean(estimate), tiny)
    return DiagonalMetric(damped**settings.exponent)


def _dense(estimate, settings) -> DenseMetric:
    """Eigenvalues by size, clipped from below at ``damping`` times the largest.

    By size: where a Hessian has a direction of the wrong sign its curvature still says how far a
    step may go (as in saddle-free Newton).
    """
    values, vectors = jnp.linalg.eigh(estimate)
    values = jnp.abs(values)
    smallest = settings.damping * jnp.max(values)
    smallest = jnp.maximum(smallest, jnp.finfo(values.dtype).tiny)
    return DenseMetric(jnp.maximum(values, smallest) ** settings.exponent, vectors)


def _check_settings(settings) -> None:
    name = type(settings).__name__
    if not 0 <= settings.exponent <= 1:
        raise ValueError(f"{name}: exponent must be between 0 and 1, got {settings.exponent}.")
    if not 0 <= settings.decay < 1:
        raise ValueError(f"{name}: decay must be at least 0 and below 1, got {settings.decay}.")
    if not settings.damping > 0:
        raise ValueError(f"{name}: damping must be positive, got {settings.damping}.")
