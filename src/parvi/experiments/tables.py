"""Markdown tables of cells: our means with their standard errors, beside the paper's figures."""

import importlib.resources
import tomllib
from collections.abc import Sequence
from typing import Any

import numpy as np

from parvi.experiments.cells import Cell


def published(name: str) -> dict[str, Any]:
    """The paper's figures for one experiment."""
    text = importlib.resources.files("parvi.experiments").joinpath("published.toml").read_text()
    return tomllib.loads(text)[name]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def mean(values: Sequence[float], digits: int = 3) -> str:
    """The mean, with its standard error if there is more than one value."""
    if not len(values):
        return "not run"
    centre = f"{np.mean(values):.{digits}f}"
    if len(values) == 1:
        return centre
    return f"{centre} ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}"


def chosen(cells: Sequence[Cell], **settings) -> list[Cell]:
    """The cells that have these settings."""
    return [c for c in cells if all(c.setting[name] == value for name, value in settings.items())]


def values(cells: Sequence[Cell], name: str) -> list[float]:
    """One number of every cell's result."""
    return [cell.result[name] for cell in cells]


def ordering(
    cells: Sequence[Cell], ours: str, number: str, larger: bool, place: str = "dataset"
) -> str:
    """One line that says in which places a method is at or above every other one.

    Runs of the same seed and split are compared with each other. A rival is above if its lead is
    more than twice its standard error or, with a single run each, if it leads at all.
    """
    kept: list[str] = []
    lost: list[str] = []
    for where in dict.fromkeys(cell.setting[place] for cell in cells):
        here = chosen(cells, **{place: where})
        above = []
        for rival in dict.fromkeys(cell.setting["method"] for cell in here):
            lead = _lead(chosen(here, method=rival), chosen(here, method=ours), number, larger)
            if rival != ours and lead > 0:
                above.append(rival)
        (lost if above else kept).append(f"{where} ({', '.join(above)})" if above else str(where))
    text = f"{ours} is at or above every other method in {number.replace('_', '-')}: "
    text += f"{', '.join(kept) or 'nowhere'}."
    return text + (f" Below, with what is above it: {', '.join(lost)}." if lost else "") + "\n"


def _lead(theirs: Sequence[Cell], mine: Sequence[Cell], number: str, larger: bool) -> float:
    """The mean lead of ``theirs`` over ``mine``, minus two standard errors."""

    def by_run(cells):
        keys = [(c.setting.get("seed"), c.setting.get("split")) for c in cells]
        return dict(zip(keys, values(cells, number), strict=True))

    first, second = by_run(theirs), by_run(mine)
    common = [run for run in first if run in second]
    if not common:
        return -np.inf
    leads = np.array([first[run] - second[run] for run in common]) * (1 if larger else -1)
    error = np.std(leads, ddof=1) / len(leads) ** 0.5 if len(leads) > 1 else 0.0
    return float(np.mean(leads) - 2 * error)


def footnote(cells: Sequence[Cell]) -> str:
    """A line with the seeds, splits and time of a set of cells."""
    if not cells:
        return "No cell has been run.\n"
    total = sum(cell.seconds for cell in cells)
    listed = ""
    for name in ("seed", "split"):
        numbers = sorted({cell.setting[name] for cell in cells if name in cell.setting})
        if len(numbers) > 1:
            listed += f"{name}s {numbers[0]} to {numbers[-1]}; "
    return f"*{len(cells)} cells; {listed}{total:.0f} s in all, with compilation.*\n"
