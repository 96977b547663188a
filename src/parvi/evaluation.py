"""Evaluates log densities and scores of all particles, in blocks if they are too large at once.

A likelihood of many rows makes arrays of (particles x rows). Once they do not fit into a CPU's
cache, every operation waits for memory, and eventually they do not fit into memory either. Their
size for one particle is therefore taken from the traced log density, and the particles are
evaluated in blocks that keep the largest array small.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Float

from parvi.counting import largest_array, numbers_of
from parvi.kept import carefully, kept

# Limit in bytes on the largest array of a block: a part of a CPU's last cache, or a share of a
# GPU's memory.
_CPU_BYTES = 1 << 23
_GPU_BYTES = 1 << 30
# Minimum number of particles in a block. On 100 000 rows, 32 of them took a third longer than 64.
FEWEST = 64

# With these options XLA compiles two to four times faster, and the program is slower by as much.
QUICK: dict[str, str | bool] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": "0",
    # One piece: the threads that would share the work have programs of other stages to compile.
    "xla_cpu_parallel_codegen_split_count": "1",
}
# Most numbers that a quickly compiled program may compute at a time: 50 ms at 2.5 ns each.
LIGHT = 20_000_000


def quickly(function: Callable) -> Any:
    """``eqx.filter_jit`` with the compiler at its least effort."""
    # Equinox passes further settings on to jax.jit, but its types do not say so.
    jit: Any = eqx.filter_jit
    return kept(jit(function, compiler_options=QUICK))


def values_and_scores(
    log_density: Callable[[Float[Array, " d"]], Float[Array, ""]], particles: Float[Array, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
    """The log density and its gradient at every particle."""
    num, dim = particles.shape
    one = jax.ShapeDtypeStruct((dim,), particles.dtype)
    traced = jax.make_jaxpr(jax.value_and_grad(log_density))(one)

    # run/compile/policy uses this name to separate the cost of a step from its log density's.
    def asked_density(block):
        return jax.vmap(jaxpr_as_fun(traced))(block)

    # Batches are made from the trace, so that the user's function is traced once.
    batch = jax.jit(asked_density)
    count = num_blocks(num, largest_array(traced.jaxpr), particles.dtype.itemsize)
    if count == 1:
        values, scores = batch(particles)
        return values.astype(particles.dtype), scores
    size = -(-num // count)
    missing = count * size - num
    filled = jnp.concatenate([particles, particles[:missing]]) if missing else particles
    # A block is every count-th particle, so that each device of a mesh has a part of every block.
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
    """``values_and_scores``, compiled with care unless there are few numbers to compute."""
    num, dim = particles.shape
    one = jax.ShapeDtypeStruct((dim,), particles.dtype)
    light = jax.default_backend() == "cpu" and num * numbers_of(log_density, one) <= LIGHT
    return (_quick if light else _careful)(log_density, particles)


_careful = carefully(values_and_scores)
_quick = quickly(values_and_scores)


def num_blocks(num: int, numbers: int, bytes_each: int) -> int:
    """The number of blocks, if a particle's largest array has this many numbers."""
    limit = _CPU_BYTES if jax.default_backend() == "cpu" else _GPU_BYTES
    size = max(limit // max(numbers * bytes_each, 1), FEWEST)
    return even_blocks(num, size)


def even_blocks(num: int, size: int, within: int = 2) -> int:
    """The number of blocks of about this size, below ``within`` times the minimum.

    It is a divisor of n, so that all blocks have one size, or the minimum if there is none.
    """
    least = -(-num // size)
    return next((count for count in range(least, within * least) if num % count == 0), least)
