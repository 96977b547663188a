"""Rows of data as the models see them: without repetitions, standardised, padded to a few lengths.

Equal rows become one with the sum of their weights, in sorted order. So a weight of two gives the
same as the row given twice, to the last bit, and the order of the rows does not matter. Rows of
weight zero are then added until the number of rows is one of a few, so that the folds of a
cross-validation, which differ by a row or two, share their compiled programs.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# More rows than this are used as they are: sorting and padding would take memory and time.
_MOST = 1 << 16
_FEWEST = 64
# Numbers of rows are rounded up to multiples of an eighth of the power of two below them.
_PARTS = 8


class Rows(NamedTuple):
    """Inputs, outcomes and weights, with a leading axis of rows."""

    x: Float[np.ndarray, "rows d"]
    y: Float[np.ndarray, " rows"]
    weights: Float[np.ndarray, " rows"]


class Scaling(NamedTuple):
    """z = (x - centre) / scale."""

    centre: Float[np.ndarray, "..."]
    scale: Float[np.ndarray, "..."]

    def __call__(self, x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return (x - self.centre) / self.scale


def merged(
    x: Float[np.ndarray, "rows d"],
    y: Float[np.ndarray, " rows"],
    weights: Float[np.ndarray, " rows"],
) -> Rows:
    """The rows of positive weight, each once, with the sum of its weights."""
    given = weights > 0
    x, y, weights = x[given], y[given], weights[given]
    if len(x) > _MOST:
        return Rows(x, y, weights)
    both = np.column_stack([x, y])
    order = np.lexsort(both.T[::-1])
    both, weights = both[order], weights[order]
    first = np.ones(len(both), bool)
    first[1:] = (both[1:] != both[:-1]).any(axis=1)
    sums = np.add.reduceat(weights, np.flatnonzero(first))
    return Rows(both[first, :-1], both[first, -1], sums)


def scaling_of(
    values: Float[np.ndarray, "rows ..."], weights: Float[np.ndarray, " rows"], centred: bool = True
) -> Scaling:
    """The weighted mean and standard deviation; constants have the scale 1."""
    shares = weights / weights.sum()
    centre = shares @ values if centred else np.zeros(values.shape[1:])
    scale = np.sqrt(shares @ (values - centre) ** 2)
    # A constant differs from its mean by rounding.
    tiny = 100 * np.finfo(values.dtype).eps * np.abs(centre)
    return Scaling(centre, np.where(scale > tiny, scale, 1.0))


def padded(rows: Rows) -> Rows:
    """The rows, filled up with rows of weight zero."""
    num = len(rows.x)
    if num > _MOST:
        return rows
    missing = rounded(num) - num
    return Rows(
        *(np.concatenate([part, np.zeros_like(part[:1]).repeat(missing, 0)]) for part in rows)
    )


def rounded(num: int) -> int:
    """The number of rows after padding, at most an eighth more for 64 rows and above."""
    if num <= _FEWEST:
        return _FEWEST
    unit = max(1, (1 << (num.bit_length() - 1)) // _PARTS)
    return -(-num // unit) * unit
