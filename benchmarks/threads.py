"""What one BLAS thread is worth: a run as the library does it, and one without its care.

A loop of small factorisations while the cores are busy. OpenBLAS wakes its own threads for each,
and they wait for cores that XLA's threads hold.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
from rich.console import Console

from benchmarks.timing import timed
from parvi.run.threads import single_blas_thread

NUM_SOLVES = 200
DIM = 50


def main(console: Console) -> None:
    matrix = jnp.eye(DIM) + 0.01
    solves = jax.jit(
        lambda a: jax.lax.fori_loop(
            0, NUM_SOLVES, lambda _, x: 0.5 * jnp.linalg.solve(a, x), jnp.ones((DIM, DIM))
        )
    )
    spin = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        loose = timed(solves, matrix, repeats=3)
        with single_blas_thread():
            held = timed(solves, matrix, repeats=3)
    finally:
        for process in busy:
            process.terminate()
    console.print(
        f"{NUM_SOLVES} solves of {DIM} x {DIM} with two busy processes a core: "
        f"{1e3 * loose.seconds / NUM_SOLVES:.2f} ms each with OpenBLAS's own threads, "
        f"{1e3 * held.seconds / NUM_SOLVES:.2f} ms as in parvi.sample: "
        f"{loose.seconds / held.seconds:.0f}x"
    )
