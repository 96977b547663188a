"""How times are taken: after compilation, blocked until ready, the median of several."""

import statistics
import time
from typing import NamedTuple

import jax


class Timed(NamedTuple):
    seconds: float
    compile_seconds: float


def timed(function, *arguments, repeats: int = 5) -> Timed:
    """Median seconds of a call, and what the first one took beyond that."""
    first = _once(function, arguments)
    seconds = statistics.median(_once(function, arguments) for _ in range(repeats))
    return Timed(seconds, max(first - seconds, 0.0))


def _once(function, arguments) -> float:
    before = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - before
