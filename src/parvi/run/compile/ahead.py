"""Compiles the programs of later stages on two further threads, while the first stages run.

Tracing holds Python's lock, but the compiler does not, so one stage is traced while another is
compiled. The programs are the same as without these threads, and so are the bits.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parvi.kept import on_forgetting

# Hashes of what has been compiled: a second run does not ask again, and nothing is kept alive.
_compiled: set[int] = set()
on_forgetting(_compiled.clear)


def is_new(asked: Hashable) -> bool:
    """Whether this is asked for the first time."""
    found = hash(asked)
    if found in _compiled:
        return False
    _compiled.add(found)
    return True


class Ahead(contextlib.AbstractContextManager):
    """Two threads, one that traces and one that compiles, and what they were asked for.

    Leaving the context drops programs that have not been begun, and waits for those that have.
    """

    def __init__(self):
        self._tracer = concurrent.futures.ThreadPoolExecutor(1, "parvi-trace")
        self._compiler = concurrent.futures.ThreadPoolExecutor(1, "parvi-compile")
        self._asked: dict[str, concurrent.futures.Future] = {}
        self._wide = jnp.result_type(float) == np.float64

    def add(self, name: str, lowered: Callable[..., Iterator[Any]], *args: Any) -> None:
        """Lower some programs on one thread, and compile them on the other, under a name."""
        self._asked[name] = self._tracer.submit(self._lower, lowered, *args)

    def wait(self, name: str) -> None:
        """Wait until the programs of that name are ready, if they were asked for."""
        if name in self._asked:
            for compiled in self._asked[name].result():
                compiled.result()

    def drop(self) -> None:
        """Forget what was asked for, and drop what has not been begun."""
        for asked in self._asked.values():
            asked.cancel()
            if asked.done() and not asked.cancelled():
                for compiled in asked.result():
                    compiled.cancel()
        self._asked.clear()

    def __exit__(self, *_: Any) -> None:
        for pool in (self._tracer, self._compiler):
            pool.shutdown(cancel_futures=True)

    def _lower(self, lowered, *args) -> list[concurrent.futures.Future]:
        begun = []
        # Precision belongs to a thread. A program that fails here fails again, with a message,
        # when needed.
        with jax.enable_x64(self._wide), contextlib.suppress(Exception):
            for program in lowered(*args):
                begun.append(self._compiler.submit(self._compile, program))
        return begun

    def _compile(self, program):
        with jax.enable_x64(self._wide), contextlib.suppress(Exception):
            program.compile()
