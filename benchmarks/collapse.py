"""The variance-collapse tables of the paper: dimension-averaged variance on N(0, I).

The setting of the GSVGD paper: n = 500, start N(2, 2 I), 2000 steps of Adam with rate 0.1 for the
kernel methods. ``python -m benchmarks collapse`` prints the paper's figures beside ours and saves
each cell to ``results/collapse.json`` as it finishes.
"""

import json
import pathlib

import numpy as np
import optax
from rich.console import Console
from rich.progress import track
from rich.table import Table

import parvi
from parvi.targets import gaussian

STORE = pathlib.Path(__file__).parents[1] / "results" / "collapse.json"
NUM_PARTICLES = 500
NUM_STEPS = 2000
DIMENSIONS = (20, 40, 60, 80, 100)
_SGD = optax.sgd(1e-3, momentum=0.9, nesterov=True)

# Tables "variance collapse" and "dimension-averaged marginal variance" of Dong et al. 2023.
PAPER = {
    "SVGD (RBF)": dict(zip(DIMENSIONS, (0.35, 0.18, 0.12, 0.09, 0.04), strict=True)),
    "SVGD (linear)": {20: 1.01},
    "GSVGD": dict(zip(DIMENSIONS, (0.96, 0.97, 1.00, 1.01, 1.00), strict=True)),
    "PFG (linear)": {20: 1.00},
    "PFG (network)": dict(zip(DIMENSIONS, (1.00, 0.99, 0.98, 1.00, 0.97), strict=True)),
    "PFG (default)": {},
}


def _network() -> parvi.Flow:
    """Algorithm 1 as the paper runs it: SGD 1e-3 with Nesterov's momentum 0.9, H = I."""
    solver = parvi.GradientDescent(_SGD, num_steps=10, warm_up=200)
    return parvi.Flow(parvi.PFG(parvi.MLP(128), parvi.Identity(), solver), parvi.Constant(0.1))


def samplers() -> dict[str, tuple[parvi.Flow, int]]:
    linear = parvi.PFG(parvi.Linear(), parvi.Identity(), parvi.Ridge(1e-6))
    return {
        "SVGD (RBF)": (parvi.svgd(0.1), NUM_STEPS),
        "SVGD (linear)": (parvi.svgd(0.1, kernel=parvi.LinearKernel()), NUM_STEPS),
        "GSVGD": (parvi.grassmann_svgd(0.1), NUM_STEPS),
        "PFG (linear)": (parvi.Flow(linear, parvi.Constant(0.1)), 200),
        "PFG (network)": (_network(), NUM_STEPS),
        "PFG (default)": (parvi.pfg(), 60),
    }


def variance(sampler, num_steps: int, dim: int, seed: int = 0) -> float:
    """Of the final particles, averaged over the coordinates."""
    start = 2 + np.sqrt(2) * np.random.default_rng(seed).normal(size=(NUM_PARTICLES, dim))
    target = gaussian(np.zeros(dim), np.eye(dim))
    run = parvi.sample(target, start.astype(np.float32), sampler=sampler, num_steps=num_steps)
    return float(parvi.metrics.marginal_variance(run.particles))


def main(console: Console) -> None:
    STORE.parent.mkdir(exist_ok=True)
    cells: dict = json.loads(STORE.read_text()) if STORE.exists() else {}
    chosen = samplers()
    work = [
        (name, dim)
        for name in chosen
        for dim in (DIMENSIONS if "linear" not in name else DIMENSIONS[:1])
        if str(dim) not in cells.get(name, {})
    ]
    for name, dim in track(work, "collapse", console=console):
        cells.setdefault(name, {})[str(dim)] = variance(*chosen[name], dim)
        STORE.write_text(json.dumps(cells, indent=1))
    table = Table(title="Dimension-averaged variance on N(0, I): ours (paper's)")
    table.add_column("")
    for dim in DIMENSIONS:
        table.add_column(f"d = {dim}", justify="right")
    for name in chosen:
        row = []
        for dim in DIMENSIONS:
            ours, paper = cells[name].get(str(dim)), PAPER[name].get(dim)
            known = "" if paper is None else f" ({paper:.2f})"
            row.append("" if ours is None else f"{ours:.2f}{known}")
        table.add_row(name, *row)
    console.print(table)
