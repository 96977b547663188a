"""One BLAS thread around a run.

Under JAX's LAPACK stands SciPy's OpenBLAS with threads of its own, which fight with XLA's for the
cores: one 50 x 50 solve was seen at 16 ms instead of 0.14 ms (``benchmarks/threads.py``).
"""

import functools

import scipy.linalg  # noqa: F401  loads the OpenBLAS that JAX will call
import threadpoolctl


@functools.lru_cache(maxsize=1)
def _controller() -> threadpoolctl.ThreadpoolController:
    # Looking for the loaded libraries takes milliseconds: once is enough, SciPy's is loaded above.
    return threadpoolctl.ThreadpoolController()


def single_blas_thread():
    """Context manager; block on every array before it is left, dispatch is asynchronous."""
    return _controller().limit(limits=1, user_api="blas")
