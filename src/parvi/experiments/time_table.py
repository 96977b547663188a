"""Table 3: seconds for 1000 iterations on Sonar, against the number of particles.

Logistic regression on the features scaled to [-1, 1] with a column of ones, N(0, 1) prior, all
rows; PFG with a two-layer network of 32 units, T' = 5 and H = I, as in the paper. Seconds are
those of a second run of 1000 steps, after compilation; from 10 000 particles on those of the
first, less what the run says that compilation and its first step took. The seconds of compilation
stand beside them.
"""

import time

import jax
import numpy as np

from parvi.experiments.cells import Experiment
from parvi.experiments.logistic_reference import rows_of
from parvi.experiments.tables import chosen, footnote, markdown, mean, published, values
from parvi.fields.pfg.preconditioners import Identity
from parvi.models.logistic import logistic_regression
from parvi.run.compiled import nothing_from_disk
from parvi.run.sample import sample
from parvi.samplers.ready import pfg_algorithm_1, svgd

_COUNTS = {"SVGD": (5, 10, 100, 1000, 2000), "PFG": (5, 10, 100, 1000, 2000, 10_000, 100_000)}
_REPEATS = 3


def _settings(quick):
    counts = dict.fromkeys(_COUNTS, (5,)) if quick else _COUNTS
    steps = 10 if quick else 1000
    return [
        {"method": method, "particles": n, "steps": steps}
        for method in counts
        for n in counts[method]
    ]


def _run(setting):
    target = logistic_regression(*rows_of("sonar"))
    assert target.layout is not None
    if setting["method"] == "SVGD":
        sampler = svgd(0.01)
    else:
        sampler = pfg_algorithm_1(1e-3, preconditioner=Identity())
    num = setting["particles"]
    start = np.random.default_rng(0).normal(size=(num, target.layout.dim)).astype(np.float32)
    seconds, compiling = [], []
    # Seconds of compilation are shown: none of them may come from a disk.
    with nothing_from_disk():
        for _ in range(1 if num >= 10_000 else _REPEATS + 1):
            began = time.perf_counter()
            run = sample(target, start, sampler=sampler, num_steps=setting["steps"], throw=False)
            jax.block_until_ready(run.particles)
            seconds.append(time.perf_counter() - began)
            compiling.append(run.timing.compile_seconds)
    own = [seconds[0] - compiling[0]] if len(seconds) == 1 else seconds[1:]
    return {
        "seconds": float(np.median(own)),
        "first_seconds": seconds[0],
        "compile_seconds": seconds[0] - float(np.median(own)),
        "repeats": len(own),
        "status": run.status.name,
    }


def _page(cells, folder):
    paper = published("time")
    counts = sorted({cell.setting["particles"] for cell in cells})
    rows = []
    for method in dict.fromkeys(cell.setting["method"] for cell in cells):
        row = [method]
        for n in counts:
            ours = values(chosen(cells, method=method, particles=n), "seconds")
            theirs = paper[method].get(str(n))
            printed = "" if theirs is None else f" ({theirs:.2f})"
            row.append(mean(ours, 2) + printed if ours else "")
        compiling = values(chosen(cells, method=method), "compile_seconds")
        rows.append([*row, f"{np.median(compiling):.1f}"])
    text = (
        "Seconds for 1000 iterations on Sonar (61 weights), after compilation, on 2 CPU cores; in "
        "brackets the paper's, on a graphics card. Last column: seconds of compilation.\n\n"
    )
    header = ["", *(f"n = {n}" for n in counts), "compiling"]
    return text + markdown(header, rows) + "\n" + footnote(cells)


TIME = Experiment("time", "Table 3: time against particles", _settings, _run, _page, ("sonar",))
