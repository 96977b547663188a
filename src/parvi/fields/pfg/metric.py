"""The metric H of the regulariser 1/2 |f|_H^2: how it multiplies and how it is inverted."""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.geometry.frame import AbstractFrame


class AbstractMetric(eqx.Module):
    """A symmetric positive-definite H that acts on the last axis."""

    @abc.abstractmethod
    def apply(self, vectors: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """H v."""

    @abc.abstractmethod
    def solve(self, vectors: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """H^-1 v."""

    def root(self) -> tuple[Any, float | Float[Array, ""]]:
        """The symmetric square root, which is a metric too, and its log determinant."""
        raise ValueError(
            f"The square root of a {type(self).__name__} is not known; use a preconditioner whose "
            "metric is diagonal, dense, framed or of Kronecker form."
        )

    def mean_eigenvalue(self, like: Float[Array, " d"]) -> Float[Array, ""]:
        """tr(H) / d, from a few fixed vectors of signs, which is exact for a diagonal H."""
        signs = jax.random.rademacher(jax.random.key(0), (8, like.shape[0]), like.dtype)
        return jnp.mean(signs * self.apply(signs))

    def largest_eigenvalue(self, like: Float[Array, " d"]) -> Float[Array, ""]:
        """A lower bound by 16 power iterations, at least a share d^(-1/32) for a diagonal H."""
        first = jax.random.rademacher(jax.random.key(0), like.shape, like.dtype)

        def multiply(_, vector):
            vector = self.apply(vector)
            return vector / jnp.linalg.norm(vector)

        vector = jax.lax.fori_loop(0, 16, multiply, first / jnp.linalg.norm(first))
        return vector @ self.apply(vector)


class IdentityMetric(AbstractMetric):
    """H = I."""

    def apply(self, vectors):
        return vectors

    def solve(self, vectors):
        return vectors

    def root(self):
        return self, 0.0


class DiagonalMetric(AbstractMetric):
    """H = diag(h)."""

    diagonal: Float[Array, " d"]

    def apply(self, vectors):
        return vectors * self.diagonal

    def solve(self, vectors):
        return vectors / self.diagonal

    def root(self):
        return DiagonalMetric(jnp.sqrt(self.diagonal)), 0.5 * jnp.sum(jnp.log(self.diagonal))


class DenseMetric(AbstractMetric):
    """H = V diag(h) V^T."""

    values: Float[Array, " d"]
    vectors: Float[Array, "d d"]

    def apply(self, vectors):
        return ((vectors @ self.vectors) * self.values) @ self.vectors.T

    def solve(self, vectors):
        return ((vectors @ self.vectors) / self.values) @ self.vectors.T

    def root(self):
        log_determinant = 0.5 * jnp.sum(jnp.log(self.values))
        return DenseMetric(jnp.sqrt(self.values), self.vectors), log_determinant


class FramedMetric(AbstractMetric):
    """H = L^-T M L^-1 for a metric M in the particles' frame."""

    frame: AbstractFrame
    inner: AbstractMetric

    def apply(self, vectors):
        return self.frame.push(self.inner.apply(self.frame.shrink(vectors)))

    def solve(self, vectors):
        return self.frame.stretch(self.inner.solve(self.frame.pull(vectors)))


class KroneckerMetric(AbstractMetric):
    """H = one block per parameter: A (x) B for a matrix, diag(h) for the rest."""

    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    blocks: tuple[tuple[DenseMetric, DenseMetric] | DiagonalMetric, ...]

    def apply(self, vectors):
        return self._blockwise(vectors, "apply")

    def solve(self, vectors):
        return self._blockwise(vectors, "solve")

    def root(self):
        roots: list[Any] = []
        total = 0.0
        for block in self.blocks:
            if isinstance(block, DiagonalMetric):
                root, log_determinant = block.root()
            else:
                (left, left_log), (right, right_log) = block[0].root(), block[1].root()
                root = left, right
                log_determinant = len(right.values) * left_log + len(left.values) * right_log
            roots.append(root)
            total = total + log_determinant
        return KroneckerMetric(self.shapes, tuple(roots)), total

    def _blockwise(self, vectors, action):
        out = []
        for part, block in zip(split_blocks(vectors, self.shapes), self.blocks, strict=True):
            if isinstance(block, DiagonalMetric):
                moved = getattr(block, action)(part.reshape(*part.shape[: vectors.ndim - 1], -1))
            else:
                left, right = block
                moved = getattr(right, action)(part)
                moved = jnp.swapaxes(getattr(left, action)(jnp.swapaxes(moved, -1, -2)), -1, -2)
            out.append(moved.reshape(*vectors.shape[:-1], -1))
        return jnp.concatenate(out, axis=-1)


def split_blocks(vectors, shapes):
    """Split flat vectors into parameters of these shapes."""
    parts, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        parts.append(vectors[..., start : start + size].reshape(*vectors.shape[:-1], *shape))
        start += size
    return parts
