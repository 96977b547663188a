"""The settings of JAX and of the process around a run, and those with which a run cannot work."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.core import trace_state_clean

from parvi.run.threads import single_blas_thread
from parvi.targets.precision import precision

# Whether this process was forked from one that had used JAX: its threads are gone.
_forked: list[bool] = []


def _note_fork() -> None:
    if xla_bridge.backends_are_initialized():
        _forked.append(True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def check_surroundings() -> None:
    """Raise a ``ValueError`` where a run cannot work."""
    if _forked:
        raise ValueError(
            "This process was forked from one that has used JAX, whose threads a fork does not "
            "copy: a run would hang. Start processes by multiprocessing.get_context('spawn') or "
            "'forkserver'."
        )
    if not trace_state_clean():
        raise ValueError(
            "parvi.sample was called inside jax.jit, vmap, grad or another transformation, and it "
            "decides on the host when to stop: call it outside, and once for every run."
        )


@contextlib.contextmanager
def plain_settings() -> Iterator[None]:
    """JAX's standard settings, whatever the user's own are for debugging his functions.

    A run meets NaN and infinities on its way and puts such particles back, and its own operations
    mix ranks and weak types.
    """
    # Only the attributes know what a context manager has set; their types do not.
    config: Any = jax.config
    with contextlib.ExitStack() as stack:
        if config.jax_debug_nans:
            stack.enter_context(jax.debug_nans(False))
        if config.jax_debug_infs:
            stack.enter_context(jax.debug_infs(False))
        if config.jax_numpy_dtype_promotion != "standard":
            stack.enter_context(jax.numpy_dtype_promotion("standard"))
        if config.jax_numpy_rank_promotion != "allow":
            stack.enter_context(jax.numpy_rank_promotion("allow"))
        stack.enter_context(jax.transfer_guard("allow"))
        yield


@contextlib.contextmanager
def surrounded(dtype: np.dtype) -> Iterator[None]:
    """The precision, the BLAS threads and the settings of JAX that a run has."""
    with single_blas_thread(), plain_settings(), precision(dtype):
        yield
