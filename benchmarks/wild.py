"""The default on models as people fit them, beside a long NUTS run of NumPyro.

``python -m benchmarks wild`` runs every cell that is not yet in ``results/wild/`` and writes
``docs/benchmarks/wild.md``. All runs start from N(0, I) on the unconstrained scale, in float64,
with 512 particles; name models to run only those. The truth is exact where scales can be integrated
on a grid (``benchmarks.truths``), else NUTS: four chains of 1000 + 4000, whose worst r-hat and
effective number of draws are shown; where these are bad, so is the comparison.
"""

import json
import math
import pathlib
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track

import parvi
from benchmarks.errors import moment_errors
from benchmarks.jobs import JOBS
from benchmarks.ours import default
from benchmarks.rivals import chains
from benchmarks.truths import Moments

ROOT = pathlib.Path(__file__).parents[1]
STORE, PAGE = ROOT / "results" / "wild", ROOT / "docs" / "benchmarks" / "wild.md"
NUM, SEEDS = 512, range(3)
# Moments do not exist, or are those of all labellings.
_NO_REFERENCE = tuple(n for n in JOBS if n.startswith(("cauchy", "mixture-model")))


def reference(name: str) -> dict:
    """Means and sds of a long NUTS run, in coordinates in which it mixes if there are any.

    Chains with too few effective draws are made again, four times as long.
    """
    from numpyro.diagnostics import effective_sample_size, gelman_rubin

    job = JOBS[name]()
    log_density, leave = job.log_density, None
    if job.easier is not None:
        leave, log_volume = job.easier

        def log_density(u):
            return job.log_density(leave(u)) + log_volume(u)

    with jax.enable_x64(True):
        for num_samples in (4000, 16_000):
            began = time.perf_counter()
            mcmc = chains(log_density, num_samples)
            first = jnp.asarray(np.random.default_rng(5).normal(size=(4, job.dim)))
            mcmc.run(jax.random.key(0), init_params=first, extra_fields=("num_steps",))
            draws = mcmc.get_samples(group_by_chain=True)
            draws = np.asarray(draws if leave is None else jax.vmap(jax.vmap(leave))(draws))
            steps = float(np.sum(mcmc.get_extra_fields()["num_steps"]))
            if effective_sample_size(draws).min() >= NUM:
                break
    every = draws.reshape(-1, job.dim)
    return {
        "mean": every.mean(axis=0).tolist(),
        "sd": every.std(axis=0).tolist(),
        "r_hat": float(gelman_rubin(draws).max()),
        "ess": float(effective_sample_size(draws).min()),
        "gradients": steps,
        "seconds": time.perf_counter() - began,
    }


def cell(name: str, seed: int) -> dict:
    job = JOBS[name]()
    start = np.random.default_rng(seed).normal(size=(NUM, job.dim))
    jax.clear_caches()
    outcome = default(job.log_density, start)(seed)
    gradients = outcome.gradients / NUM
    out = outcome.facts | {"gradients": gradients, "version": parvi.__version__}
    if job.copies > 1:
        # Every order of the means is one labelling, and all are equally likely.
        order = np.argsort(outcome.particles[:, : job.copies], axis=1)
        counts = np.unique(order, axis=0, return_counts=True)[1]
        shares = np.zeros(math.factorial(job.copies))
        shares[: len(counts)] = counts / NUM
        out["worst_weight"] = float(np.max(np.abs(shares - 1 / len(shares))))
    if name in _NO_REFERENCE:
        return out
    return out | moment_errors(outcome.particles, *_truth(name))


def _truth(name: str) -> Moments:
    """Exact moments if they are known, else those of NUTS."""
    job = JOBS[name]()
    return _nuts(name) if job.truth is None else job.truth()


def _nuts(name: str) -> Moments:
    found = json.loads(_path(name, "nuts").read_text())
    return Moments(np.asarray(found["mean"]), np.asarray(found["sd"]))


def main(console: Console, names: Sequence[str] = ()) -> None:
    unknown = sorted(set(names) - set(JOBS))
    if unknown:
        raise SystemExit(f"Unknown models {', '.join(unknown)}; there are {', '.join(JOBS)}.")
    names = names or list(JOBS)
    STORE.mkdir(parents=True, exist_ok=True)
    for name in track(
        [n for n in names if n not in _NO_REFERENCE and not _path(n, "nuts").exists()],
        "references",
        console=console,
    ):
        _path(name, "nuts").write_text(json.dumps(reference(name), indent=1))
    work = [(n, s) for s in SEEDS for n in names if not _path(n, s).exists()]
    for name, seed in track(work, "wild", console=console):
        _path(name, seed).write_text(json.dumps(cell(name, seed), indent=1))
    PAGE.write_text(page())
    console.print(f"Page: {PAGE.relative_to(ROOT)}")


def _path(name: str, seed: int | str) -> pathlib.Path:
    return STORE / f"{name}.{seed}.json"


def page() -> str:
    lines = [
        "# Models as people fit them",
        "",
        "Made by `python -m benchmarks wild` from the cells in `results/wild/`: 512 particles",
        "from N(0, I), default settings, medians over the seeds that were run. Errors are",
        "divided by those of independent draws: 1 is as good as 512 of them. The truth of",
        "hierarchies and Brownian motions is exact (`benchmarks/truths.py`), so NUTS has errors",
        "of its own there, divided by those of the same 512 draws. Elsewhere the truth is NUTS",
        "itself (NumPyro, four chains of 1000 + 4000): if it has few effective draws, its error",
        "is counted as ours. Seconds are cold, on a machine that had other work. All models of the",
        "first part except mixture-model-3, gp-classes and cox-900, and also brownian-45, were",
        "looked at while settings were chosen. No setting was chosen on the other twins below",
        "them, with other data and sizes, but runs of an earlier version had been seen before",
        "the last choices.",
        "",
        _summary(),
        "",
        "| model | d | status (clean check) | mean | worst mean | second moment | sds | "
        "gradients | seconds | NUTS: r-hat, effective draws, seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in JOBS:
        rows = [json.loads(_path(name, s).read_text()) for s in SEEDS if _path(name, s).exists()]
        if not rows:
            continue
        status = ", ".join(f"{r['status']} ({'yes' if r['ok'] else 'no'})" for r in rows)
        shown = [status]
        if "mean_error" in rows[0]:
            shown += [
                f"{np.median([r[key] for r in rows]):.2f}"
                for key in ("mean_error", "worst", "square_error")
            ]
            low, high = min(r["sds"][0] for r in rows), max(r["sds"][1] for r in rows)
            shown.append(f"{low:.2f} to {high:.2f}")
            truth = json.loads(_path(name, "nuts").read_text())
            peer = f"{truth['r_hat']:.3f}, {truth['ess']:.0f}, {truth['seconds']:.0f}"
            if JOBS[name]().truth is not None:
                peer += f"; {_errors_of_nuts(name)}"
        else:
            shown += ["-"] * 4
            peer = "-"
        shown += [f"{np.median([r[key] for r in rows]):.0f}" for key in ("gradients", "seconds")]
        lines.append(f"| {name} | {JOBS[name]().dim} | {' | '.join(shown)} | {peer} |")
    return "\n".join([*lines, ""])


def _errors_of_nuts(name: str) -> str:
    """The errors of the long chains, in units of those of 512 independent draws."""
    truth, found = _truth(name), _nuts(name)
    worst = np.max(np.abs(found.mean - truth.mean) / truth.sd) * NUM**0.5
    ratios = found.sd / truth.sd
    return f"worst mean {worst:.2f}, sds {ratios.min():.2f} to {ratios.max():.2f}"


def _summary() -> str:
    """How many runs are wrong, and how many of those say nothing of it."""
    rows = [
        json.loads(_path(n, s).read_text()) for n in JOBS for s in SEEDS if _path(n, s).exists()
    ]
    rows = [row for row in rows if "mean_error" in row]
    wrong = [row for row in rows if max(row["mean_error"], row["square_error"]) > 2]
    silent = [row for row in wrong if row["status"] == "CONVERGED" and row["ok"]]
    better = [row for row in rows if row["mean_error"] < 1 and row["square_error"] < 1]
    return (
        f"Of {len(rows)} runs with a truth, {len(better)} are closer than independent draws in "
        f"means and in variances, {len(wrong)} are off by more than twice the error of such draws, "
        f"and {len(silent)} of these {len(wrong)} end as CONVERGED with a clean check."
    )
