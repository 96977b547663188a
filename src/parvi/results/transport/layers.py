"""Layers of a transport map: each moves points, and knows how much it stretches volume there."""

import abc
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.fields.pfg.functions import Parameters, RandomFeatures
from parvi.geometry.coupling import Coupling
from parvi.geometry.frame import AbstractGaussianFrame, DenseFrame

# Newton steps for an inverse, and how often each may be halved until it improves.
_NUM_STEPS, _NUM_HALVINGS = 50, 12
# Share of a step's promised gain that it has to keep (Armijo's rule).
_KEPT = 1e-4
# Distance in units of rounding at which an inverse is found.
_CLOSE = 1e3
# Limit on the numbers in the matrices of all points that are factored at once.
_AT_ONCE = 1 << 22


class AbstractLayer(eqx.Module):
    """A smooth map from R^d to R^d with a smooth inverse."""

    @abc.abstractmethod
    def moved(self, points: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """The points' images, and the log of |det J| at the points; NaN where it folds space."""

    @abc.abstractmethod
    def inverse(self, images: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The points that have these images; NaN where none is found."""

    def __call__(self, points: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The points' images."""
        return self.moved(points)[0]

    def log_det(self, points: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The log of |det J| at the points."""
        return self.moved(points)[1]


class Affine(AbstractLayer):
    """x = m + L z, in the frame of a Gaussian."""

    frame: AbstractGaussianFrame

    def moved(self, points):
        volume = jnp.broadcast_to(self.frame.log_volume, points.shape[:1])
        return self.frame.leave(points), volume

    def inverse(self, images):
        return self.frame.enter(images)


class Coupled(AbstractLayer):
    """From the coordinates of a coupling to the target's own."""

    coupling: Coupling

    def moved(self, points):
        return self(points), jax.vmap(self.coupling.log_volume)(points)

    def __call__(self, points):
        return jax.vmap(self.coupling.leave)(points)

    def inverse(self, images):
        return jax.vmap(self.coupling.enter)(images)


def activation(preactivations: Float[Array, "... k"], num_tails: int) -> Float[Array, "... k"]:
    """Hyperbolic tangents and, at the end, softplus functions, which grow on without an end."""
    if not num_tails:
        return jnp.tanh(preactivations)
    split = preactivations.shape[-1] - num_tails
    bounded, growing = preactivations[..., :split], preactivations[..., split:]
    return jnp.concatenate([jnp.tanh(bounded), jax.nn.softplus(growing)], axis=-1)


class Bent(AbstractLayer):
    """x + L W (1, z, s(D z + c)), where z is x in a frame: a step of one round of bending.

    Parameters
    ----------
    frame
        The coordinates z.
    directions, offsets
        D and c.
    weights
        W.
    num_tails
        How many of the features, the last ones, grow on without an end.
    """

    frame: DenseFrame
    directions: Float[Array, "k d"]
    offsets: Float[Array, " k"]
    weights: Float[Array, "d w"]
    num_tails: int = eqx.field(static=True, default=0)

    def moved(self, points):
        z = self.frame.enter(points)
        slopes = self._slopes(z)
        small = self._small()
        sign, log_det = self._each(lambda own: tuple(jnp.linalg.slogdet(small(own))), slopes)
        if self._is_wide:
            rest = jnp.linalg.slogdet(self._linear)
            sign, log_det = sign * rest[0], log_det + rest[1]
        # Where the orientation changes, the layer has folded space, and there is no density.
        return self.frame.leave(self._bent(z)), jnp.where(sign > 0, log_det, jnp.nan)

    def __call__(self, points):
        return self.frame.leave(self._bent(self.frame.enter(points)))

    def inverse(self, images):
        """Invert by Newton's method, with steps that are halved until the distance falls."""
        return self.frame.leave(self._each(self._solved, self.frame.enter(images)))

    def _each(self, function: Callable, rows: Float[Array, "n m"]) -> Any:
        """A function of every row that makes a matrix, in batches that fit."""
        at_once = max(1, _AT_ONCE // min(self.directions.shape) ** 2)
        if len(rows) <= at_once:
            return jax.vmap(function)(rows)
        return jax.lax.map(function, rows, batch_size=at_once)

    @property
    def _is_wide(self) -> bool:
        """Whether there are fewer features than dimensions."""
        return self.directions.shape[0] < self.directions.shape[1]

    @property
    def _linear(self) -> Float[Array, "d d"]:
        dim = self.directions.shape[1]
        return jnp.eye(dim, dtype=self.weights.dtype) + self.weights[:, 1 : dim + 1]

    @property
    def _outer(self) -> Float[Array, "d k"]:
        return self.weights[:, self.directions.shape[1] + 1 :]

    @property
    def _products(self) -> Float[Array, "k dd"]:
        """For every feature, the outer product of its weights out and its weights in.

        One product of all slopes with these gives the Jacobians at all points.
        """
        dim = self.directions.shape[1]
        return (self._outer.T[:, :, None] * self.directions[:, None, :]).reshape(-1, dim**2)

    def _bent(self, z):
        parameters = Parameters((self.directions, self.offsets), self.weights)
        return z + features(len(self.offsets), self.num_tails).values(parameters, z)

    def _slopes(self, z):
        inner = z @ self.directions.T + self.offsets
        return jax.jvp(self._activation, (inner,), (jnp.ones_like(inner),))[1]

    @property
    def _activation(self) -> Callable:
        return functools.partial(activation, num_tails=self.num_tails)

    def _small(self) -> Callable:
        """A function from a point's slopes to a matrix with the determinant of the Jacobian there.

        If k < d, it is divided by that of the linear part:
        det(A + U S V) = det(A) det(I + S V A^-1 U).
        """
        linear, outer, directions = self._linear, self._outer, self.directions
        if not self._is_wide:
            products = self._products
            return lambda slopes: linear + (slopes @ products).reshape(linear.shape)
        inner = directions @ jnp.linalg.solve(linear, outer)
        identity = jnp.eye(len(inner), dtype=inner.dtype)
        return lambda slopes: identity + slopes[:, None] * inner

    def _solved(self, wanted):
        def residual(z):
            return self._bent(z[None])[0] - wanted

        def tangent(linear, right):
            return jnp.linalg.solve(jax.jacfwd(linear)(right), right)

        bound = _CLOSE * jnp.finfo(wanted.dtype).eps * (1 + jnp.max(jnp.abs(wanted)))
        # The derivative is implicit: the steps of Newton's method have none.
        z = jax.lax.custom_root(residual, wanted, lambda _, z: self._newton(z, bound), tangent)
        return jnp.where(jnp.max(jnp.abs(residual(z))) <= bound, z, jnp.nan)

    def _newton(self, wanted, bound):
        def residual(z):
            return self._bent(z[None])[0] - wanted

        linear, products = self._linear, self._products

        def jacobian(z):
            slopes = self._slopes(z)
            return linear + (slopes @ products).reshape(linear.shape)

        def one(state):
            z, gap, count, _ = state
            step = jnp.linalg.solve(jacobian(z), gap)
            square = jnp.sum(gap**2)

            def worse(state):
                share, count = state
                far = jnp.sum(residual(z - share * step) ** 2)
                return ~(far <= (1 - _KEPT * share) * square) & (count < _NUM_HALVINGS)

            def halved(state):
                return state[0] / 2, state[1] + 1

            share, _ = jax.lax.while_loop(worse, halved, (jnp.ones_like(square), 0))
            new = z - share * step
            far = residual(new)
            better = jnp.sum(far**2) < square
            kept = jnp.where(better, new, z), jnp.where(better, far, gap)
            return *kept, count + 1, better

        def going(state):
            _, gap, count, better = state
            # Two more digits than are asked for.
            return better & (count < _NUM_STEPS) & (jnp.max(jnp.abs(gap)) > bound / 100)

        first = wanted, residual(wanted), 0, jnp.ones((), bool)
        return jax.lax.while_loop(going, one, first)[0]


def features(num_features: int, num_tails: int) -> RandomFeatures:
    """The functions whose weights a bent layer has."""
    return RandomFeatures(num_features, functools.partial(activation, num_tails=num_tails))


class Inverted(AbstractLayer):
    """A layer taken backwards."""

    layer: AbstractLayer

    def moved(self, points):
        images = self.layer.inverse(points)
        return images, -self.layer.log_det(images)

    def inverse(self, images):
        return self.layer(images)
