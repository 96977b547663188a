"""The default beside NUTS, pathfinder, mean-field VI and SVGD, on posteriors whose truth is known.

``python -m benchmarks posteriors`` runs every cell (target, method, seed) that is not yet in
``results/posteriors/``, prints the table and writes ``docs/benchmarks/posteriors.md``; name targets
to run only those:
``python -m benchmarks posteriors banana funnel``. All methods start from N(0, I) on the
unconstrained scale, in float64; seconds include compilation, of a log density that JAX has never
seen. Errors are measured on the columns of the reference draws, standardised by them.
"""

import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import track
from rich.table import Table

import parvi
from benchmarks import posteriordb, rivals
from benchmarks.problems import sonar_shaped
from benchmarks.rivals import Outcome
from parvi.results.metrics import energy_distance, mean_distance
from parvi.targets import zoo

ROOT = pathlib.Path(__file__).parents[1]
STORE, PAGE = ROOT / "results" / "posteriors", ROOT / "docs" / "benchmarks" / "posteriors.md"
NUM_PARTICLES = 512
NUM_REFERENCE = 10_000
SEEDS = (0, 1, 2)
# The peers take long, so they have one seed each.
PEER_SEEDS = (0,)


class Problem(NamedTuple):
    """A target with draws of the truth; ``focus`` leading columns count for the worth."""

    target: parvi.Target
    draws: Float[np.ndarray, "m p"]
    columns: Callable[[Any], np.ndarray]
    focus: int | None = None
    needs: float = 3.0


def _exact(exact: zoo.Exact, **options) -> Problem:
    draws = exact.draw(np.random.default_rng(100), NUM_REFERENCE)
    return Problem(exact.target, draws, np.asarray, **options)


def _posterior(name: str) -> Problem:
    found = posteriordb.load(name)
    order = np.random.default_rng(100).permutation(len(found.draws))
    return Problem(found.target, found.draws[order], found.columns)


def _logistic() -> Problem:
    """Its draws are those of a long NUTS run, made once."""
    target, path = sonar_shaped(), STORE / "logistic.draws.npy"
    if not path.exists():
        start = np.random.default_rng(0).normal(size=(NUM_REFERENCE, 61))
        truth = parvi.sample(target, start, sampler=parvi.nuts(num_draws=20_000), key=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, truth.particles)
    return Problem(target, np.load(path), np.asarray, needs=2.5)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    **{name: (lambda name=name: _posterior(name)) for name in posteriordb.MODELS},
    "banana": lambda: _exact(zoo.banana(), needs=2.0),
    "funnel": lambda: _exact(zoo.funnel(), needs=2.0),
    "gaussian-50": lambda: _exact(zoo.rotated_gaussian(50, 1e4), needs=2.5),
    "student": lambda: _exact(zoo.student_t(), needs=3.0),
    "mixture-20": lambda: _exact(zoo.four_modes(20), focus=2, needs=1.0),
    "mixture-100": lambda: _exact(zoo.four_modes(100), focus=2, needs=1.0),
    "logistic-61": _logistic,
}


def pfg(problem: Problem, start, seed) -> Outcome:
    result = parvi.sample(_flat(problem), start, key=seed, throw=False)
    began = time.perf_counter()
    check = result.check()
    facts = {"status": result.status.name, "ok": check.ok, "findings": list(check.findings)}
    facts["check_seconds"] = time.perf_counter() - began
    return Outcome(result.particles, result.num_gradients, facts)


def svgd(problem: Problem, start, seed) -> Outcome:
    result = parvi.sample(_flat(problem), start, key=seed, sampler=parvi.svgd(), throw=False)
    facts = {"status": result.status.name}
    return Outcome(result.particles, result.num_gradients, facts)


def _once(rival: Callable) -> Callable:
    """A rival whose program is used once."""
    return lambda problem, start, seed: rival(problem.target.full(), start)(seed)


METHODS = {
    "pfg": pfg,
    "pfg-128": pfg,
    "pfg-2048": pfg,
    "nuts": _once(rivals.numpyro_nuts),
    "svgd": svgd,
    "pathfinder": _once(rivals.pathfinder),
    "mean_field": _once(rivals.mean_field),
}
# Other numbers of particles, on the posteriors only.
COUNTS = {"pfg-128": 128, "pfg-2048": 2048}


def _flat(problem: Problem) -> parvi.Target:
    """The target on flat and unconstrained vectors, where all methods start from the same."""
    assert problem.target.layout is not None
    return parvi.Target(problem.target.full(), like=np.zeros(problem.target.layout.dim))


def errors(problem: Problem, particles) -> dict[str, float]:
    """Worth, worst mean error and the range of the sd ratios, in the reference's sds."""
    layout = problem.target.layout
    assert layout is not None
    with jax.enable_x64(True):
        values = jax.vmap(layout.constrain)(jnp.asarray(particles))
        columns = problem.columns(jax.tree_util.tree_map(np.asarray, values))
    centre, scale = problem.draws.mean(axis=0), problem.draws.std(axis=0)
    x = (columns - centre) / scale
    y = ((problem.draws - centre) / scale)[:NUM_REFERENCE, : problem.focus]
    distance = energy_distance(x[:, : problem.focus], y)
    ratios = x.std(axis=0)
    worth = mean_distance(y) / len(x) / max(distance, 1e-12)
    out = {
        "worth": worth,
        "mean_error": np.max(np.abs(x.mean(axis=0))),
        "sd_low": ratios.min(),
        "sd_high": ratios.max(),
    }
    if problem.focus is not None:
        quadrant = 2 * (columns[:, 0] > 0) + (columns[:, 1] > 0)
        weights = np.bincount(quadrant, minlength=4) / len(columns)
        out["weight_error"] = np.max(np.abs(weights - 0.25))
    return {name: float(value) for name, value in out.items()}


def cell(name: str, method: str, seed: int) -> dict:
    """One method on one target from one start."""
    num = COUNTS.get(method, NUM_PARTICLES)
    jax.clear_caches()
    problem = PROBLEMS[name]()
    assert problem.target.layout is not None
    start = np.random.default_rng(seed).normal(size=(num, problem.target.layout.dim))
    with jax.enable_x64(True):
        began = time.perf_counter()
        outcome = METHODS[method](problem, start, seed)
        seconds = time.perf_counter() - began
    facts = dict(outcome.facts)
    seconds -= facts.get("check_seconds", 0.0)
    every = facts.pop("all", None)
    out = errors(problem, outcome.particles) | {
        "gradients": outcome.gradients,
        "seconds": seconds,
        "particles": num,
        **facts,
    }
    if every is not None:
        out["worth_all"] = errors(problem, every)["worth"] * len(every) / num
    return out


def missed(problem_needs: float, posterior: bool, row: dict) -> list[str]:
    """Which bars a run of the default missed."""
    out = [] if row["worth"] >= problem_needs else [f"worth {row['worth']:.2f}"]
    if posterior and row["mean_error"] > 0.05:
        out.append(f"mean {row['mean_error']:.3f}")
    if posterior and not 0.95 <= row["sd_low"] <= row["sd_high"] <= 1.05:
        out.append(f"sd {row['sd_low']:.2f} to {row['sd_high']:.2f}")
    if row.get("weight_error", 0) > 0.03:
        out.append(f"weight {row['weight_error']:.3f}")
    return out


def main(console: Console, names: Sequence[str] = ()) -> None:
    unknown = sorted(set(names) - set(PROBLEMS))
    if unknown:
        raise SystemExit(f"Unknown target {unknown}; there are {', '.join(PROBLEMS)}.")
    names = _available(console, names or list(PROBLEMS))
    STORE.mkdir(parents=True, exist_ok=True)
    work = [(n, m, s) for n in names for m in _methods(n) for s in _seeds(m)]
    work = [w for w in work if not _path(*w).exists()]
    for name, method, seed in track(work, "posteriors", console=console):
        _path(name, method, seed).write_text(json.dumps(cell(name, method, seed), indent=1))
    console.print(table(names))
    PAGE.write_text(page())
    console.print(f"Page: {PAGE.relative_to(ROOT)}")


def _available(console, names) -> list[str]:
    """Without the posteriors whose files are not there."""
    try:
        posteriordb.folder()
    except FileNotFoundError as error:
        skipped = [name for name in names if name in posteriordb.MODELS]
        if skipped:
            console.print(f"Left out: {', '.join(skipped)}. {error}")
        return [name for name in names if name not in posteriordb.MODELS]
    return list(names)


def _methods(name) -> list[str]:
    return [m for m in METHODS if m not in COUNTS or name in posteriordb.MODELS]


def _seeds(method) -> tuple[int, ...]:
    return SEEDS if method == "pfg" else PEER_SEEDS


def _path(name, method, seed) -> pathlib.Path:
    return STORE / f"{name}.{method}.{seed}.json"


def table(names: list[str]) -> Table:
    """Medians over the seeds; what the default missed, and whether its own check said so."""
    title = f"{NUM_PARTICLES} particles; pfg: medians over seeds {SEEDS}, peers: seeds {PEER_SEEDS}"
    out = Table(title=title)
    for column in ("target", "method", "worth", "mean error", "sd ratios", "gradients", "seconds"):
        out.add_column(column)
    out.add_column("missed (seed: flagged?)")
    for name in names:
        needs = PROBLEMS[name]().needs
        for method in _methods(name):
            rows = [json.loads(_path(name, method, s).read_text()) for s in _seeds(method)]
            middle = {k: float(np.median([r[k] for r in rows])) for k in _NUMBERS}
            counts = [r["gradients"] for r in rows if r["gradients"] is not None]
            said = []
            if method == "pfg":
                for seed, row in zip(SEEDS, rows, strict=True):
                    what = missed(needs, name in posteriordb.MODELS, row)
                    if what:
                        said.append(f"{seed}: {', '.join(what)} ({'no' if row['ok'] else 'yes'})")
                    elif not row["ok"]:
                        said.append(f"{seed}: none, but flagged")
            worth = f"{middle['worth']:.2f}"
            if method == "nuts":
                worth += f" ({np.median([r['worth_all'] for r in rows]):.2f} all)"
            out.add_row(
                name if method == "pfg" else "",
                method,
                worth,
                f"{middle['mean_error']:.3f}",
                f"{middle['sd_low']:.2f} to {middle['sd_high']:.2f}",
                f"{np.median(counts):.1e}" if counts else "-",
                f"{middle['seconds']:.1f}",
                "; ".join(said),
            )
    return out


def page() -> str:
    """The default, seed by seed, and what peers' particles are worth beside it."""
    lines = [
        "# Posteriors and exact targets",
        "",
        "Made by `python -m benchmarks posteriors` from the cells in `results/posteriors/`:",
        f"{NUM_PARTICLES} particles from N(0, I), float64, default settings, seeds 0 to",
        f"{SEEDS[-1]} of the default and seed 0 of the peers. *Worth*: the worth of a particle in",
        "independent draws, by the energy distance to reference draws. Gradients are per",
        "particle; seconds include compilation (medians). *Check*: the number of runs that ended",
        "CONVERGED with a clean `result.check()`. Mixtures have equal weights here; [unequal",
        "ones](modes.md) have a page of their own.",
        "",
        "| target | worth | gradients | seconds | check | worth of NUTS, thinned | all its draws | "
        "pathfinder | mean field | SVGD |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in PROBLEMS:
        rows = [_read(name, "pfg", seed) for seed in SEEDS]
        rows = [row for row in rows if row]
        if not rows:
            continue
        worths = sorted(row["worth"] for row in rows)
        gradients = np.median([row["gradients"] / row["particles"] for row in rows])
        seconds = np.median([row["seconds"] for row in rows])
        clean = sum(row["status"] == "CONVERGED" and row["ok"] for row in rows)
        peers = [
            _worth(name, "nuts", "worth"),
            _worth(name, "nuts", "worth_all"),
            *(_worth(name, method, "worth") for method in ("pathfinder", "mean_field", "svgd")),
        ]
        lines.append(
            f"| {name} | {worths[0]:.1f} to {worths[-1]:.1f} | {gradients:.0f} | {seconds:.1f} | "
            f"{clean} of {len(rows)} | {' | '.join(peers)} |"
        )
    return "\n".join([*lines, ""])


def _read(name: str, method: str, seed: int) -> dict:
    path = _path(name, method, seed)
    return json.loads(path.read_text()) if path.exists() else {}


def _worth(name: str, method: str, key: str) -> str:
    row = _read(name, method, PEER_SEEDS[0])
    return f"{row[key]:.2f}" if key in row else "-"


_NUMBERS = ("worth", "mean_error", "sd_low", "sd_high", "seconds")
