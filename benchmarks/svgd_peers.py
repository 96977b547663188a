"""One step of SVGD with the median bandwidth, ours and blackjax's, on the same work."""

import blackjax
import jax
import jax.numpy as jnp
import optax
from blackjax.vi.svgd import rbf_kernel, update_median_heuristic
from rich.console import Console
from rich.table import Table

import parvi
from benchmarks.problems import sonar_shaped, start
from benchmarks.stepping import time_steps
from benchmarks.timing import timed
from parvi.run.threads import single_blas_thread

NUM_STEPS = 5
COUNTS = (100, 1000)


def main(console: Console) -> None:
    target = sonar_shaped()
    score = jax.grad(target.full())
    table = Table(title=f"RBF SVGD with median bandwidth, d = 61, 166 rows: {NUM_STEPS} steps")
    for column in ("particles", "parvi s", "blackjax s", "ratio", "compile s (both)"):
        table.add_column(column, justify="right")
    ratio = 0.0
    for n in COUNTS:
        ours = time_steps(parvi.svgd(0.1), target, start(n), NUM_STEPS)
        theirs = _blackjax(score, start(n))
        ratio = theirs.seconds / ours.seconds
        table.add_row(
            str(n),
            f"{ours.seconds:.4f}",
            f"{theirs.seconds:.4f}",
            f"{ratio:.1f}",
            f"{ours.compile_seconds:.1f}, {theirs.compile_seconds:.1f}",
        )
    console.print(table)
    console.print(f"at least 9x at n = {COUNTS[-1]}: {'met' if ratio >= 9 else 'missed'}")


def _blackjax(score, particles):
    """blackjax 1.7's SVGD as its users run it: Adam, RBF kernel, its own median heuristic."""
    algorithm = blackjax.svgd(score, optax.adam(0.1), rbf_kernel, update_median_heuristic)
    state = algorithm.init(jnp.asarray(particles), {"length_scale": 1.0})

    @jax.jit
    def steps(state):
        return jax.lax.fori_loop(0, NUM_STEPS, lambda _, s: algorithm.step(s), state)

    state = jax.tree_util.tree_map(jnp.asarray, state)
    with single_blas_thread():
        return timed(steps, state)
