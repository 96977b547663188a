"""Function classes, which are fitted to the preconditioned Wasserstein gradient.

A class draws its parameters and evaluates a function at one particle. If it has a closed form, it
also gives the values and divergences at all particles in one pass.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree


class Parameters(NamedTuple):
    """Parameters of a function: those that are drawn once and those that are fitted."""

    frozen: PyTree[Array]
    trainable: PyTree[Array]


class Moments(NamedTuple):
    """Features psi at all particles, and the weighted sum of their gradients."""

    features: Float[Array, "n k"]
    mean_gradient: Float[Array, "k d"]


class AbstractFunctions(eqx.Module):
    """A parametric class of functions from R^d to R^d."""

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], particles: Float[Array, "n d"]) -> Parameters:
        """Draw the parameters."""

    @abc.abstractmethod
    def __call__(self, parameters: Parameters, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The function at one particle."""

    def values(self, parameters: Parameters, particles: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The function at all particles."""
        return jax.vmap(self, in_axes=(None, 0))(parameters, particles)

    def with_divergences(
        self, parameters: Parameters, particles: Float[Array, "n d"]
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """Values and exact divergences at all particles; by forward mode unless overridden."""
        return forward_mode(self, parameters, particles)


class AbstractFeatures(AbstractFunctions):
    """Functions f(x) = W psi(x) that are linear in the fitted weights W."""

    @abc.abstractmethod
    def moments(
        self, frozen: PyTree[Array], particles: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Moments:
        """Features and the weighted sum of their gradients."""

    @abc.abstractmethod
    def num_weights(self, dim: int) -> int:
        """k, the number of features."""


class Linear(AbstractFeatures):
    """Affine maps f(x) = W (1, x): exact between Gaussians. O(n d^2)."""

    def init(self, key, particles):
        return Parameters((), _zero_weights(particles, self.num_weights(particles.shape[1])))

    def __call__(self, parameters, x):
        weights = parameters.trainable
        return weights[:, 0] + weights[:, 1:] @ x

    def values(self, parameters, particles):
        weights = parameters.trainable
        return weights[:, 0] + particles @ weights[:, 1:].T

    def with_divergences(self, parameters, particles):
        trace = jnp.trace(parameters.trainable[:, 1:])
        return self.values(parameters, particles), jnp.full(particles.shape[0], trace)

    def moments(self, frozen, particles, weights):
        num, dim = particles.shape
        ones = jnp.ones((num, 1), particles.dtype)
        identity = jnp.sum(weights) * jnp.eye(dim, dtype=particles.dtype)
        gradient = jnp.concatenate([jnp.zeros((1, dim), particles.dtype), identity])
        return Moments(jnp.concatenate([ones, particles], axis=1), gradient)

    def num_weights(self, dim):
        return dim + 1


class Scaling(AbstractFunctions):
    """f_j(x) = b_j + a_j x_j: shifts and scales each coordinate by itself. O(n d).

    It is for fewer particles than dimensions, which cannot determine a covariance.
    """

    def init(self, key, particles):
        return Parameters((), _zero_weights(particles, 2))

    def __call__(self, parameters, x):
        return parameters.trainable[:, 0] + parameters.trainable[:, 1] * x

    def with_divergences(self, parameters, particles):
        weights = parameters.trainable
        values = weights[:, 0] + weights[:, 1] * particles
        return values, jnp.full(particles.shape[0], jnp.sum(weights[:, 1]))


class RandomFeatures(AbstractFeatures):
    """f(x) = W (1, x, s(w_1 . x + b_1), ..., s(w_k . x + b_k)) with frozen random directions.

    Directions are uniform on a sphere, and each threshold is put at a particle, so that no
    feature is flat over the cloud. The class is made for standardised particles: wrap the field
    in ``Whitened``. O(n d k).

    Parameters
    ----------
    num_features
        k, the number of random features in addition to the affine ones.
    activation
        s, applied elementwise.
    scale
        Length of the directions w.
    """

    num_features: int = 64
    activation: Callable = jnp.tanh
    scale: float = 1.0

    def __check_init__(self):
        if not isinstance(self.num_features, (int, np.integer)) or self.num_features < 1:
            raise ValueError(
                f"num_features must be an int of at least 1, got {self.num_features!r}; "
                "for affine maps alone take Linear()."
            )

    def init(self, key, particles):
        num, dim = particles.shape
        key_direction, key_threshold = jax.random.split(key)
        shape = (self.num_features, dim)
        directions = jax.random.normal(key_direction, shape, particles.dtype)
        directions = self.scale * directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
        chosen = jax.random.randint(key_threshold, (self.num_features,), 0, num)
        offsets = -jnp.sum(directions * particles[chosen], axis=1)
        weights = _zero_weights(particles, self.num_weights(dim))
        return Parameters((directions, offsets), weights)

    def informed(
        self, key: Key[Array, ""], particles: Float[Array, "n d"], scores: Float[Array, "n d"]
    ) -> PyTree[Array]:
        """Draw directions and thresholds with the help of whitened particles and their scores.

        Half of the directions are the residuals s + z of random particles, which are zero for a
        Gaussian and find the few directions that matter among many. The others are differences of
        random particles. The thresholds are at random particles.
        """
        num = len(particles)
        chosen = jax.random.randint(key, (3, self.num_features), 0, num)
        first, second = particles[chosen[0]], particles[chosen[1]]
        residual = scores[chosen[0]] + first
        bent = (jnp.arange(self.num_features) % 2 == 0)[:, None]
        directions = jnp.where(bent, residual, first - second)
        norms = jnp.linalg.norm(directions, axis=1, keepdims=True)
        directions = self.scale * directions / jnp.where(norms > 0, norms, 1.0)
        return directions, -jnp.sum(directions * particles[chosen[2]], axis=1)

    def __call__(self, parameters, x):
        directions, offsets = parameters.frozen
        bent = self.activation(directions @ x + offsets)
        return parameters.trainable @ jnp.concatenate([jnp.ones(1, x.dtype), x, bent])

    def values(self, parameters, particles):
        features, _ = self.features_and_slopes(parameters.frozen, particles)
        return features @ parameters.trainable.T

    def with_divergences(self, parameters, particles):
        dim = particles.shape[1]
        (directions, _), weights = parameters
        features, slopes = self.features_and_slopes(parameters.frozen, particles)
        per_feature = jnp.sum(directions * weights[:, dim + 1 :].T, axis=1)
        return features @ weights.T, jnp.trace(weights[:, 1 : dim + 1]) + slopes @ per_feature

    def moments(self, frozen, particles, weights):
        dim = particles.shape[1]
        directions, _ = frozen
        features, slopes = self.features_and_slopes(frozen, particles)
        zero = jnp.zeros((1, dim), particles.dtype)
        identity = jnp.sum(weights) * jnp.eye(dim, dtype=zero.dtype)
        bent = (weights @ slopes)[:, None] * directions
        return Moments(features, jnp.concatenate([zero, identity, bent]))

    def num_weights(self, dim):
        return 1 + dim + self.num_features

    def features_and_slopes(
        self, frozen: PyTree[Array], particles: Float[Array, "n d"]
    ) -> tuple[Float[Array, "n w"], Float[Array, "n k"]]:
        """The features (1, x, bent) at all particles, and the derivatives of the bent ones."""
        directions, offsets = frozen
        bent, slopes = _with_slope(self.activation, particles @ directions.T + offsets)
        ones = jnp.ones((particles.shape[0], 1), particles.dtype)
        return jnp.concatenate([ones, particles, bent], axis=1), slopes


class MLP(AbstractFunctions):
    """The two-layer network f(x) = W2 s(W1 x + b1) + b2, with its exact divergence.

    div f = sum_k s'(a_k) (W1 W2)_kk with a = W1 x + b1, which takes O(h) per particle after the
    forward pass. Parameters are drawn uniformly within 1/sqrt(fan in). O(n d h).

    Parameters
    ----------
    width
        h, the number of hidden units.
    activation
        s, applied elementwise: ``jax.nn.sigmoid`` (the paper's), ``jnp.tanh``, ``jax.nn.relu``,
        ``jax.nn.swish``.
    scaling
        Whether to add a_j x_j to every coordinate, a repulsion that h units cannot give in many
        more than h dimensions. It is made for standardised particles: wrap the field in
        ``Standardised``.
    """

    width: int = 32
    activation: Callable = jax.nn.sigmoid
    scaling: bool = False

    def init(self, key, particles):
        dim, dtype = particles.shape[1], particles.dtype
        shapes = {
            "W1": ((self.width, dim), dim),
            "b1": ((self.width,), dim),
            "W2": ((dim, self.width), self.width),
            "b2": ((dim,), self.width),
        }
        keys = jax.random.split(key, len(shapes))
        weights = {
            name: jax.random.uniform(k, shape, dtype, -1, 1) * fan_in**-0.5
            for k, (name, (shape, fan_in)) in zip(keys, shapes.items(), strict=True)
        }
        if self.scaling:
            weights["a"] = jnp.zeros(dim, dtype)
        return Parameters((), weights)

    def __call__(self, parameters, x):
        w = parameters.trainable
        value = w["W2"] @ self.activation(w["W1"] @ x + w["b1"]) + w["b2"]
        return value + w["a"] * x if self.scaling else value

    def with_divergences(self, parameters, particles):
        w = parameters.trainable
        hidden, slopes = _with_slope(self.activation, particles @ w["W1"].T + w["b1"])
        diagonal = jnp.sum(w["W1"] * w["W2"].T, axis=1)
        values, divergences = hidden @ w["W2"].T + w["b2"], slopes @ diagonal
        if self.scaling:
            values, divergences = values + w["a"] * particles, divergences + jnp.sum(w["a"])
        return values, divergences


class Network(AbstractFunctions):
    """Any Equinox module from R^d to R^d.

    Parameters
    ----------
    make
        Function ``(key, d)`` that returns a module, for instance
        ``lambda key, d: eqx.nn.MLP(d, d, 32, 2, key=key)``.
    """

    make: Callable[[Any, int], eqx.Module]

    def init(self, key, particles):
        arrays = eqx.filter(self.make(key, particles.shape[1]), eqx.is_inexact_array)
        return Parameters((), jax.tree.map(lambda leaf: leaf.astype(particles.dtype), arrays))

    def __call__(self, parameters, x):
        # The module's functions and sizes are not arrays, so the memory of the loop does not hold
        # them. They are built again here, but only while tracing.
        shape = eqx.filter_eval_shape(self.make, jax.random.key(0), x.shape[0])
        static = eqx.filter(shape, lambda leaf: not isinstance(leaf, jax.ShapeDtypeStruct))
        return eqx.combine(parameters.trainable, static)(x)


def forward_mode(functions, parameters, particles):
    """Values and exact divergences by d forward passes per particle."""

    def one(x):
        def function(point):
            value = functions(parameters, point)
            return value, value

        jacobian, value = jax.jacfwd(function, has_aux=True)(x)
        return value, jnp.trace(jacobian)

    return jax.vmap(one)(particles)


def _with_slope(activation, preactivations):
    """Elementwise values and derivatives."""
    return jax.jvp(activation, (preactivations,), (jnp.ones_like(preactivations),))


def _zero_weights(particles, num_weights):
    return jnp.zeros((particles.shape[1], num_weights), particles.dtype)
