"""What several tests of runs need."""

import signal

import pytest


@pytest.fixture
def interruptible():
    """Python's own handlers: a shell ignores SIGINT in background jobs, and nohup SIGHUP."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hung_up)
