"""The first result of a new process; peak memory for very many particles and dimensions."""

import tempfile

from rich.console import Console

from benchmarks import record
from benchmarks.children import run

_SMALL = """
import time
began = time.perf_counter()
import jax.numpy as jnp, numpy as np, parvi
imported = time.perf_counter()
scale = np.linspace(0.5, 2, 10).astype(np.float32)
init = np.random.default_rng(0).normal(size=(512, 10)).astype(np.float32)
run = parvi.sample(lambda x: -0.5 * jnp.sum(scale * x**2) - 0.1 * jnp.sum(x**4), init)
done = time.perf_counter()
import json
print(json.dumps({"import": imported - began, "sample": done - imported, "steps": run.num_steps}))
"""

_LARGE = """
import json, sys
import numpy as np, parvi
from benchmarks.children import peak_bytes
from benchmarks.problems import sonar_shaped
from parvi.samplers.bend import Bend
from parvi.samplers.default import affine
num = int(sys.argv[1])
samplers = {
    # Hurried: after one affine step it bends.
    "PFG (default)": parvi.Sequence(
        parvi.Stage("affine", affine(share=1e9, patience=1)), parvi.Stage("bend", Bend())
    ),
    "PFG Algorithm 1": parvi.pfg_algorithm_1(
        1e-3, preconditioner=parvi.preconditioners.Identity(), batch_size=4096
    ),
}
init = np.random.default_rng(0).standard_normal((num, 61), dtype=np.float32)
run = parvi.sample(sonar_shaped(), init, sampler=samplers[sys.argv[2]], num_steps=3)
peak = peak_bytes()
stages = list(dict.fromkeys(run.history["stage"].tolist()))
print(json.dumps({"peak": peak, "array": init.nbytes, "stages": stages}))
"""
LARGE_COUNTS = (250_000, 1_000_000)
_LARGE_METHODS = ("PFG (default)", "PFG Algorithm 1")

# The network of the MNIST experiment: 101 770 dimensions.
_WIDE = """
import json
import jax, numpy as np, parvi
from benchmarks.children import peak_bytes
from parvi.models.neural_network import initial_networks, network_classification
rng = np.random.default_rng(0)
features = rng.random((10_000, 784), dtype=np.float32)
labels = rng.integers(0, 10, 10_000)
target = network_classification(features, labels, hidden=128, batch_size=100)
init = initial_networks(jax.random.key(0), 100, 784, 128, 10, noise=False)
run = parvi.sample(target, init, num_steps=10, throw=False)
peak = peak_bytes()
dim = sum(np.size(value) for value in init.values()) // 100
assert all(np.isfinite(value).all() for value in run.particles.values())
seconds = (run.timing.seconds - run.timing.compile_seconds) / max(run.num_steps - 1, 1)
print(json.dumps({"peak": peak, "dim": dim, "steps": run.num_steps, "step_seconds": seconds,
                  "compile": run.timing.compile_seconds, "status": run.status.name}))
"""


def main(console: Console) -> None:
    figures = {"cold": [run(_SMALL) for _ in range(5)]}
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        figures["cached"] = [run(_SMALL, env=cache) for _ in range(4)][1:]
    figures["memory"] = {
        name: {str(num): _middle(num, name) for num in LARGE_COUNTS} for name in _LARGE_METHODS
    }
    figures["wide"] = run(_WIDE)
    record.save("cold", figures)
    for name in ("cold", "cached"):
        middle = sorted(figures[name], key=lambda row: row["sample"])[len(figures[name]) // 2]
        console.print(
            f"10-d problem, {name}: import {middle['import']:.2f} s, "
            f"sample {middle['sample']:.2f} s"
        )
    for name, rows in figures["memory"].items():
        console.print(
            f"{LARGE_COUNTS[1]} particles, d = 61, {name}: {arrays(rows):.1f} times the particle "
            f"array and {constant(rows) / 1e6:.0f} MB",
            highlight=False,
        )
    wide = figures["wide"]
    console.print(
        f"d = {wide['dim']}, 100 particles, default: {wide['step_seconds']:.2f} s a step, peak "
        f"{wide['peak'] / 1e9:.2f} GB",
        highlight=False,
    )


def _middle(num, name):
    """The median of three: what compilers and allocators take differs between processes."""
    return sorted((run(_LARGE, str(num), name) for _ in range(3)), key=lambda row: row["peak"])[1]


def arrays(rows: dict) -> float:
    """By how many particle arrays the peak grows with their number."""
    small, large = (rows[str(num)] for num in LARGE_COUNTS)
    return (large["peak"] - small["peak"]) / (large["array"] - small["array"])


def constant(rows: dict) -> float:
    """Bytes that do not grow with the number of particles."""
    large = rows[str(LARGE_COUNTS[1])]
    return large["peak"] - arrays(rows) * large["array"]
