"""Keeps float32 and float64 runs in one process apart.

A float64 run happens within ``jax.enable_x64``, whatever the global flag says. If a traced function
closes over a NumPy array, JAX 0.9 remembers the array in the precision of the first trace for as
long as that trace lives (its weak cache of canonical constants does not know the flag). A second
trace in the other precision then fails with mixed dtypes, so the traces are dropped when the
precision changes (docs/decisions/0008-two-precisions.md).
"""

import contextlib
from collections.abc import Callable, Iterator

import jax
import numpy as np

# The flag under which the last run was traced. It is global because JAX's caches are.
_traced_wide: list[bool] = []
# Functions that clear our own caches of traces.
_clearers: list[Callable[[], None]] = []


def cleared_with_traces(clear: Callable[[], None]) -> None:
    """Register a function to call whenever traces are dropped."""
    _clearers.append(clear)


@contextlib.contextmanager
def precision(dtype: np.dtype) -> Iterator[None]:
    """The context of a run in this dtype: x64 for float64, and JAX's own setting for float32."""
    default = bool(jax.config.read("jax_enable_x64"))
    wide = default or dtype == np.float64
    if wide != (_traced_wide[-1] if _traced_wide else default):
        jax.clear_caches()
        for clear in _clearers:
            clear()
    _traced_wide[:] = [wide]
    with jax.enable_x64(wide):
        yield
