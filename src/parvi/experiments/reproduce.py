"""All experiments, and the page that is made from their cells."""

import pathlib

from parvi.experiments import (
    gaussians,
    hierarchical,
    high_dimension,
    jko,
    logistic,
    mixture,
    mnist,
    time_table,
    uci,
)
from parvi.experiments.cells import Experiment, finished, progress

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        gaussians.FIELDS,
        gaussians.FLOWS,
        mixture.MIXTURE,
        logistic.LOGISTIC,
        hierarchical.TABLE_1,
        hierarchical.PRECONDITIONERS,
        jko.JKO,
        uci.UCI,
        mnist.MNIST,
        time_table.TIME,
        high_dimension.VARIANCE,
        high_dimension.ENERGY,
        mixture.SEEDS,
    )
}


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
            sections.append(experiment.page(cells, figures))
        if state.done < state.total:
            sections.append(
                f"**Not run here: {state.total - state.done} of {state.total} cells.**\n"
            )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(sections))
