"""Means over all pairs of points, one tile of the distance matrix at a time.

A tile is at most ``block_size`` x ``block_size``, so memory does not grow with n^2. For pairs
within one sample, only the tiles on and above the diagonal are visited.
"""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float

# A tile is 8 MB: matrix products run at full speed, and a handful of tiles fit any machine.
BLOCK_SIZE = 1024

Function = Callable[[np.ndarray], np.ndarray]


def mean_over_pairs(
    function: Function, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"], block_size: int
) -> float:
    """E[function(|x - y|^2)] over all pairs of two samples."""
    centre = y.mean(axis=0)
    x, y = x - centre, y - centre
    total = 0.0
    for rows in blocks(len(x), block_size):
        for columns in blocks(len(y), block_size):
            total += float(function(squares(x[rows], y[columns])).sum())
    return total / (len(x) * len(y))


def mean_over_own_pairs(
    function: Function, x: Float[np.ndarray, "n d"], block_size: int, distinct: bool
) -> float:
    """E[function(|x - x'|^2)] within a sample, without self-pairs if ``distinct``."""
    x = x - x.mean(axis=0)
    num = len(x)
    at_zero = float(function(np.zeros(1))[0])
    total = 0.0
    for rows in blocks(num, block_size):
        own = squares(x[rows], x[rows])
        np.fill_diagonal(own, 0.0)
        total += float(function(own).sum())
        for columns in blocks(num, block_size, first=rows.stop):
            total += 2 * float(function(squares(x[rows], x[columns])).sum())
    return (total - num * at_zero) / (num * (num - 1)) if distinct else total / num**2


def blocks(num: int, block_size: int, first: int = 0) -> Iterator[slice]:
    """Slices of at most ``block_size`` that cover first, ..., num - 1."""
    for start in range(first, num, block_size):
        yield slice(start, min(start + block_size, num))


def squares(x: Float[np.ndarray, "a d"], y: Float[np.ndarray, "b d"]) -> Float[np.ndarray, "a b"]:
    """|x_i - y_j|^2 by one matrix product. Centre the points first to limit rounding."""
    out = x @ (-2 * y.T)
    out += np.sum(x**2, axis=1)[:, None]
    out += np.sum(y**2, axis=1)
    return np.maximum(out, 0.0, out=out)
