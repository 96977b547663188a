"""Experiments are cut into cells: each is run once and saved as one JSON file.

A run can be stopped, resumed or spread over machines that share a folder. Tables and figures are
made only from cells.
"""

import json
import os
import pathlib
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from parvi.experiments.datasets import is_there
from parvi.status import NotAtRestWarning

# The names and plain values that identify a cell of an experiment.
Setting = Mapping[str, Any]


class Cell(NamedTuple):
    """A finished cell: its setting, its result, and the seconds it took."""

    setting: dict[str, Any]
    result: dict[str, Any]
    seconds: float


class Experiment(NamedTuple):
    """A table or figure of the paper.

    ``settings(quick)`` lists the cells, ``run(setting)`` makes one, and ``page(cells, folder)``
    writes the section of the report, with figures in ``folder``. It needs the data in ``datasets``.
    """

    name: str
    title: str
    settings: Callable[[bool], list[dict]]
    run: Callable[[Setting], dict]
    page: Callable[[list[Cell], pathlib.Path], str]
    datasets: tuple[str, ...] = ()


class Progress(NamedTuple):
    """The progress of an experiment, which cannot go on without its ``missing`` data sets."""

    done: int
    total: int
    missing: tuple[str, ...]


def progress(experiment: Experiment, folder: pathlib.Path, quick: bool = False) -> Progress:
    """The progress of an experiment."""
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
    """The settings without a cell; ``part`` = (k, m) selects the k-th of m shares of all."""
    number, parts = part
    settings = experiment.settings(quick)
    # A share is a contiguous stretch, as neighbours often share compiled programs and tuning.
    share = settings[len(settings) * (number - 1) // parts : len(settings) * number // parts]
    return [setting for setting in share if not _path(experiment, folder, setting).exists()]


# The experiment and setting, except seed and split, whose compiled programs are kept.
_last: dict[str, Any] = {}


def make(experiment: Experiment, folder: pathlib.Path, setting: Setting) -> Cell:
    """Run a cell and save it; an interrupted cell leaves nothing behind."""
    global _last
    kind = {"name": experiment.name, **setting, "seed": None, "split": None}
    if kind != _last:
        # Many compiled programs would exhaust the memory maps of one process.
        jax.clear_caches()
        _last = kind
    began = time.perf_counter()
    with warnings.catch_warnings():
        # The cell has the status.
        warnings.simplefilter("ignore", NotAtRestWarning)
        # Networks begin with equal precisions; the page says what is done about that.
        warnings.filterwarnings("ignore", "All particles start alike", UserWarning)
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
    """The finished cells, in the order of the settings."""
    for setting in experiment.settings(quick):
        path = _path(experiment, folder, setting)
        if path.exists():
            yield _read(path)


def _read(path: pathlib.Path) -> Cell:
    try:
        cell = Cell(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a cell ({error}); remove it to run it again.") from error
    if "INTERRUPTED" in json.dumps(cell.result):
        raise ValueError(f"{path} is of an interrupted run; remove it to run it again.")
    return cell


def _path(experiment: Experiment, folder: pathlib.Path, setting: Setting) -> pathlib.Path:
    words = [f"{name}={value}" for name, value in setting.items()]
    name = re.sub(r"[^A-Za-z0-9=.,_+-]+", "-", ",".join(words))
    return folder / experiment.name / f"{name}.json"
