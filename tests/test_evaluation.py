"""Scores in blocks: the same numbers, without an array of particles times rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parvi import evaluation
from parvi.counting import largest_array
from parvi.evaluation import num_blocks, values_and_scores
from parvi.models.logistic import logistic_regression

ROWS, DIM = 3000, 5


def density():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    return logistic_regression(features, rng.random(ROWS) < 0.5).full()


def particles(num):
    return jnp.asarray(np.random.default_rng(1).normal(size=(num, DIM)).astype(np.float32))


# 1000 has a divisor near the number of blocks, 997 is a prime.
@pytest.mark.parametrize("num", [1000, 997])
def test_blocks_give_the_same_numbers(num, monkeypatch):
    x = particles(num)
    wanted = jax.jit(jax.vmap(jax.value_and_grad(density())))(x)
    monkeypatch.setattr(evaluation, "_CPU_BYTES", 100 * ROWS * 4)
    assert num_blocks(num, ROWS, 4) >= 10
    values, scores = jax.jit(lambda x: values_and_scores(density(), x))(x)
    np.testing.assert_allclose(values, wanted[0], rtol=1e-5)
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-4, atol=1e-2)


def test_no_array_of_particles_times_rows():
    num = 20_000
    program = jax.jit(lambda x: values_and_scores(density(), x)).lower(particles(num)).compile()
    assert program.memory_analysis().temp_size_in_bytes < num * ROWS * 4 / 2


def test_few_particles_are_one_block():
    assert num_blocks(512, 166, 4) == 1


def test_the_data_are_not_counted():
    """They are there once, however many particles there are."""
    trace = jax.make_jaxpr(jax.value_and_grad(density()))
    assert largest_array(trace(jnp.zeros(DIM)).jaxpr) == ROWS


def test_numbers_inside_loops_and_branches_are_counted():
    def looped(x):
        total, _ = jax.lax.scan(lambda c, s: (c + jnp.sum(jnp.outer(x, x) * s), None), 0.0, x)
        return jax.lax.cond(total > 0, lambda: total, lambda: jnp.sum(jnp.tile(x, 100)))

    assert largest_array(jax.make_jaxpr(looped)(jnp.zeros(7)).jaxpr) == 700
    assert largest_array(jax.make_jaxpr(lambda x: looped(x) * 0 + 1)(jnp.zeros(30)).jaxpr) == 3000


def test_a_log_density_may_print(capsys):
    def printing(x):
        jax.debug.print("at {}", x[0])
        return -0.5 * jnp.sum(x**2)

    x = particles(4)
    np.testing.assert_allclose(values_and_scores(printing, x)[1], -x)
    jax.effects_barrier()
    assert capsys.readouterr().out.count("at ") == 4


def test_scores_can_be_differentiated():
    """Some samplers train through them."""
    x = particles(8)

    def whole(x):
        return jnp.sum(jax.vmap(jax.grad(density()))(x) ** 2)

    def ours(x):
        return jnp.sum(values_and_scores(density(), x)[1] ** 2)

    np.testing.assert_allclose(jax.grad(ours)(x), jax.grad(whole)(x), rtol=1e-4)
