"""One BLAS thread around a run.

JAX's LAPACK calls SciPy's OpenBLAS, whose own threads compete with XLA's for the cores: one
50 x 50 solve took 16 ms instead of 0.14 ms (``benchmarks/threads.py``).
"""

import contextlib
import functools
from collections.abc import Iterator

import scipy.linalg  # noqa: F401  loads the OpenBLAS that JAX will call
import threadpoolctl

from parvi.counted import Counted


@functools.lru_cache(maxsize=1)
def _controller() -> threadpoolctl.ThreadpoolController:
    # Looking for the loaded libraries takes milliseconds; once is enough, as SciPy's is loaded.
    return threadpoolctl.ThreadpoolController()


def _limited():
    return _controller().limit(limits=1, user_api="blas").restore_original_limits


_limit = Counted(_limited)


@contextlib.contextmanager
def single_blas_thread() -> Iterator[None]:
    """Block on every array before leaving the context, as dispatch is asynchronous."""
    with _limit():
        yield
