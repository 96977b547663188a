"""The default on Inference Gym's models, beside samplers of few and of many chains, and VI.

``python -m benchmarks gym`` runs every cell (model, method, seed) that is not yet in
``results/gym/`` and writes ``docs/benchmarks/gym.md``. Names choose models and methods:
``python -m benchmarks gym EightSchools pfg``. All methods start from N(0, I) on the unconstrained
scale, in float32, with 512 particles, chains or thinned draws. The truth is the Gym's own: means
and standard deviations of long Stan runs.
"""

import json
import pathlib
import time
from collections.abc import Sequence

import jax
import numpy as np
from rich.console import Console
from rich.progress import track

import parvi
from benchmarks import ensembles, rivals
from benchmarks.errors import moment_errors
from benchmarks.gym_models import MODELS, load
from benchmarks.ours import default

ROOT = pathlib.Path(__file__).parents[1]
STORE, PAGE = ROOT / "results" / "gym", ROOT / "docs" / "benchmarks" / "gym.md"
NUM = 512
OURS = "pfg"
METHODS = {
    OURS: default,
    "nuts-numpyro": rivals.numpyro_nuts,
    "nuts-blackjax": rivals.blackjax_nuts,
    "meads": ensembles.meads,
    "chees": ensembles.chees,
    "laps": ensembles.laps,
    "pathfinder": rivals.pathfinder,
    "mean-field": rivals.mean_field,
}


def seeds(method: str) -> range:
    """Five seeds for ours; the peers take long."""
    return range(5 if method == OURS else 1)


def cell(name: str, method: str, seed: int) -> dict:
    """One method on one model from one start: cold, then once more without compilation."""
    problem = load(name)
    start = np.random.default_rng(seed).normal(size=(NUM, problem.dim)).astype(np.float32)
    jax.clear_caches()
    run = METHODS[method](problem.log_density, start)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        outcome = run(seed)
        facts = dict(outcome.facts)
        seconds.append(facts.pop("seconds", time.perf_counter() - began))
    every = facts.pop("all", None)
    out = moment_errors(problem.columns(outcome.particles), problem.mean, problem.sd)
    if every is not None:
        # In the same unit, which is the error of as many draws as there are particles.
        whole = moment_errors(problem.columns(every), problem.mean, problem.sd)
        out["mean_error_all"] = whole["mean_error"] * (NUM / len(every)) ** 0.5
    gradients = None if outcome.gradients is None else outcome.gradients / NUM
    timing = {"cold": seconds[0], "warm": seconds[1]}
    return out | facts | timing | {"gradients": gradients, "version": parvi.__version__}


def main(console: Console, names: Sequence[str] = ()) -> None:
    unknown = sorted(set(names) - set(MODELS) - set(METHODS))
    if unknown:
        raise SystemExit(
            f"Unknown {unknown}; there are the models {', '.join(MODELS)} and the methods "
            f"{', '.join(METHODS)}."
        )
    models = [name for name in MODELS if name in names] or MODELS
    methods = [name for name in METHODS if name in names] or METHODS
    STORE.mkdir(parents=True, exist_ok=True)
    work = [(n, m, s) for n in models for m in methods for s in seeds(m)]
    for name, method, seed in track(
        [w for w in work if not _path(*w).exists()], "gym", console=console
    ):
        _path(name, method, seed).write_text(json.dumps(cell(name, method, seed), indent=1))
    PAGE.write_text(page())
    console.print(f"Page: {PAGE.relative_to(ROOT)}")


def _path(name: str, method: str, seed: int) -> pathlib.Path:
    return STORE / f"{name}.{method}.{seed}.json"


_HEAD = """# Inference Gym

Made by `python -m benchmarks gym` from the cells in `results/gym/`: 512 particles, chains or
thinned draws from N(0, I), in float32, with default settings, as medians over the seeds that were
run. Errors are divided by those of 512 independent draws, so 1 is as good as these. The truth is
the Gym's own, from long Stan runs. Gradients are divided by 512. Seconds are cold (with
compilation) and warm, on two cores that had other work at the same time, so they only give orders
of magnitude. NUTS has four chains of 1000 + 1000; its error with all draws is in brackets. MEADS
has 1000 steps of adaptation and 500 more, ChEES 500 and 50 transitions, LAPS at most 500 and 500.
Where NUTS with all its draws is as far off as the others (Brownian motion with unknown scales), the
figures of the Gym are in doubt. The cells of the default are from before it gathered the places
that transitions visit (decision 15).

"""
_COLUMNS = (
    "model | method | seeds | status (clean check) | mean | worst mean | second moment | sds | "
    "gradients | cold | warm"
)


def page() -> str:
    lines = [f"| {_COLUMNS} |", "|" + "---|" * (_COLUMNS.count("|") + 1)]
    for name in MODELS:
        for method in METHODS:
            paths = [_path(name, method, seed) for seed in seeds(method)]
            rows = [json.loads(path.read_text()) for path in paths if path.exists()]
            if rows:
                lines.append(f"| {name} | {method} | {len(rows)} | {' | '.join(_shown(rows))} |")
    return _HEAD + "\n".join([*lines, ""])


def _shown(rows: list[dict]) -> list[str]:
    """The columns of one method on one model."""

    def middle(key, digits):
        values = [row[key] for row in rows if row[key] is not None]
        return f"{np.median(values):.{digits}f}" if values else "-"

    verdicts = [f"{r['status']} ({'yes' if r['ok'] else 'no'})" for r in rows if "status" in r]
    mean = middle("mean_error", 2)
    if "mean_error_all" in rows[0]:
        mean += f" ({middle('mean_error_all', 2)})"
    low, high = min(row["sds"][0] for row in rows), max(row["sds"][1] for row in rows)
    return [
        ", ".join(verdicts) or "-",
        mean,
        middle("worst", 2),
        middle("square_error", 2),
        f"{low:.2f} to {high:.2f}",
        middle("gradients", 0),
        middle("cold", 1),
        middle("warm", 1),
    ]
