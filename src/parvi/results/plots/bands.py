"""Bands of predictions."""

from typing import Any

import numpy as np
from jaxtyping import Float

from parvi.results.plots.style import LEGEND, new_axes, palette


def bands(
    x: Float[np.ndarray, " m"],
    predictions: Float[np.ndarray, "n m"],
    levels: tuple[float, ...] = (0.5, 0.9),
    axis: Any = None,
) -> Any:
    """Draw the median and central intervals of predictions over x.

    Parameters
    ----------
    x
        Where the predictions are.
    predictions
        A row for every particle, such as ``result.predict(function)`` gives.
    levels
        The probability of each band.
    axis
        The axis to draw on.

    Returns
    -------
    matplotlib.axes.Axes
        The axis.
    """
    x, predictions = np.asarray(x, float), np.asarray(predictions, float)
    if x.ndim != 1 or predictions.ndim != 2 or predictions.shape[1] != len(x):
        raise ValueError(
            f"predictions must be (n, {x.size}), a row for every particle and a column for every "
            f"x, got {predictions.shape} for x of shape {x.shape}."
        )
    axis = new_axes(1, 1, 5.0, 3.0)[0, 0] if axis is None else axis
    order = np.argsort(x)
    for level in sorted(levels, reverse=True):
        low, high = np.quantile(predictions, [(1 - level) / 2, (1 + level) / 2], axis=0)
        axis.fill_between(
            x[order],
            low[order],
            high[order],
            color=palette()[0],
            alpha=0.2,
            linewidth=0,
            label=f"{100 * level:g} %",
        )
    middle = np.median(predictions, axis=0)
    axis.plot(x[order], middle[order], color=palette()[0], linewidth=1.5, label="median")
    axis.legend(**LEGEND)
    return axis
