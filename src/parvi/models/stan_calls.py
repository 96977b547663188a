"""Calls of BridgeStan from compiled JAX programs.

One callback serves all particles. Numbers go through it as bits in uint32: JAX may call on a thread
on which x64 is off, and would round float64 there. The value, the score and the products of the
Hessian with vectors are BridgeStan's. They are in two functions with their own derivatives, so
that forward over reverse mode is right too.
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Stan's stack of derivatives belongs to the process, unless it was compiled for threads.
_LOCK = threading.Lock()


def on_host(
    function: Callable, given: Float[Array, " k"], shape: tuple[int, ...]
) -> Float[Array, "..."]:
    """``function`` of all rows at once; it returns one row of this shape for each.

    Parameters
    ----------
    function
        From an ``(n, k)`` array in float64 to an ``(n, ...)`` one.
    given
        One row.
    shape
        The shape of what one row becomes.
    """
    dtype = np.dtype(given.dtype)
    pair = (2,) if dtype == np.float64 else ()
    width = given.shape[-1]

    def call(bits):
        bits = np.ascontiguousarray(bits)
        lead = bits.shape[: bits.ndim - 1 - len(pair)]
        rows = bits.view(dtype).reshape(-1, width).astype(np.float64)
        found = np.ascontiguousarray(np.asarray(function(rows)).astype(dtype))
        return found.view(np.uint32).reshape(*lead, *shape, *pair)

    out = jax.ShapeDtypeStruct((*shape, *pair), np.uint32)
    bits = jax.lax.bitcast_convert_type(given, jnp.uint32)
    found = jax.pure_callback(call, out, bits, vmap_method="broadcast_all")
    return jax.lax.bitcast_convert_type(found, given.dtype)


class Calls:
    """The log density of a Stan model as a JAX function.

    Attributes
    ----------
    trouble
        What Stan last said of a point that it rejected.
    """

    def __init__(self, stan: Any):
        self.stan, self.lock, self.trouble = stan, _LOCK, ""
        both = jax.custom_jvp(self._both)
        value = jax.custom_jvp(self._value)

        @both.defjvp
        def _(primals, tangents):
            (x,), (direction,) = primals, tangents
            found, scores = both(x)
            pair = jnp.concatenate([x, direction])
            bent = on_host(self._products, pair, x.shape)
            return (found, scores), (scores @ direction, bent)

        @value.defjvp
        def _(primals, tangents):
            found, scores = both(primals[0])
            return found, scores @ tangents[0]

        self.log_density = value

    def _value(self, x):
        return on_host(self._values, x, ())

    def _both(self, x):
        found = on_host(self._gradients, x, (x.shape[0] + 1,))
        return found[0], found[1:]

    def _values(self, rows):
        return self._each(rows, lambda row, into: self.stan.log_density(row), ())

    def _gradients(self, rows):
        def one(row, into):
            into[0] = self.stan.log_density_gradient(row, out=into[1:])[0]

        return self._each(rows, one, (rows.shape[1] + 1,))

    def _products(self, pairs):
        dim = pairs.shape[1] // 2

        def one(pair, into):
            self.stan.log_density_hessian_vector_product(pair[:dim], pair[dim:], out=into)

        return self._each(pairs, one, (dim,))

    def _each(self, rows, function, shape):
        """A function of every row; -inf or NaN where Stan rejects the point."""
        out = np.empty((len(rows), *shape))
        with self.lock:
            for i, row in enumerate(rows):
                try:
                    found = function(row, out[i] if shape else None)
                    if not shape:
                        out[i] = found
                except RuntimeError as error:
                    self.trouble = str(error).strip()
                    out[i] = np.nan if shape else -np.inf
        return out
