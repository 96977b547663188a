"""Sums of a log likelihood over all rows of data, in blocks, so that any number of them fits.

    log p(rows | x) = sum over blocks of log p(block | x)

Reverse mode through a loop over blocks would keep what every block has computed. The gradient is
the sum of the blocks' gradients, so it is found in the same pass as the value, and nothing is kept.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from parvi.counting import largest_array, traced
from parvi.evaluation import FEWEST, even_blocks

# Limit in bytes on the largest array that the smallest block of particles makes with a block of
# rows. A CPU's cache holds less, but shorter blocks of rows make matrix products slower.
_BYTES = 1 << 28


class RowSum(eqx.Module):
    """x -> the log likelihood of all rows, summed in ``num_blocks`` blocks.

    Parameters
    ----------
    log_likelihood
        Function ``(particle, rows)`` that returns one number for each row, or their sum.
    rows
        Pytree of arrays with a common leading axis.
    num_blocks
        Number of blocks. The rest of an uneven division is a block of its own.
    """

    log_likelihood: Callable
    rows: PyTree[Array]
    num_blocks: int = 1

    def __call__(self, particle: PyTree[Array]) -> Float[Array, ""]:
        def of_block(particle, block):
            return jnp.sum(self.log_likelihood(particle, block))

        if self.num_blocks == 1:
            return of_block(particle, self.rows)

        # The derivative is that of the sum, but found block by block.
        @jax.custom_jvp
        def value(particle):
            return self._summed(of_block, particle)

        @value.defjvp
        def _(primals, tangents):
            found, slopes = self._summed(jax.value_and_grad(of_block), primals[0])
            products = jax.tree_util.tree_map(lambda g, t: jnp.sum(g * t), slopes, tangents[0])
            return found, sum(jax.tree_util.tree_leaves(products))

        return value(particle)

    def _summed(self, function: Callable, particle: PyTree[Array]) -> Any:
        """The sum over the blocks of ``function(particle, block)``."""
        num = num_rows_of(self.rows)
        size = num // self.num_blocks
        even = size * self.num_blocks

        def block(i):
            # It is every num_blocks-th row, so that each device of a mesh has its part.
            def one(leaf):
                shaped = jnp.asarray(leaf)[:even].reshape(size, self.num_blocks, *leaf.shape[1:])
                return jax.lax.dynamic_index_in_dim(shaped, i, 1, keepdims=False)

            return jax.tree_util.tree_map(one, self.rows)

        def add(total, i):
            found = function(particle, block(i))
            return jax.tree_util.tree_map(jnp.add, total, found), None

        if even < num:
            rest = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf)[even:], self.rows)
            first = function(particle, rest)
        else:
            shapes = jax.eval_shape(lambda: function(particle, block(0)))
            first = jax.tree_util.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return jax.lax.scan(add, first, jnp.arange(self.num_blocks))[0]


def num_rows_of(rows: PyTree[Array]) -> int:
    """The number of rows."""
    return jax.tree_util.tree_leaves(rows)[0].shape[0]


def blocks_for(log_density: Callable, num_rows: int, one: jax.ShapeDtypeStruct) -> int:
    """The number of blocks of rows for a log density that sums over all of them at once."""
    jaxpr = traced(log_density, one)
    # The data exist once, so only what depends on the particle counts.
    depends = [False] * (len(jaxpr.invars) - 1) + [True]
    numbers = FEWEST * largest_array(jaxpr, depends)
    least = -(-numbers * one.dtype.itemsize // _BYTES)
    return even_blocks(num_rows, max(num_rows // least, 1)) if least > 1 else 1
