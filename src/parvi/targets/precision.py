"""Float32 and float64 runs in one process, kept apart.

A float64 run happens within ``jax.enable_x64``, whatever the global flag says. JAX 0.9 remembers a
NumPy array that a traced function closes over in the precision of its first trace, for as long as
that trace lives (its weak cache of canonical constants does not know the flag), and a second
trace in the other precision then fails with mixed dtypes. So the traces are dropped when the
precision changes: docs/decisions/0008-two-precisions.md.
"""

import contextlib
from collections.abc import Callable, Iterator

import jax
import numpy as np

_FLAG = "jax_enable_x64"

# The flag under which the last run was traced: a fact about JAX's caches, which are global too.
_traced_wide: list[bool] = []
# Caches of our own that hold traces.
_clearers: list[Callable[[], None]] = []


def cleared_with_traces(clear: Callable[[], None]) -> None:
    """Call this whenever traces are dropped."""
    _clearers.append(clear)


@contextlib.contextmanager
def precision(dtype: np.dtype) -> Iterator[None]:
    """The context of a run in this dtype: x64 for float64, JAX's own setting for float32."""
    default = bool(jax.config.read(_FLAG))
    wide = default or dtype == np.float64
    if wide != (_traced_wide[-1] if _traced_wide else default):
        jax.clear_caches()
        for clear in _clearers:
            clear()
    _traced_wide[:] = [wide]
    with jax.enable_x64(wide):
        yield
