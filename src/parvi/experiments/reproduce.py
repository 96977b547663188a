"""All experiments, and the page that is made from their cells."""

import pathlib

from parvi.experiments.cells import Experiment, finished, progress
from parvi.experiments.gaussians import FIELDS, FLOWS
from parvi.experiments.hierarchical import PRECONDITIONERS, TABLE_1
from parvi.experiments.high_dimension import ENERGY, VARIANCE
from parvi.experiments.jko import JKO
from parvi.experiments.logistic import LOGISTIC
from parvi.experiments.mixture import MIXTURE, SEEDS
from parvi.experiments.mnist import MNIST
from parvi.experiments.time_table import TIME
from parvi.experiments.uci import UCI
from parvi.results.plots.style import styled

_LOGISTIC = (LOGISTIC, TABLE_1, PRECONDITIONERS, JKO)
_ORDER = (FIELDS, FLOWS, MIXTURE, *_LOGISTIC, UCI, MNIST, TIME, VARIANCE, ENERGY, SEEDS)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ORDER}


def report(folder: pathlib.Path, output: pathlib.Path, quick: bool = False) -> None:
    """Write the page, with its figures beside it, from the finished cells."""
    figures = output.with_suffix("")
    sections = [
        "# The paper, reproduced\n\n"
        "`parvi reproduce` makes this page from the cells in its results folder; nothing here is "
        "typed in by hand. The paper is Dong, Wang, Lin and Zhang, ICLR 2023. The number after ± "
        "is the standard error over seeds.\n"
    ]
    for experiment in EXPERIMENTS.values():
        cells = list(finished(experiment, folder, quick))
        state = progress(experiment, folder, quick)
        sections.append(f"## {experiment.title}\n\n`parvi reproduce {experiment.name}`\n")
        if cells:
            with styled():
                sections.append(experiment.page(cells, figures))
        if state.done < state.total:
            left = state.total - state.done
            sections.append(f"**Not run here: {left} of {state.total} cells.**\n")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(sections))
