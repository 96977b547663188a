"""Simulation-based calibration of the default on whole models.

``python -m benchmarks calibration`` runs every model that is not yet in ``results/calibration/``
and writes ``docs/benchmarks/calibration.md``; name models to run only those. Each has 200 data
sets, drawn from its own prior, and 256 or 512 particles from N(0, I) on the unconstrained scale, in
float64.
"""

import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track

import parvi

ROOT = pathlib.Path(__file__).parents[1]
STORE = ROOT / "results" / "calibration"
PAGE = ROOT / "docs" / "benchmarks" / "calibration.md"
NUM, NUM_GROUPS = 200, 8
# Half of the default, and the default.
PARTICLES = (256, 512)


def _normal(x: Any, mean: Any = 0.0, sd: Any = 1.0) -> Any:
    return jnp.sum(-0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd) * jnp.ones_like(x))


def hierarchy(centred: bool) -> parvi.Model:
    """y_j ~ N(theta_j, 1), theta_j ~ N(mu, tau), mu ~ N(0, 2), tau ~ |N(0, 1)|, eight groups."""

    def prior(key):
        keys = jax.random.split(key, 3)
        mu, tau = 2 * jax.random.normal(keys[0]), jnp.abs(jax.random.normal(keys[1]))
        z = jax.random.normal(keys[2], (NUM_GROUPS,))
        return {"mu": mu, "tau": tau, "theta": mu + tau * z if centred else z}

    def means(p):
        return p["theta"] if centred else p["mu"] + p["tau"] * p["theta"]

    def log_density(p, y):
        groups = _normal(p["theta"], p["mu"], p["tau"]) if centred else _normal(p["theta"])
        return _normal(p["mu"], 0.0, 2.0) + _normal(p["tau"]) + groups + _normal(y, means(p))

    def simulate(key, p):
        return means(p) + jax.random.normal(key, (NUM_GROUPS,))

    return parvi.Model(prior, simulate, log_density, {"tau": parvi.Positive()})


def logistic() -> parvi.Model:
    """60 rows, an intercept and four correlated inputs with N(0, 1) weights."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 4)) @ np.linalg.cholesky(0.5 * np.eye(4) + 0.5).T
    rows = np.column_stack([np.ones(60), rows])

    def log_density(w, y):
        logits = rows @ w
        return _normal(w) + jnp.sum(y * logits - jax.nn.softplus(logits))

    def simulate(key, w):
        return jax.random.bernoulli(key, jax.nn.sigmoid(rows @ w)).astype(w.dtype)

    return parvi.Model(lambda key: jax.random.normal(key, (5,)), simulate, log_density)


def mixture() -> parvi.Model:
    """80 points of two Gaussians of unknown weight, ordered means and a common unknown width."""

    def prior(key):
        keys = jax.random.split(key, 3)
        means = jnp.sort(3 * jax.random.normal(keys[0], (2,)))
        sd = jnp.exp(0.3 * jax.random.normal(keys[1]))
        return {"means": means, "sd": sd, "share": jax.random.beta(keys[2], 3.0, 3.0)}

    def log_density(p, y):
        logs = jnp.stack([jnp.log(p["share"]), jnp.log1p(-p["share"])])
        each = -0.5 * ((y[:, None] - p["means"]) / p["sd"]) ** 2 - jnp.log(p["sd"])
        shares = 2 * (logs[0] + logs[1])
        width = _normal(jnp.log(p["sd"]), 0.0, 0.3) - jnp.log(p["sd"])
        return (
            _normal(p["means"], 0.0, 3.0)
            + width
            + shares
            + jnp.sum(jax.nn.logsumexp(logs + each, axis=1))
        )

    def simulate(key, p):
        key_which, key_noise = jax.random.split(key)
        first = jax.random.bernoulli(key_which, p["share"], (80,))
        centre = jnp.where(first, p["means"][0], p["means"][1])
        return centre + p["sd"] * jax.random.normal(key_noise, (80,))

    constraints = {
        "means": parvi.Ordered(),
        "sd": parvi.Positive(),
        "share": parvi.Interval(0.0, 1.0),
    }
    return parvi.Model(prior, simulate, log_density, constraints)


MODELS: dict[str, Callable[[], parvi.Model]] = {
    "logistic": logistic,
    "hierarchy-non-centred": lambda: hierarchy(False),
    "hierarchy-centred": lambda: hierarchy(True),
    "mixture": mixture,
}


def cell(name: str, num_particles: int) -> dict[str, Any]:
    began = time.perf_counter()
    found = parvi.calibrate(MODELS[name](), 0, NUM, num_particles)
    return {
        "calibrated": bool(found),
        "p_values": found.p_values,
        "histograms": {n: found.histogram(n).tolist() for n in found.names},
        "statuses": {status.name: num for status, num in found.statuses.items()},
        "words": repr(found),
        "seconds": time.perf_counter() - began,
    }


def main(console: Console, names: Sequence[str] = ()) -> None:
    unknown = sorted(set(names) - set(MODELS))
    if unknown:
        raise SystemExit(f"Unknown models {', '.join(unknown)}; there are {', '.join(MODELS)}.")
    STORE.mkdir(parents=True, exist_ok=True)
    work = [(n, p) for p in PARTICLES for n in names or MODELS if not _path(n, p).exists()]
    for item in track(work, "calibration", console=console):
        _path(*item).write_text(json.dumps(cell(*item), indent=1))
    PAGE.write_text(page())
    console.print(f"Page: {PAGE.relative_to(ROOT)}")


def _path(name: str, num_particles: int) -> pathlib.Path:
    return STORE / f"{name}.{num_particles}.json"


# What a reader has to know of the cells that are there.
_NOTE = (
    "The cells are from before decision 24, which has more scouts before a path, as the mixture "
    "takes one, and looks for leaders again after a flight."
)


def page() -> str:
    lines = [
        "# Calibration",
        "",
        "Made by `python -m benchmarks calibration` from the cells in `results/calibration/`:",
        f"`parvi.calibrate` with {NUM} data sets of every model, all settings at their defaults.",
        "A model is calibrated if no rank histogram is rejected at 1 % after the correction for",
        "all of its scalars, including the log density; *p* is the smallest corrected p-value of",
        "the parameters, and that of the log density. Runs that did not come to rest count too.",
        "Seconds are those of all runs, one compilation included, while the machine had other",
        "work.",
        "",
        "| model | particles | scalars | calibrated | p: parameters | its parameter | "
        "p: log density | runs | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    said = []
    for name in MODELS:
        for num in PARTICLES:
            if not _path(name, num).exists():
                continue
            row = json.loads(_path(name, num).read_text())
            p = dict(row["p_values"])
            density = p.pop("log density")
            worst = min(p, key=p.__getitem__)
            runs = ", ".join(f"{count} {status}" for status, count in row["statuses"].items())
            lines.append(
                f"| {name} | {num} | {len(p) + 1} | {'yes' if row['calibrated'] else 'no'} | "
                f"{p[worst]:.2g} | {worst} | {density:.2g} | {runs} | {row['seconds']:.0f} |"
            )
            said += [f"- {name}, {num}: {line.strip()}." for line in row["words"].splitlines()[1:]]
    return "\n".join([*lines, "", *said, "", f"*{_NOTE}*", ""])
