"""Smooth bijections from the real line to constrained parameters, with their log Jacobians.

A density p(x) of a constrained x = T(u) is sampled as log p(T(u)) + log |det T'(u)|.
Conventions follow the Stan reference manual, chapter "Constraint transforms".
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class AbstractConstraint(eqx.Module):
    """A bijection from unconstrained to constrained values of one parameter."""

    def unconstrained_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The unconstrained shape of a parameter of this shape."""
        return shape

    @abc.abstractmethod
    def constrain(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """Map to the constrained scale."""

    @abc.abstractmethod
    def unconstrain(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Map to the unconstrained scale. The result is NaN or infinite outside the support."""

    @abc.abstractmethod
    def log_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        """log |det dT/du|, summed over all entries."""

    @abc.abstractmethod
    def describe(self) -> str:
        """The support in words, for error messages."""


class Real(AbstractConstraint):
    """No constraint."""

    def constrain(self, u):
        return u

    def unconstrain(self, x):
        return x

    def log_jacobian(self, u):
        return jnp.zeros((), u.dtype)

    def describe(self):
        return "finite numbers"


class Positive(AbstractConstraint):
    """x = exp(u) > 0."""

    def constrain(self, u):
        return jnp.exp(u)

    def unconstrain(self, x):
        return jnp.log(x)

    def log_jacobian(self, u):
        return jnp.sum(u)

    def describe(self):
        return "positive numbers"


class Interval(AbstractConstraint):
    """low < x < high, by a scaled logistic function."""

    low: float = 0.0
    high: float = 1.0

    def __check_init__(self):
        ends = (self.low, self.high)
        # Arrays are taken too, one number for each coordinate.
        if any(isinstance(end, (str, bytes)) for end in ends) or not np.all(np.isfinite(ends)):
            raise ValueError(
                f"Interval needs two finite numbers, got {self.low!r} and {self.high!r}; for a "
                "half-line take Positive() and shift."
            )
        if not self.low < self.high:
            raise ValueError(f"Interval needs low < high, got low={self.low}, high={self.high}.")

    def constrain(self, u):
        return self.low + (self.high - self.low) * jax.nn.sigmoid(u)

    def unconstrain(self, x):
        return jnp.log(x - self.low) - jnp.log(self.high - x)

    def log_jacobian(self, u):
        width = jnp.log(self.high - self.low) * u.size
        return width + jnp.sum(jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u))

    def describe(self):
        return f"numbers between {self.low} and {self.high}"


class Ordered(AbstractConstraint):
    """Numbers that increase along the last axis: x_1 = u_1, x_k = x_{k-1} + exp(u_k)."""

    def unconstrained_shape(self, shape):
        if not shape:
            raise ValueError("Ordered needs an axis along which numbers increase, got one number.")
        return shape

    def constrain(self, u):
        return jnp.cumsum(jnp.concatenate([u[..., :1], jnp.exp(u[..., 1:])], axis=-1), axis=-1)

    def unconstrain(self, x):
        return jnp.concatenate([x[..., :1], jnp.log(jnp.diff(x, axis=-1))], axis=-1)

    def log_jacobian(self, u):
        return jnp.sum(u[..., 1:])

    def describe(self):
        return "numbers that increase along the last axis"


class Simplex(AbstractConstraint):
    """K positive numbers that sum to one along the last axis, by stick breaking from K - 1.

    The logits are shifted by -log(K - k), so that u = 0 is the centre of the simplex. The density
    is with respect to the first K - 1 entries.
    """

    def unconstrained_shape(self, shape):
        if not shape or shape[-1] < 2:
            raise ValueError(f"A simplex needs a last axis of at least 2, got shape {shape}.")
        return (*shape[:-1], shape[-1] - 1)

    def constrain(self, u):
        logits, head, rest = self._log_sticks(u)
        tail = rest[..., -1:] + jax.nn.log_sigmoid(-logits[..., -1:])
        return jnp.exp(jnp.concatenate([head, tail], axis=-1))

    def unconstrain(self, x):
        head = x[..., :-1]
        remaining = jnp.flip(jnp.cumsum(jnp.flip(x, -1), axis=-1), -1)[..., 1:]
        logits = jnp.log(head) - jnp.log(remaining)
        # A point outside the simplex has no preimage; the check of ``init`` reports the NaN.
        inside = jnp.abs(jnp.sum(x, axis=-1, keepdims=True) - 1) < 1e-4
        return jnp.where(inside, logits - _stick_offsets(logits), jnp.nan)

    def log_jacobian(self, u):
        logits, _, rest = self._log_sticks(u)
        return jnp.sum(rest + jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(-logits))

    def describe(self):
        return "positive numbers with sum one along the last axis"

    @staticmethod
    def _log_sticks(u):
        """The logits, and the logs of the first K - 1 entries and of the stick before each."""
        logits = u + _stick_offsets(u)
        left = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
        rest = jnp.concatenate([jnp.zeros_like(left[..., :1]), left[..., :-1]], axis=-1)
        return logits, rest + jax.nn.log_sigmoid(logits), rest


def _stick_offsets(u):
    return -jnp.log(jnp.arange(u.shape[-1], 0, -1).astype(u.dtype))
