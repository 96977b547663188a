"""Time of 1000 steps against the number of particles and of dimensions, ours and the peers'.

Each method is timed over as many steps as fit into a few seconds, after compilation, and scaled
to 1000. If its timed steps would need more than a minute, this size and all larger ones are left
out. Every time has a process of its own, whose peak memory is kept beside it.
"""

import functools
import json
import math
import sys

import numpy as np
from rich.console import Console
from rich.table import Table

import parvi
from benchmarks import children, peers, record
from benchmarks.problems import sonar_shaped, start
from benchmarks.stepping import time_steps
from benchmarks.timing import Timed
from parvi.preconditioners import Identity
from parvi.run.threads import single_blas_thread
from parvi.samplers.bend import Bend
from parvi.samplers.default import affine

COUNTS = (5, 10, 100, 1000, 2000, 10_000, 100_000, 1_000_000)
DIMS = (10, 61, 100, 1000, 10_000)
# For thousands of particles.
BATCHED = "PFG Algorithm 1, fit on 256"
_SECONDS = 3.0
_LIMIT = 60.0
# Kernel methods need n^2 numbers.
_MOST = {
    "SVGD": 10_000,
    "blackjax SVGD": 2000,
    "NumPyro SVGD": 2000,
    "PyTorch Algorithm 1": 100_000,
}


def methods():
    """Each: (target, particles, steps) to a time."""
    ours = {
        "PFG Algorithm 1": parvi.pfg_algorithm_1(1e-3, preconditioner=Identity()),
        BATCHED: parvi.pfg_algorithm_1(1e-3, preconditioner=Identity(), batch_size=256),
        "SVGD": parvi.svgd(0.1),
    }
    found = {"PFG (default)": _default}
    found |= {name: functools.partial(_ours, sampler) for name, sampler in ours.items()}
    found["blackjax SVGD"] = peers.blackjax_svgd
    found["NumPyro SVGD"] = peers.numpyro_svgd
    if peers.has_torch():
        found["PyTorch Algorithm 1"] = peers.torch_algorithm_1
    return found


def _default(target, particles, num_steps) -> Timed:
    """The default's expensive steps: those that bend, if there are enough particles to bend."""
    # They never rest: what is timed is a step, not when the default has made enough of them.
    bend = Bend(gain=math.inf)
    sampler = bend if bend.num_features_for(particles.shape) > 0 else affine()
    return _ours(sampler, target, particles, num_steps)


def _ours(sampler, target, particles, num_steps) -> Timed:
    return time_steps(sampler, target, particles, num_steps, repeats=3)


def child() -> None:
    """What each process does: method, n and d are its arguments."""
    name, num, dim = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    found = _adaptive(methods()[name], sonar_shaped(dim=dim), start(num, dim))
    print(json.dumps(found and found | {"peak": children.peak_bytes()}))


def _measured(name, num, dim) -> dict | None:
    script = "from benchmarks.scaling import child; child()"
    return children.run(script, name, str(num), str(dim))


def _adaptive(method, target, particles) -> dict | None:
    """Seconds of 1000 steps; None where a single one is too long."""
    steps = 2
    with single_blas_thread():
        first = method(target, particles, steps)
        if first.seconds > _LIMIT / 4:
            return None
        wanted = int(np.clip(_SECONDS / 3 / max(first.seconds / steps, 1e-7), 2, 1000))
        final = method(target, particles, wanted) if wanted > steps else first
    return {
        "seconds": final.seconds * 1000 / max(wanted, steps),
        "compile": first.compile_seconds,
        "steps": max(wanted, steps),
    }


def main(console: Console) -> None:
    figures: dict[str, dict[str, dict]] = {"particles": {}, "dimensions": {}}
    for name in methods():
        rows = figures["particles"].setdefault(name, {})
        for n in COUNTS:
            if name == BATCHED and n < 1000:
                continue
            if n > _MOST.get(name, n):
                break
            found = _measured(name, n, 61)
            if found is None:
                break
            rows[str(n)] = found
        _show(console, name, "n", rows)
    for name in methods():
        if name == BATCHED:
            continue
        rows = figures["dimensions"].setdefault(name, {})
        for dim in DIMS:
            found = _measured(name, 100, dim)
            if found is None:
                break
            rows[str(dim)] = found
        _show(console, name, "d", rows)
    record.save("scaling", figures)
    table = Table(title="Seconds for 1000 steps, d = 61, 166 rows")
    table.add_column("")
    for n in COUNTS:
        table.add_column(f"n = {n}", justify="right")
    for name, rows in figures["particles"].items():
        table.add_row(
            name, *(f"{rows[str(n)]['seconds']:.3g}" if str(n) in rows else "" for n in COUNTS)
        )
    console.print(table)


def _show(console, name, what, rows):
    shown = ", ".join(f"{what} = {key}: {row['seconds']:.3g} s" for key, row in rows.items())
    console.print(f"{name}: {shown}", highlight=False)
