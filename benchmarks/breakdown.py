"""What a step of Algorithm 1 is made of, and the fit's rate against a plain matrix product's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import parvi
from benchmarks import peers, record
from benchmarks.problems import sonar_shaped, start
from benchmarks.stepping import time_steps
from benchmarks.timing import timed
from parvi.cloud import Cloud
from parvi.run.threads import single_blas_thread

# The name under which its figures were first kept.
RECORD = "parts"
COUNTS = (5, 100, 1000, 2000, 10_000, 100_000)
_WIDTH, _INNER, _STEPS = 32, 5, 10


def main(console: Console) -> None:
    target = sonar_shaped()
    figures = {}
    table = Table(title="A step of Algorithm 1 (T' = 5, 32 units, H = I), milliseconds")
    for column in ("n", "step", "score", "fit", "rest", "products alone", "fit's rate"):
        table.add_column(column, justify="right")
    for n in COUNTS:
        row = _one(target, start(n))
        figures[str(n)] = row
        table.add_row(
            str(n),
            *(f"{1e3 * row[name]:.2f}" for name in ("step", "score", "fit", "rest", "products")),
            f"{100 * row['products'] / row['fit']:.0f} %",
        )
    record.save(RECORD, figures)
    console.print(table)


def _one(target, particles):
    sampler = parvi.pfg_algorithm_1(1e-3, preconditioner=parvi.preconditioners.Identity())
    step = time_steps(sampler, target, particles, _STEPS).seconds / _STEPS
    density = target.full()
    x = jnp.asarray(particles)

    @eqx.filter_jit
    def score(x):
        def body(_, x):
            return x + 1e-9 * Cloud.at(density, x).scores

        return jax.lax.fori_loop(0, _STEPS, body, x)

    @eqx.filter_jit
    def fit(cloud, memory):
        def body(_, carry):
            memory, total = carry
            found, memory = sampler.field.fit(jax.random.key(0), cloud, memory)
            return memory, total + found.kl_rate

        return jax.lax.fori_loop(0, _STEPS, body, (memory, jnp.zeros(())))

    @jax.jit
    def products(x, first, second):
        """The matrix products of the inner steps, one after the other, and nothing else."""

        def body(_, carry):
            first, second = carry
            hidden = x @ first.T
            values = hidden @ second.T
            back = values @ second
            second = second + 1e-9 * (values.T @ hidden)
            first = first + 1e-9 * (back.T @ x)
            return first, second

        return jax.lax.fori_loop(0, _STEPS * _INNER, body, (first, second))

    with single_blas_thread():
        cloud = eqx.filter_jit(Cloud.at)(density, x)
        memory = sampler.field.init(jax.random.key(0), x)
        weights = memory.solver.parameters.trainable
        small = {"W1": 1e-3 * weights["W1"], "W2": 1e-3 * weights["W2"]}
        times = {
            "step": step,
            "score": timed(score, x).seconds / _STEPS,
            "fit": timed(fit, cloud, memory).seconds / _STEPS,
            "products": timed(products, x, small["W1"], small["W2"]).seconds / _STEPS,
        }
    if peers.has_torch():
        times["torch_products"] = _torch_products(particles, dict(small))
    return times | {"rest": max(step - times["score"] - times["fit"], 0.0)}


def _torch_products(particles, weights):
    """The same products by PyTorch."""
    import torch

    x = torch.tensor(particles)
    first, second = (torch.tensor(np.asarray(weights[name])) for name in ("W1", "W2"))

    def products():
        w1, w2 = first, second
        for _ in range(_STEPS * _INNER):
            hidden = x @ w1.T
            values = hidden @ w2.T
            back = values @ w2
            w2 = w2 + 1e-9 * (values.T @ hidden)
            w1 = w1 + 1e-9 * (back.T @ x)

    return timed(products).seconds / _STEPS
