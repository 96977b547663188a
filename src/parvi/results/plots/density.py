"""Particles over a density of two numbers, and what the map does to a grid."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from parvi.results.plots.style import limits, new_axes, palette
from parvi.run.surroundings import surrounded

_NUM_POINTS = 120
# The contours of a Gaussian at 1, 2, 3 and 4 standard deviations, in nats below the peak.
_LEVELS = (-8.0, -4.5, -2.0, -0.5, 0.0)


def over_density(result: Any, axis: Any = None) -> Any:
    """Draw the particles of a target of two unconstrained numbers over its log density.

    Parameters
    ----------
    result
        A ``Result`` with its target.
    axis
        The axis to draw on.

    Returns
    -------
    matplotlib.axes.Axes
        The axis.
    """
    flat, density, names = _flat_of(result, "over_density")
    axis = new_axes(1, 1, 4.0, 3.6)[0, 0] if axis is None else axis
    x, y = (np.linspace(*limits(column), _NUM_POINTS) for column in flat.T)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2).astype(flat.dtype)
    with surrounded(flat.dtype):
        values = np.asarray(jax.jit(jax.vmap(density))(grid)).reshape(len(y), len(x))
    axis.contourf(x, y, values - np.nanmax(values), levels=_LEVELS, cmap="Greys", alpha=0.6)
    axis.scatter(*flat.T, s=6, color=palette()[0], linewidth=0)
    axis.set(xlabel=names[0], ylabel=names[1], xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    return axis


def transported_grid(result: Any, axis: Any = None, num_lines: int = 17) -> Any:
    """Draw where ``result.transport`` takes the lines of a grid of two standard normals.

    Parameters
    ----------
    result
        A ``Result`` of two unconstrained numbers, with a map of one piece.
    axis
        The axis to draw on.
    num_lines
        The number of lines in each direction.

    Returns
    -------
    matplotlib.axes.Axes
        The axis.
    """
    flat, _, names = _flat_of(result, "transported_grid")
    maps = result.transport.maps
    if len(maps) != 1:
        raise ValueError(f"The map has {len(maps)} pieces, one for each mode, not a single grid.")
    axis = new_axes(1, 1, 4.0, 3.6)[0, 0] if axis is None else axis
    places, along = np.linspace(-2.5, 2.5, num_lines), np.linspace(-2.5, 2.5, 101)
    with surrounded(flat.dtype):
        moved = eqx.filter_jit(maps[0])
        for place in places:
            for line in ((np.full_like(along, place), along), (along, np.full_like(along, place))):
                ends = np.asarray(moved(np.stack(line, axis=1).astype(flat.dtype)))
                axis.plot(*ends.T, color=palette()[1], linewidth=0.7, alpha=0.8)
    axis.scatter(*flat.T, s=6, color=palette()[0], linewidth=0, zorder=3)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.set(xlim=limits(flat[:, 0]), ylim=limits(flat[:, 1]))
    return axis


def _flat_of(result, method: str) -> tuple[np.ndarray, Any, list[str]]:
    target, flat, names = result._flattened(None, method)
    if flat.shape[1] != 2:
        raise ValueError(
            f"plots.{method} draws targets of two unconstrained numbers, and this has "
            f"{flat.shape[1]}: use parvi.plots.pairs."
        )
    return np.asarray(flat), target.full(), names
