"""The history of a run, stage by stage."""

import itertools
from typing import Any

import numpy as np

from parvi.results.plots.style import LEGEND, new_axes, palette

_WORDS = {
    "kl_rate": "fall of KL per time",
    "stein_ratio": "Stein ratio",
    "step_size": "step size",
    "drift": "drift",
}


def history(result: Any, columns: tuple[str, ...] | None = None, axes: Any = None) -> Any:
    """Draw columns of the history over the steps, with the stages as a coloured background.

    Parameters
    ----------
    result
        A ``Result``.
    columns
        Names of columns; by default the KL rate and the Stein ratio.
    axes
        One axis for every column.

    Returns
    -------
    numpy.ndarray
        The axes.
    """
    chosen = ("kl_rate", "stein_ratio") if columns is None else columns
    unknown = [name for name in chosen if name not in result.history]
    if unknown:
        there = ", ".join(result.history) or "none, as no step was made"
        raise ValueError(f"The history has no column {unknown[0]!r}; its columns are {there}.")
    if axes is None:
        axes = new_axes(len(chosen), 1, 6.5, 1.8)
    axes = np.atleast_1d(np.asarray(axes, object))
    for axis, name in zip(axes.ravel(), chosen, strict=True):
        values = np.asarray(result.history[name], float)
        # A step that the particles do not follow may have a rate of the other sign.
        values = np.where(values < 0, -values, np.nan) if name == "kl_rate" else values
        steps = 1 + np.arange(len(values))
        axis.plot(steps, values, color=palette()[0], linewidth=1.2, marker=".", markersize=4)
        axis.set(ylabel=_WORDS.get(name, name), xlim=(0.5, len(values) + 0.5))
        if name == "stein_ratio":
            axis.axhline(1, color="0.5", linewidth=0.8, linestyle=":")
            # At the first temperatures of a path the rate is another density's, of any size.
            axis.set_ylim(0, 2)
        elif np.all(values[np.isfinite(values)] > 0):
            axis.set_yscale("log")
        for first, last, colour, words in stages(result):
            drawn = axis.axvspan(first + 0.5, last + 0.5, color=colour, alpha=0.15, linewidth=0)
            drawn.set_label(words)
    handles, words = axes.ravel()[0].get_legend_handles_labels()
    once = dict(zip(words, handles, strict=True))
    axes.ravel()[0].legend(
        once.values(), once.keys(), loc="lower left", bbox_to_anchor=(0, 1), ncols=4, **LEGEND
    )
    axes.ravel()[-1].set_xlabel("step")
    return axes


def stages(result: Any) -> list[tuple[int, int, str, str]]:
    """The stretches of steps of one stage: first and last step, colour and name."""
    names = np.asarray(result.history.get("stage", []), str)
    if not len(names):
        return []
    cuts = np.flatnonzero(names[1:] != names[:-1]) + 1
    edges = [0, *cuts.tolist(), len(names)]
    known = {name: palette()[k % len(palette())] for k, name in enumerate(dict.fromkeys(names))}
    pairs = itertools.pairwise(edges)
    return [(first, last, known[names[first]], str(names[first])) for first, last in pairs]
