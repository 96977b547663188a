"""One BLAS thread in the tests, as in a run; and no program is compiled twice."""

import pathlib
import tempfile

import jax
import scipy.linalg  # noqa: F401  loads the OpenBLAS that JAX will call
import threadpoolctl

# Two test processes would fight over the cores.
threadpoolctl.threadpool_limits(limits=1, user_api="blas")

# Most of the time goes into compilation, often of a program that another test has compiled before
# JAX's own caches were dropped, or in the other process.
_CACHE = pathlib.Path(tempfile.gettempdir()) / "parvi-test-programs"
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
