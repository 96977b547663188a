"""The first result of a new process, and its peak memory for very many particles."""

import json
import os
import subprocess
import sys
import tempfile

from rich.console import Console

from benchmarks import record

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
import json, resource, sys
import jax, numpy as np, parvi
from benchmarks.problems import sonar_shaped, start
num = int(sys.argv[1])
batch = min(num, 4096)
sampler = parvi.Flow(
    parvi.PFG(
        parvi.MLP(32),
        parvi.Identity(),
        parvi.GradientDescent(__import__("optax").sgd(1e-3, 0.9), 5, batch_size=batch),
    ),
    parvi.Constant(1e-3),
)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
parvi.sample(sonar_shaped(), start(4096), sampler=sampler, num_steps=2)
before = peak()
init = start(num)
run = parvi.sample(sonar_shaped(), init, sampler=sampler, num_steps=3)
seconds = run.timing.seconds - run.timing.compile_seconds
print(json.dumps({"bytes": peak() - before, "array": init.nbytes, "seconds": seconds}))
"""


def main(console: Console) -> None:
    figures = {"cold": [_run(_SMALL) for _ in range(3)]}
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        figures["cached"] = [_run(_SMALL, cache) for _ in range(3)][1:]
    figures["memory"] = {str(num): _run(_LARGE, {}, str(num)) for num in (100_000, 1_000_000)}
    record.save("cold", figures)
    for name in ("cold", "cached"):
        middle = sorted(figures[name], key=lambda row: row["sample"])[len(figures[name]) // 2]
        console.print(
            f"10-d problem, {name}: import {middle['import']:.2f} s, "
            f"sample {middle['sample']:.2f} s"
        )
    for num, row in figures["memory"].items():
        console.print(
            f"{num} particles, d = 61, Algorithm 1: peak {row['bytes'] / row['array']:.1f} times "
            "the particle array"
        )


def _run(script, env=None, *arguments):
    words = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(
        words, env=os.environ | (env or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])
