"""The distribution of each parameter, with its quantiles."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from parvi.results.plots.style import (
    MOST,
    columns_of,
    few_ticks,
    labels_of,
    limits,
    new_axes,
    palette,
    short,
)

_SHOWN = (0.05, 0.5, 0.95)
_NUM_POINTS = 200


def marginals(result: Any, names: Sequence[str] | None = None, axes: Any = None) -> Any:
    """Draw the marginal density of some parameters, with median and 90 % interval.

    Parameters
    ----------
    result
        A ``Result``.
    names
        Parameters; the name of an array stands for all of its numbers. By default the first six.
    axes
        Array of axes to draw on, at least one for every parameter.

    Returns
    -------
    numpy.ndarray
        The axes.
    """
    columns, matrix, labels = columns_of(result, names), result.matrix(), labels_of(result)
    if axes is None:
        across = min(len(columns), MOST // 2)
        axes = new_axes(-(-len(columns) // across), across)
    flat = np.asarray(axes, object).ravel()
    if len(flat) < len(columns):
        raise ValueError(f"{len(columns)} parameters need as many axes, got {len(flat)}.")
    for axis, column in zip(flat, columns, strict=False):
        values = matrix[:, column]
        x = np.linspace(*limits(values), _NUM_POINTS)
        # One width of smoothing for all modes would fill the valleys between them.
        parts = [values[labels == label] for label in np.unique(labels)]
        y = np.sum([smoothed(own, x) * len(own) for own in parts], axis=0) / len(values)
        low, middle, high = np.quantile(values, _SHOWN)
        axis.plot(x, y, color=palette()[0], linewidth=1.5)
        inside = (x >= low) & (x <= high)
        axis.fill_between(x[inside], y[inside], color=palette()[0], alpha=0.25, linewidth=0)
        axis.axvline(middle, color=palette()[0], linewidth=1, linestyle=":")
        axis.set(title=short(result.names[column]), yticks=[], ylim=(0, None))
        few_ticks(axis, 4)
        axis.spines["left"].set_visible(False)
    for axis in flat[len(columns) :]:
        axis.set_visible(False)
    return axes


def smoothed(values: Float[np.ndarray, " n"], x: Float[np.ndarray, " m"]) -> np.ndarray:
    """A Gaussian kernel estimate, with Silverman's rule on the narrower of sd and quartiles."""
    quartiles = np.subtract(*np.quantile(values, [0.75, 0.25])) / 1.349
    spread = min(values.std(), quartiles) or values.std() or 1.0
    width = 0.9 * spread * len(values) ** -0.2
    counts, edges = np.histogram(values, bins=512)
    centres = (edges[:-1] + edges[1:]) / 2
    bumps = np.exp(-0.5 * ((x[:, None] - centres) / width) ** 2)
    return bumps @ counts / (len(values) * width * np.sqrt(2 * np.pi))
