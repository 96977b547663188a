"""Which compiled programs are kept: those of the last few functions that were sampled.

A program of a user's function lives as long as the compiled function that has it in its cache. In
a loop over fresh closures these would pile up, at about 20 MB and 500 memory maps each.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

# The number of functions whose programs are kept.
MOST = 16

_clearers: list[Callable[[], None]] = []
_seen: OrderedDict[Any, None] = OrderedDict()
_lock = threading.Lock()


def on_forgetting(clear: Callable[[], None]) -> None:
    """Register a function that drops programs."""
    _clearers.append(clear)


def kept(jitted: Any) -> Any:
    """A function of ``jax.jit`` or ``eqx.filter_jit`` whose programs are dropped in time."""
    inner = getattr(jitted, "_cached", jitted)
    on_forgetting(inner.clear_cache)
    return jitted


def carefully(function: Callable) -> Any:
    """``eqx.filter_jit`` for functions of a user's log density."""
    return kept(eqx.filter_jit(function))


def note(target: Any) -> None:
    """Note that a target is about to be sampled, and drop all programs if there were many."""
    functions = [leaf for leaf in jax.tree_util.tree_leaves(target) if callable(leaf)]
    try:
        function = hash(tuple(functions))
    except TypeError:
        # What cannot be hashed cannot be found again either.
        function = hash(tuple(map(id, functions)))
    with _lock:
        new = function not in _seen
        _seen[function] = None
        _seen.move_to_end(function)
        full = new and len(_seen) > MOST
        if full:
            _seen.clear()
            _seen[function] = None
    if full:
        forget()


def forget() -> None:
    """Drop all programs of users' functions. They are compiled anew when they are next needed."""
    for clear in _clearers:
        clear()
