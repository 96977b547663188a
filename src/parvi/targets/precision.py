"""Keeps float32 and float64 runs in one process apart.

A float64 run happens within ``jax.enable_x64``, whatever the global flag says. If a traced function
closes over a NumPy array, JAX 0.9 remembers the array in the precision of the first trace for as
long as that trace lives: its weak cache of canonical constants does not know the flag. A second
trace in the other precision would then fail with mixed dtypes. So this module gives each precision
a cache of its own (docs/decisions/0008-two-precisions.md).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import abstract_arrays, dtypes, literals
from jax._src.config import enable_x64
from jax._src.lib import weakref_lru_cache

from parvi.counted import Counted


def _cache() -> Any:
    @weakref_lru_cache.weak_key_weak_value_cache
    def canonical(array):
        dtype = dtypes.canonicalize_dtype(array.dtype)
        return literals.TypedNdArray(np.asarray(array, dtype), weak_type=False)

    return canonical


_caches = {False: _cache(), True: _cache()}


def _canonical(array: np.ndarray) -> Any:
    """What JAX does with a NumPy array in a traced function, in one cache for each precision."""
    return _caches[bool(jax.config.jax_enable_x64)](array)  # type: ignore[attr-defined]


_theirs = abstract_arrays._canonicalize_ndarray_dtype
if dtypes.canonicalize_value_handlers.get(np.ndarray) is _theirs:
    dtypes.canonicalize_value_handlers[np.ndarray] = _canonical


def _wide():
    # The flag of all threads, not that of this one.
    before = bool(enable_x64.get_global())
    jax.config.update("jax_enable_x64", True)
    return lambda: jax.config.update("jax_enable_x64", before)


_everywhere = Counted(_wide)


@contextlib.contextmanager
def wide_in_all_threads() -> Iterator[None]:
    """float64 in every thread, for host callbacks: JAX calls them on threads of its own.

    Elsewhere precision belongs to the thread of the run.
    """
    with _everywhere():
        yield


@contextlib.contextmanager
def precision(dtype: np.dtype) -> Iterator[None]:
    """The context of a run in this dtype: x64 for float64, and JAX's own setting for float32."""
    wide = bool(jax.config.read("jax_enable_x64")) or dtype == np.float64
    with jax.enable_x64(wide):
        yield
