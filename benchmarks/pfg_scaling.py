"""1000 steps of two-layer PFG against the number of particles: less than linear is the claim."""

from rich.console import Console
from rich.table import Table

import parvi
from benchmarks.problems import sonar_shaped, start
from benchmarks.stepping import time_steps

COUNTS = (5, 10, 100, 1000)


def main(console: Console) -> None:
    target = sonar_shaped()
    sampler = parvi.pfg_algorithm_1(step_size=1e-3, preconditioner=parvi.Identity())
    table = Table(title="PFG, two layers (h = 32, T' = 5), d = 61, 166 rows: 1000 steps")
    for column in ("particles", "seconds", "compile", "over n = 5", "n over 5"):
        table.add_column(column, justify="right")
    times = {n: time_steps(sampler, target, start(n), 1000, repeats=3) for n in COUNTS}
    for n, time in times.items():
        ratio = time.seconds / times[COUNTS[0]].seconds
        table.add_row(
            str(n),
            f"{time.seconds:.3f}",
            f"{time.compile_seconds:.1f}",
            f"{ratio:.1f}",
            f"{n / COUNTS[0]:.0f}",
        )
    console.print(table)
    met = all(times[n].seconds / times[5].seconds < n / 5 for n in COUNTS[1:])
    console.print(f"cheaper than linear in n from 5 to 1000: {'met' if met else 'missed'}")
