"""Experiments cut into cells: each is run once, saved as one JSON file, and never run again.

A run can be stopped, resumed or spread over machines that share a folder; tables and figures are
only ever made from cells.
"""

import json
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from parvi.experiments.datasets import is_there

# What tells a cell from all others of its experiment: names and plain values.
Setting = Mapping[str, Any]


class Cell(NamedTuple):
    """A finished cell: its setting, what came out, and how long it took."""

    setting: dict[str, Any]
    result: dict[str, Any]
    seconds: float


class Experiment(NamedTuple):
    """A table or figure of the paper.

    ``settings(quick)`` lists the cells, ``run(setting)`` makes one, and ``page(cells, folder)``
    writes the section of the report, with figures in ``folder``. ``datasets`` must be there.
    """

    name: str
    title: str
    settings: Callable[[bool], list[dict]]
    run: Callable[[Setting], dict]
    page: Callable[[list[Cell], pathlib.Path], str]
    datasets: tuple[str, ...] = ()


class Progress(NamedTuple):
    """How far an experiment is; ``missing`` data sets keep it from going on."""

    done: int
    total: int
    missing: tuple[str, ...]


def progress(experiment: Experiment, folder: pathlib.Path, quick: bool = False) -> Progress:
    """How far it is."""
    settings = experiment.settings(quick)
    done = sum(_path(experiment, folder, setting).exists() for setting in settings)
    missing = tuple(name for name in experiment.datasets if not is_there(name))
    return Progress(done, len(settings), missing)


def pending(
    experiment: Experiment,
    folder: pathlib.Path,
    quick: bool = False,
    part: tuple[int, int] = (1, 1),
) -> list[dict]:
    """The settings that have no cell yet; of ``part`` (k, m), the k-th of m shares of all."""
    number, parts = part
    settings = experiment.settings(quick)
    # Stretches, not every m-th: neighbours often share what was compiled and tuned.
    share = settings[len(settings) * (number - 1) // parts : len(settings) * number // parts]
    return [setting for setting in share if not _path(experiment, folder, setting).exists()]


# The experiment and setting whose compiled programs are kept, but for seed and split.
_last: dict[str, Any] = {}


def make(experiment: Experiment, folder: pathlib.Path, setting: Setting) -> Cell:
    """Run a cell and save it; a cell that was cut off leaves nothing behind."""
    global _last
    kind = {"name": experiment.name, **setting, "seed": None, "split": None}
    if kind != _last:
        # Many compiled programs in one process exhaust the memory maps that a process may have.
        jax.clear_caches()
        _last = kind
    began = time.perf_counter()
    result = experiment.run(setting)
    cell = Cell(dict(setting), result, time.perf_counter() - began)
    path = _path(experiment, folder, setting)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        unfinished.write_text(json.dumps(cell._asdict(), indent=1) + "\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return cell


def finished(experiment: Experiment, folder: pathlib.Path, quick: bool = False) -> Iterator[Cell]:
    """The cells that are there, in the order of the settings."""
    for setting in experiment.settings(quick):
        path = _path(experiment, folder, setting)
        if path.exists():
            yield Cell(**json.loads(path.read_text()))


def _path(experiment: Experiment, folder: pathlib.Path, setting: Setting) -> pathlib.Path:
    words = [f"{name}={value}" for name, value in setting.items()]
    name = re.sub(r"[^A-Za-z0-9=.,_+-]+", "-", ",".join(words))
    return folder / experiment.name / f"{name}.json"
