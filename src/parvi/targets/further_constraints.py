"""Further constraints: bounds on one side, Cholesky factors, zero sums, directions and angles.

Conventions follow the Stan reference manual, chapter "Constraint transforms".
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from parvi.targets.constraints import AbstractConstraint


class LowerBound(AbstractConstraint):
    """x > low, by low + exp(u)."""

    low: float = 0.0

    def constrain(self, u):
        return self.low + jnp.exp(u)

    def unconstrain(self, x):
        return jnp.log(x - self.low)

    def log_jacobian(self, u):
        return jnp.sum(u)

    def describe(self):
        return f"numbers above {self.low}"


class UpperBound(AbstractConstraint):
    """x < high, by high - exp(u)."""

    high: float = 0.0

    def constrain(self, u):
        return self.high - jnp.exp(u)

    def unconstrain(self, x):
        return jnp.log(self.high - x)

    def log_jacobian(self, u):
        return jnp.sum(u)

    def describe(self):
        return f"numbers below {self.high}"


class ZeroSum(AbstractConstraint):
    """K numbers with sum zero along the last axis, from K - 1 in an orthonormal basis."""

    def unconstrained_shape(self, shape):
        if not shape or shape[-1] < 2:
            raise ValueError(f"ZeroSum needs a last axis of at least 2, got shape {shape}.")
        return (*shape[:-1], shape[-1] - 1)

    def constrain(self, u):
        return u @ jnp.asarray(_helmert(u.shape[-1] + 1), u.dtype)

    def unconstrain(self, x):
        basis = jnp.asarray(_helmert(x.shape[-1]), x.dtype)
        far = jnp.abs(jnp.sum(x, axis=-1, keepdims=True)) > 1e-4 * (1 + jnp.max(jnp.abs(x)))
        return jnp.where(far, jnp.nan, x @ basis.T)

    def log_jacobian(self, u):
        # Lengths stay as they are; the density is that on the plane of zero sums.
        return jnp.zeros((), u.dtype)

    def describe(self):
        return "numbers with sum zero along the last axis"


def _helmert(num: int) -> Float[np.ndarray, "m k"]:
    """Orthonormal rows that are orthogonal to a row of ones."""
    rows = np.tril(np.ones((num - 1, num)))
    rows[np.arange(num - 1), np.arange(1, num)] = -np.arange(1, num)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class UnitVector(AbstractConstraint):
    """K numbers with squares that sum to one along the last axis: u over its length.

    There is no smooth bijection from K - 1 numbers to a sphere. The length of u is a further
    parameter, to which the Jacobian gives the density of a chi distribution.
    """

    def unconstrained_shape(self, shape):
        if not shape or shape[-1] < 2:
            raise ValueError(f"A unit vector needs a last axis of at least 2, got shape {shape}.")
        return shape

    def constrain(self, u):
        return u / jnp.linalg.norm(u, axis=-1, keepdims=True)

    def unconstrain(self, x):
        far = jnp.abs(jnp.sum(x**2, axis=-1, keepdims=True) - 1) > 1e-4
        return jnp.where(far, jnp.nan, x * math.sqrt(x.shape[-1]))

    def log_jacobian(self, u):
        return -0.5 * jnp.sum(u**2)

    def describe(self):
        return "vectors of length one along the last axis"


class Circular(AbstractConstraint):
    """An angle between -pi and pi, with no seam: the angle of a point in the plane.

    As in ``UnitVector``, the distance of the point is a further parameter.
    """

    def unconstrained_shape(self, shape):
        return (*shape, 2)

    def constrain(self, u):
        return jnp.arctan2(u[..., 1], u[..., 0])

    def unconstrain(self, x):
        # The mean distance of a normal point is about this.
        return math.sqrt(2) * jnp.stack([jnp.cos(x), jnp.sin(x)], axis=-1)

    def log_jacobian(self, u):
        return -0.5 * jnp.sum(u**2)

    def describe(self):
        return "angles"


class CovarianceCholesky(AbstractConstraint):
    """Lower-triangular factors of covariances: any numbers below a positive diagonal."""

    def unconstrained_shape(self, shape):
        _check_square("CovarianceCholesky", shape)
        return (*shape[:-2], shape[-1] * (shape[-1] + 1) // 2)

    def constrain(self, u):
        num = _side(u.shape[-1], 1)
        rows, columns = np.tril_indices(num)
        values = jnp.where(rows == columns, jnp.exp(u), u)
        return jnp.zeros((*u.shape[:-1], num, num), u.dtype).at[..., rows, columns].set(values)

    def unconstrain(self, x):
        rows, columns = np.tril_indices(x.shape[-1])
        values = x[..., rows, columns]
        free = jnp.where(rows == columns, jnp.log(values), values)
        return jnp.where(_is_lower(x)[..., None], free, jnp.nan)

    def log_jacobian(self, u):
        rows, columns = np.tril_indices(_side(u.shape[-1], 1))
        return jnp.sum(jnp.where(rows == columns, u, 0.0))

    def describe(self):
        return "lower-triangular matrices with a positive diagonal"


class CorrelationCholesky(AbstractConstraint):
    """Lower-triangular factors of correlations: rows of length one, a positive diagonal.

    The density is with respect to the entries below the diagonal.
    """

    def unconstrained_shape(self, shape):
        _check_square("CorrelationCholesky", shape)
        if shape[-1] < 2:
            raise ValueError(f"A correlation needs at least two numbers, got shape {shape}.")
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)

    def constrain(self, u):
        num = _side(u.shape[-1], -1)
        below = np.tril_indices(num, -1)
        zeros = jnp.zeros((*u.shape[:-1], num, num), u.dtype)
        partial = zeros.at[..., *below].set(jnp.tanh(u))
        # The length that a row has left for its later entries. As a log it cannot round to zero.
        left = jnp.exp(0.5 * jnp.cumsum(zeros.at[..., *below].set(_log_slopes(u)), axis=-1))
        before = jnp.concatenate([jnp.ones_like(left[..., :1]), left[..., :-1]], axis=-1)
        diagonal = jnp.eye(num, dtype=u.dtype)
        return partial * before + diagonal * before

    def unconstrain(self, x):
        below = np.tril_indices(x.shape[-1], -1)
        squares = jnp.cumsum(x**2, axis=-1)
        before = jnp.sqrt(
            1 - jnp.concatenate([jnp.zeros_like(squares[..., :1]), squares[..., :-1]], axis=-1)
        )
        values = jnp.arctanh(x[..., *below] / before[..., *below])
        long = jnp.any(jnp.abs(squares[..., -1] - 1) > 1e-4, axis=-1)
        return jnp.where((_is_lower(x) & ~long)[..., None], values, jnp.nan)

    def log_jacobian(self, u):
        rows, columns = np.tril_indices(_side(u.shape[-1], -1), -1)
        # d x / d u = (1 - tanh^2 u) times the length that is left before. That is the root of the
        # product of 1 - tanh^2 over the earlier entries, so each of these counts half for every
        # later one.
        return jnp.sum((1 + 0.5 * (rows - columns - 1)) * _log_slopes(u))

    def describe(self):
        return "lower-triangular factors of correlation matrices"


def _log_slopes(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 - tanh^2 u)."""
    return 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))


def _check_square(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"{name} needs two equal last axes, got shape {shape}.")


def _side(num: int, sign: int) -> int:
    """The k that belongs to k (k + sign) / 2 numbers."""
    return (math.isqrt(8 * num + 1) - sign) // 2


def _is_lower(x: Float[Array, "... k k"]) -> Array:
    """Whether matrices are lower-triangular."""
    above = np.triu_indices(x.shape[-1], 1)
    return ~jnp.any(x[..., *above] != 0, axis=-1)
