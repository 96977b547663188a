"""Markdown tables of cells: ours, with its standard error over the seeds, beside the paper's."""

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
    """The mean with its standard error, where there is more than one value."""
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


def footnote(cells: Sequence[Cell]) -> str:
    """Seeds, splits and time of a set of cells."""
    if not cells:
        return "No cell has been run.\n"
    total = sum(cell.seconds for cell in cells)
    listed = ""
    for name in ("seed", "split"):
        numbers = sorted({cell.setting[name] for cell in cells if name in cell.setting})
        if len(numbers) > 1:
            listed += f"{name}s {numbers[0]} to {numbers[-1]}; "
    return f"*{len(cells)} cells; {listed}{total:.0f} s in all, with compilation.*\n"
