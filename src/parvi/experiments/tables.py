"""Markdown tables of cells: our means with their standard errors, beside the paper's figures."""

import importlib.resources
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


def distinct(cells: Sequence[Cell], name: str) -> list[Any]:
    """The values of a setting, in the order of the cells."""
    return list(dict.fromkeys(cell.setting[name] for cell in cells))


def values(cells: Sequence[Cell], name: str, scale: float = 1) -> list[float]:
    """One number of every cell's result, times ``scale``."""
    return [scale * cell.result[name] for cell in cells]


def median(cells: Sequence[Cell], name: str, digits: int = 1) -> str:
    """The median of one number of the results."""
    return f"{np.median(values(cells, name)):.{digits}f}"


def step_sizes(cells: Sequence[Cell]) -> str:
    """The step sizes that validation has chosen."""
    sizes = sorted({cell.result["step_size"] for cell in cells} - {None})
    return ", ".join(f"{size:g}" for size in sizes) or "none"


class Score(NamedTuple):
    """A number of the results, its digits and scale, and the format of the paper's figure."""

    number: str
    digits: int
    scale: float = 1
    printed: str = ""


def versus(
    cells: Sequence[Cell], name: str, scores: Sequence[Score], methods: Sequence[str] = ()
) -> list[list[str]]:
    """Rows for each data set and method, with the figures that the paper prints under ``name``.

    A row has the data set, the method, each score with the paper's, the step sizes and the seconds.
    The methods come in the order of the cells, unless ``methods`` gives another.
    """
    paper, rows = published(name), []
    for dataset in distinct(cells, "dataset"):
        here = chosen(cells, dataset=dataset)
        known = distinct(here, "method")
        for method in [m for m in methods if m in known] or known:
            mine = chosen(here, method=method)
            printed = paper.get(dataset, {}).get(method)
            row = [dataset, method]
            for i, score in enumerate(scores):
                row.append(mean(values(mine, score.number, score.scale), score.digits))
                row.append("" if printed is None else f"{printed[i]:{score.printed}}")
            rows.append([*row, step_sizes(mine), median(mine, "seconds")])
    return rows


def crossed(
    cells: Sequence[Cell],
    places: tuple[str, str],
    score: Score,
    paper: Mapping[str, Mapping[str, float]],
    last: tuple[str, str] = ("seconds", "seconds"),
) -> str:
    """A table of one score by method and by a setting, with the paper's figures in brackets.

    ``places`` is the setting with its letter in the header. ``last`` is the number of the last
    column, a median, with its header.
    """
    setting, letter = places
    found = sorted(distinct(cells, setting))
    rows = []
    for method in distinct(cells, "method"):
        mine = chosen(cells, method=method)
        row = [method]
        for place in found:
            ours = values(chosen(mine, **{setting: place}), score.number, score.scale)
            theirs = paper.get(method, {}).get(str(place))
            printed = "" if theirs is None else f" ({theirs:{score.printed}})"
            row.append(mean(ours, score.digits) + printed if ours else "")
        rows.append([*row, median(mine, last[0])])
    return markdown(["", *(f"{letter} = {place}" for place in found), last[1]], rows)


def ordering(cells: Sequence[Cell], ours: str, number: str, larger: bool) -> str:
    """One line that says on which data sets a method is at or above every other one.

    Runs of the same seed and split are compared with each other. A rival is above if its lead is
    more than twice its standard error or, with a single run each, if it leads at all. Data sets on
    which the method has not run are left out.
    """
    above: dict[str, list[str]] = {}
    for where in distinct(cells, "dataset"):
        here = chosen(cells, dataset=where)
        mine = chosen(here, method=ours)
        if not mine:
            continue
        above[where] = [
            rival
            for rival in distinct(here, "method")
            if rival != ours and _lead(chosen(here, method=rival), mine, number, larger) > 0
        ]
    if not above:
        return f"{ours} has not been run.\n"
    kept = [where for where, rivals in above.items() if not rivals]
    lost = [f"{where} ({', '.join(rivals)})" for where, rivals in above.items() if rivals]
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
