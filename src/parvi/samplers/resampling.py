"""Drawing particles anew by their weights, so that every region keeps its mass."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

# Bits of every coordinate in the order in which particles are drawn anew.
_BITS = 5


def systematic(key: Key[Array, ""], weights: Float[Array, " m"], num: int) -> Int[Array, " n"]:
    """``num`` rows, each as often as ``num`` times its weight, up to one."""
    steps = (jnp.arange(num) + jax.random.uniform(key, (), weights.dtype)) / num
    rows = jnp.searchsorted(jnp.cumsum(weights), steps.astype(weights.dtype))
    return jnp.minimum(rows, weights.shape[0] - 1)


def neighbours_in_order(z: Float[Array, "n d"]) -> Int[Array, " n"]:
    """An order in which neighbours follow each other: Morton's, along the widest directions.

    Systematic draws along it keep the mass of every region.
    """
    centred = z - jnp.mean(z, axis=0)
    along = centred @ _wide(centred)
    ranks = jnp.argsort(jnp.argsort(along, axis=0), axis=0) * 2**_BITS // len(z)
    code = jnp.zeros(len(z), jnp.int32)
    for bit in range(_BITS - 1, -1, -1):
        for axis in range(along.shape[1] - 1, -1, -1):
            code = 2 * code + ((ranks[:, axis] >> bit) & 1)
    return jnp.argsort(code)


def _wide(centred: Float[Array, "n d"]) -> Float[Array, "d k"]:
    """The three widest directions."""
    return jnp.linalg.eigh(centred.T @ centred / len(centred))[1][:, -3:]
