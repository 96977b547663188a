"""One BLAS thread in the tests, as in a run: two test processes would fight over the cores."""

import scipy.linalg  # noqa: F401  loads the OpenBLAS that JAX will call
import threadpoolctl

threadpoolctl.threadpool_limits(limits=1, user_api="blas")
