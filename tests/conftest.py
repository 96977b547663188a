"""One BLAS thread in the tests, as in a run: two test processes would fight over the cores."""

import os

# Before JAX: the tests of the command line keep no compiled programs in anybody's cache folder.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import scipy.linalg  # noqa: F401  loads the OpenBLAS that JAX will call
import threadpoolctl

threadpoolctl.threadpool_limits(limits=1, user_api="blas")
