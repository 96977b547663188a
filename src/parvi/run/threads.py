"""One BLAS thread around a run.

JAX's LAPACK calls SciPy's OpenBLAS, whose own threads compete with XLA's for the cores: one
50 x 50 solve took 16 ms instead of 0.14 ms (``benchmarks/threads.py``).
"""

import functools

import scipy.linalg  # noqa: F401  loads the OpenBLAS that JAX will call
import threadpoolctl


@functools.lru_cache(maxsize=1)
def _controller() -> threadpoolctl.ThreadpoolController:
    # Looking for the loaded libraries takes milliseconds; once is enough, as SciPy's is loaded.
    return threadpoolctl.ThreadpoolController()


def single_blas_thread():
    """A context manager; block on every array before leaving it, as dispatch is asynchronous."""
    return _controller().limit(limits=1, user_api="blas")
