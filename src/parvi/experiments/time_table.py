"""Table 3: seconds for 1000 iterations on Sonar, against the number of particles.

The target is logistic regression on all rows, with features scaled to [-1, 1], a column of ones and
an N(0, 1) prior. PFG has a two-layer network of 32 units, T' = 5 and H = I, as in the paper.
Seconds are those of 1000 steps after a first one, which compiles everything and is timed apart.
"""

import time

import jax.numpy as jnp
import numpy as np

from parvi import pfg_algorithm_1, svgd
from parvi.experiments.cells import Experiment
from parvi.experiments.logistic_reference import rows_of
from parvi.experiments.tables import Score, crossed, footnote, published
from parvi.models.logistic import logistic_regression
from parvi.preconditioners import Identity
from parvi.run.compile.cache import nothing_from_disk
from parvi.run.compile.policy import CAREFUL
from parvi.run.run import Run
from parvi.run.threads import single_blas_thread
from parvi.status import Status
from parvi.stopping import exactly
from parvi.targets.precision import precision

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
    num, steps = setting["particles"], setting["steps"]
    start = np.random.default_rng(0).normal(size=(num, target.layout.dim)).astype(np.float32)
    seconds, first = [], []
    # The table shows seconds of compilation, so no program may come from disk.
    with nothing_from_disk(), precision(start.dtype), single_blas_thread():
        for _ in range(1 if num >= 10_000 else _REPEATS):
            began = time.perf_counter()
            longer = exactly(sampler, steps + 1)
            run = Run.begin(target, jnp.asarray(start), longer, plan=CAREFUL)
            run.advance(1)
            first.append(time.perf_counter() - began)
            began = time.perf_counter()
            run.advance(steps)
            seconds.append(time.perf_counter() - began)
    return {
        "seconds": float(np.median(seconds)),
        "first_seconds": first[0] + seconds[0],
        "compile_seconds": first[0],
        "repeats": len(seconds),
        "status": (run.status if run.is_done else Status.MAX_STEPS).name,
    }


def _page(cells, folder):
    score, last = Score("seconds", 2, printed=".2f"), ("compile_seconds", "compiling")
    table = crossed(cells, ("particles", "n"), score, published("time"), last)
    text = (
        "The table gives the seconds for 1000 iterations on Sonar (61 weights), after compilation, "
        "on 2 CPU cores; the paper's, on a graphics card, are in brackets. The last column gives "
        "the seconds of compilation.\n\n"
    )
    return text + table + "\n" + footnote(cells)


TIME = Experiment("time", "Table 3: time against particles", _settings, _run, _page, ("sonar",))
