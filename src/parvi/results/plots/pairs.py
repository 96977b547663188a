"""Scatter plots of all pairs of some parameters, with modes in colours."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from parvi.results.plots.marginals import smoothed
from parvi.results.plots.style import (
    columns_of,
    few_ticks,
    labels_of,
    limits,
    new_axes,
    palette,
    short,
)

_MOST_PAIRS, _MOST_POINTS, _NUM_POINTS = 4, 4000, 200
# Letters of a name beside axes of this size.
_FEW = 20


def pairs(
    result: Any, names: Sequence[str] | None = None, axes: Any = None, modes: bool = True
) -> Any:
    """Draw every pair of some parameters, and their marginals on the diagonal.

    Parameters
    ----------
    result
        A ``Result``.
    names
        Parameters; by default the first four.
    axes
        Square array of axes to draw on.
    modes
        Whether separated modes get a colour each, which takes some log densities.

    Returns
    -------
    numpy.ndarray
        The axes.
    """
    columns, matrix = columns_of(result, names, _MOST_PAIRS), result.matrix()
    num = len(columns)
    axes = new_axes(num, num, 1.7, 1.6) if axes is None else np.asarray(axes, object)
    if axes.shape != (num, num):
        raise ValueError(f"{num} parameters need {num} x {num} axes, got {axes.shape}.")
    labels = labels_of(result) if modes else np.zeros(len(matrix), int)
    rows = np.linspace(0, len(matrix) - 1, min(len(matrix), _MOST_POINTS)).astype(int)
    colours = np.asarray(palette())[labels[rows] % len(palette())]
    for i, down in enumerate(columns):
        for j, across in enumerate(columns):
            axis = axes[i, j]
            x_limits = limits(matrix[:, across])
            if i == j:
                _diagonal(axis, matrix[:, across], labels, x_limits)
            elif j < i:
                axis.scatter(
                    matrix[rows, across], matrix[rows, down], s=4, c=colours, alpha=0.6, linewidth=0
                )
                axis.set(xlim=x_limits, ylim=limits(matrix[:, down]))
            else:
                axis.set_visible(False)
                continue
            # More would run into each other on axes of this size.
            few_ticks(axis, 3)
            if i == num - 1:
                axis.set_xlabel(short(result.names[across], _FEW))
            else:
                axis.tick_params(labelbottom=False)
            if j == 0 and i > 0:
                axis.set_ylabel(short(result.names[down], _FEW))
            elif i != j:
                axis.tick_params(labelleft=False)
    return axes


def _diagonal(axis, values, labels, x_limits) -> None:
    x = np.linspace(x_limits[0], x_limits[1], _NUM_POINTS)
    for label in np.unique(labels):
        own = values[labels == label]
        y = smoothed(own, x) * len(own) / len(values)
        axis.plot(x, y, color=palette()[label % len(palette())], linewidth=1.2)
    axis.set(xlim=x_limits, ylim=(0, None), yticks=[])
