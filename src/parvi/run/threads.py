"""One BLAS thread around a run.

JAX's LAPACK calls SciPy's OpenBLAS, whose own threads compete with XLA's for the cores: one
50 x 50 solve took 16 ms instead of 0.14 ms (``benchmarks/threads.py``).
"""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import scipy.linalg  # noqa: F401  loads the OpenBLAS that JAX will call
import threadpoolctl


@functools.lru_cache(maxsize=1)
def _controller() -> threadpoolctl.ThreadpoolController:
    # Looking for the loaded libraries takes milliseconds; once is enough, as SciPy's is loaded.
    return threadpoolctl.ThreadpoolController()


class _Limit:
    """The limit of all runs that are under way, which the last of them to end takes back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num = 0
        self._limiter: Any = None

    def enter(self) -> None:
        with self._lock:
            if self._num == 0:
                self._limiter = _controller().limit(limits=1, user_api="blas")
            self._num += 1

    def leave(self) -> None:
        with self._lock:
            self._num -= 1
            if self._num == 0:
                self._limiter.restore_original_limits()


_limit = _Limit()


@contextlib.contextmanager
def single_blas_thread() -> Iterator[None]:
    """Block on every array before leaving the context, as dispatch is asynchronous."""
    _limit.enter()
    try:
        yield
    finally:
        _limit.leave()
