"""Log densities and scores of all particles: at once, or in blocks where that is too much.

A likelihood of many rows makes arrays of (particles x rows). Once they do not fit into a CPU's
cache every operation waits for memory, and at last they do not fit into that either. So their size
for one particle is read off the traced log density, and the particles are taken in blocks for
which the largest stays small.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Float

from parvi.counting import largest_array, numbers_of

# Bytes of the largest array that a block makes: a part of a CPU's last cache; of a GPU, a share of
# its memory.
_CPU_BYTES = 1 << 23
_GPU_BYTES = 1 << 30
# Particles in a block at the least: 32 of them on 100 000 rows took a third longer than 64.
_FEWEST = 64

# Of XLA's own debug options: compiled two to four times sooner, and as much slower.
QUICK: dict[str, str | bool] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": "0",
}
# Numbers, at most, that quickly compiled programs compute at a time: at 2.5 ns each 50 ms.
LIGHT = 20_000_000


def quickly(function: Callable) -> Any:
    """``eqx.filter_jit`` with the compiler at its least effort."""
    # Equinox hands further settings on to jax.jit; its types do not say so.
    jit: Any = eqx.filter_jit
    return jit(function, compiler_options=QUICK)


def values_and_scores(
    log_density: Callable[[Float[Array, " d"]], Float[Array, ""]], particles: Float[Array, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
    """The log density and its gradient at every particle."""
    num, dim = particles.shape
    one = jax.ShapeDtypeStruct((dim,), particles.dtype)
    traced = jax.make_jaxpr(jax.value_and_grad(log_density))(one)

    # By this name the cost of a step is told from that of its log density (run/compile/policy).
    def asked_density(block):
        return jax.vmap(jaxpr_as_fun(traced))(block)

    # The user's function is traced once: its batches are made from what was traced.
    batch = jax.jit(asked_density)
    count = num_blocks(num, largest_array(traced.jaxpr), particles.dtype.itemsize)
    if count == 1:
        values, scores = batch(particles)
        return values.astype(particles.dtype), scores
    size = -(-num // count)
    missing = count * size - num
    filled = jnp.concatenate([particles, particles[:missing]]) if missing else particles
    # Every count-th particle: each device of a mesh has its part of every block.
    rows = filled.reshape(size, count, dim)

    def body(i, found):
        block = batch(jax.lax.dynamic_index_in_dim(rows, i, 1, keepdims=False))
        return tuple(
            jax.lax.dynamic_update_index_in_dim(column, part.astype(column.dtype), i, 1)
            for column, part in zip(found, block, strict=True)
        )

    zeros = jnp.zeros((size, count), particles.dtype), jnp.zeros_like(rows)
    values, scores = jax.lax.fori_loop(0, count, body, zeros)
    return values.reshape(-1)[:num], scores.reshape(-1, dim)[:num]


def evaluate(
    log_density: Callable[[Float[Array, " d"]], Float[Array, ""]], particles: Float[Array, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
    """``values_and_scores``, compiled: with care, unless they are few numbers."""
    num, dim = particles.shape
    one = jax.ShapeDtypeStruct((dim,), particles.dtype)
    light = jax.default_backend() == "cpu" and num * numbers_of(log_density, one) <= LIGHT
    return (_quick if light else _careful)(log_density, particles)


_careful = eqx.filter_jit(values_and_scores)
_quick = quickly(values_and_scores)


def num_blocks(num: int, numbers: int, bytes_each: int) -> int:
    """Into how many blocks, for so many numbers in a particle's largest array."""
    limit = _CPU_BYTES if jax.default_backend() == "cpu" else _GPU_BYTES
    size = max(limit // max(numbers * bytes_each, 1), _FEWEST)
    return even_blocks(num, size)


def even_blocks(num: int, size: int, within: int = 2) -> int:
    """How many blocks of about this size, at most ``within`` times as many as there must be.

    A divisor of n, so that all are of one size; where there is none, as few as there must be.
    """
    least = -(-num // size)
    return next((count for count in range(least, within * least) if num % count == 0), least)
