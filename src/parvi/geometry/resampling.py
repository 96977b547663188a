"""Resampling of particles by their weights, so that every region keeps its mass; temperatures."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

# Bits of every coordinate in the order in which particles are resampled.
_BITS = 5
# Bisections for the next temperature.
_BISECTIONS = 40


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


def next_beta(
    gains: Float[Array, " n"],
    beta: Float[Array, ""],
    share: float,
    counts: Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """The largest temperature whose weights are worth the share of the particles.

    ``counts``: how much each particle counts; None if all count the same.
    """
    counts = jnp.ones_like(gains) if counts is None else counts
    wanted = math.log(share) + jnp.log(jnp.sum(counts))

    def enough(new):
        weights = scaled_gains(new - beta, gains)
        total = jax.scipy.special.logsumexp(weights, b=counts)
        return 2 * total - jax.scipy.special.logsumexp(2 * weights, b=counts) >= wanted

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        good = enough(middle)
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    one = jnp.ones_like(beta)
    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, (beta, one))
    # If even the smallest step costs too much, it is taken all the same.
    return jnp.where(enough(one), one, jnp.maximum(low, jnp.minimum(high, beta + 1e-6)))


def scaled_gains(factor, gains):
    """The product, with -inf where the gain is."""
    return jnp.where(jnp.isneginf(gains), -jnp.inf, factor * gains)
