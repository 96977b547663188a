"""Distils a map of many layers into one layer, fitted to where the map takes points."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from parvi.geometry.frame import DenseFrame
from parvi.kept import carefully
from parvi.results.transport.chain import Chain
from parvi.results.transport.layers import AbstractLayer, Affine, Bent

_NUM_FEATURES, _NUM_STEPS, _BATCH, _LENGTH = 256, 3000, 1024, 3e-3


def distilled(layer: AbstractLayer, dim: int, dtype: np.dtype, key: Key[Array, ""]) -> Chain:
    """One bent layer and an affine one, close to a map from N(0, I)."""
    key_frame, key_first, key_fit = jax.random.split(key, 3)
    images = layer(jax.random.normal(key_frame, (8192, dim), dtype))
    frame = DenseFrame.of(images)
    directions, offsets = _first(key_first, dim, dtype)
    weights = jnp.zeros((dim, 1 + dim + _NUM_FEATURES), dtype)
    identity = jnp.eye(dim, dtype=dtype)
    bent = Bent(DenseFrame(jnp.zeros(dim, dtype), identity, identity), directions, offsets, weights)
    return Chain((_trained(layer, frame, bent, key_fit), Affine(frame)))


def _first(key, dim: int, dtype):
    key_directions, key_offsets = jax.random.split(key)
    directions = jax.random.normal(key_directions, (_NUM_FEATURES, dim), dtype) / math.sqrt(dim)
    return directions, jax.random.normal(key_offsets, (_NUM_FEATURES,), dtype)


@carefully
def _trained(layer, frame, bent: Bent, key) -> Bent:
    schedule = optax.cosine_decay_schedule(_LENGTH, _NUM_STEPS)
    optimiser = optax.adam(schedule)

    def with_(parameters):
        return eqx.tree_at(lambda b: (b.directions, b.offsets, b.weights), bent, parameters)

    def loss(parameters, z):
        aim = frame.enter(layer(z))
        # The map goes from z to the frame of its images, which is about N(0, I) too.
        return jnp.mean(jnp.sum((with_(parameters)(z) - aim) ** 2, axis=1))

    def one(state, own):
        parameters, memory = state
        z = jax.random.normal(own, (_BATCH, bent.directions.shape[1]), bent.weights.dtype)
        slopes = jax.grad(loss)(parameters, z)
        updates, memory = optimiser.update(slopes, memory)
        return (optax.apply_updates(parameters, updates), memory), None

    first = (bent.directions, bent.offsets, bent.weights)
    state = (first, optimiser.init(first))
    (parameters, _), _ = jax.lax.scan(one, state, jax.random.split(key, _NUM_STEPS))
    return with_(parameters)
