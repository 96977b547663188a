"""One BLAS thread in the tests, as in a run: two test processes would fight over the cores."""

import atexit
import gc
import os
import shutil
import signal
import tempfile

# Before JAX. What one test process compiles the other finds, in a folder that goes with the run:
# most of the time of the tests is compilation, and changing the precision drops all programs.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _folder = tempfile.mkdtemp(prefix="parvi-tests-")
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _folder
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    # A tenth of the time goes into saying from which line of Python every operation comes.
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
    os.environ["JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS"] = "false"
    # XLA would say, on standard error, of every program that it finds that it found it.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import pytest
import scipy.linalg  # noqa: F401  loads the OpenBLAS that JAX will call
import threadpoolctl

threadpoolctl.threadpool_limits(limits=1, user_api="blas")

# Folders of tests that try one formula on many kernels, shapes and dtypes.
FIRST_QUICK = ("fields", "oracle")
# Examples in docstrings of samplers and models which tests run too.
SLOW_EXAMPLES = (
    "parvi.calibration.calibrate.calibrate",
    "parvi.estimators.linear.BayesianLinearRegression",
    "parvi.estimators.logistic.BayesianLogisticRegression",
    "parvi.estimators.poisson.BayesianPoissonRegression",
    "parvi.samplers.default.pfg",
    "parvi.samplers.nuts.nuts",
    "parvi.samplers.stein_neural_sampler.SteinNeuralSampler",
)


# Whole runs of the default, of which one test is a large part of what is left at the end: they come
# first, so that both processes end together. The scheduler would begin with files of many tests.
LONG = ("test_readme.py", "test_command_line.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """The tests of one file run in one process, where they share fixtures and programs.

    Of a test that is marked ``first_quick``, or is in one of those folders, all cases but the first
    are slow.
    """
    seen = set()
    for item in items:
        folder = item.path.parent.name
        if folder in FIRST_QUICK or item.get_closest_marker("first_quick") is not None:
            test = item.nodeid.partition("[")[0]
            if test in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(test)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        if item.name in SLOW_EXAMPLES:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish():
    """What is imported stays: collections need not look at it after every few hundred objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


@pytest.fixture
def interruptible():
    """Python's own handlers: a shell ignores SIGINT in background jobs, and nohup SIGHUP."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hung_up)
