"""Time to accuracy on 61-d logistic regression: ours, and NUTS with as many effective draws.

Ours: seconds of ``parvi.sample`` with its defaults from N(0, I), in a process that has compiled
nothing for it and again, and the energy distance of its particles to a long reference over that
expected of as many independent draws (below 1: better than those). NUTS: NumPyro's, four chains
in one compiled program, with as many draws as its effective sample size needs to be n.
"""

import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import parvi
from benchmarks import peers, record
from benchmarks.problems import sonar_shaped, start
from parvi.results.metrics import energy_distance

ROWS = (166, 1000, 10_000)
NUM = 512
_REFERENCE = 8000


def main(console: Console) -> None:
    figures = {}
    table = Table(title=f"Time to {NUM} particles or effective draws, d = 61")
    for column in ("rows", "PFG s", "again", "energy ratio", "NUTS s", "ESS", "ratio"):
        table.add_column(column, justify="right")
    for rows in ROWS:
        target = sonar_shaped(rows)
        row = _one(target)
        figures[str(rows)] = row
        table.add_row(
            str(rows),
            f"{row['seconds']:.2f}",
            f"{row['warm_seconds']:.2f}",
            f"{row['energy_ratio']:.2f}",
            f"{row['nuts_seconds']:.1f}",
            f"{row['nuts_ess']:.0f}",
            f"{row['nuts_seconds'] / row['seconds']:.1f}",
        )
    record.save("accuracy", figures)
    console.print(table)


def _one(target):
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        run = parvi.sample(target, start(NUM))
        seconds.append(time.perf_counter() - began)
    # NUTS until the smallest effective sample size is n, cold each time, as a user would have it.
    num_draws = NUM // 4
    while True:
        jax.clear_caches()
        _, sizes, nuts_seconds = peers.numpyro_nuts(target, num_draws)
        if sizes.min() >= NUM:
            break
        num_draws = int(num_draws * np.clip(1.2 * NUM / sizes.min(), 1.2, 8))
    reference, _, _ = peers.numpyro_nuts(target, _REFERENCE, seed=1)
    truth = reference.reshape(-1, reference.shape[-1])[:: 4 * _REFERENCE // 8000]
    rng = np.random.default_rng(0)
    draws = [energy_distance(truth[rng.choice(len(truth), NUM)], truth) for _ in range(8)]
    return {
        "seconds": seconds[0],
        "warm_seconds": seconds[1],
        "steps": run.num_steps,
        "status": run.status.name,
        "energy_ratio": energy_distance(run.particles, truth) / float(np.mean(draws)),
        "nuts_seconds": nuts_seconds,
        "nuts_draws": 4 * num_draws,
        "nuts_ess": float(sizes.min()),
    }
