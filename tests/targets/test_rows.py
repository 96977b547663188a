"""Sums over rows in blocks: the same values and derivatives, and no array of all rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.targets import rows
from parvi.targets.rows import RowSum

NUM, DIM = 1000, 3


def data(num=NUM):
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(num, DIM)), "y": rng.normal(size=num)}


def by_row(weights, rows):
    return -jnp.logaddexp(0.0, rows["x"] @ weights["w"]) * rows["y"] ** 2


def summed(weights, rows):
    return jnp.sum(by_row(weights, rows))


# 8 divides the rows evenly, and 7 leaves a block of 6.
@pytest.mark.parametrize("log_likelihood", [by_row, summed])
@pytest.mark.parametrize("num_blocks", [8, 7])
def test_blocks_have_the_values_and_derivatives_of_the_whole(log_likelihood, num_blocks):
    with jax.enable_x64(True):
        weights, direction = ({"w": jnp.asarray(np.linspace(a, 1, DIM))} for a in (-1, 2))
        whole, blocks = (RowSum(log_likelihood, data(), n) for n in (1, num_blocks))

        def both(function):
            return [jax.jit(function(density))(weights) for density in (whole, blocks)]

        def value(density):
            return lambda w: density(w)

        def score(density):
            return lambda w: jax.grad(density)(w)["w"]

        def product(density):
            return lambda w: jax.jvp(jax.grad(density), (w,), (direction,))[1]["w"]

        for function in (value, score, product):
            expected, found = both(function)
            # The same numbers in another order.
            np.testing.assert_allclose(found, expected, rtol=1e-12)
            assert np.abs(expected).min() > 1e-3


def test_memory_does_not_grow_with_the_rows(monkeypatch):
    num, particles = 200_000, 64
    target = parvi.MiniBatch(
        lambda w: -0.5 * jnp.sum(w["w"] ** 2), by_row, data(num), num, like={"w": np.zeros(DIM)}
    )
    one = jax.ShapeDtypeStruct((DIM,), jnp.float32)
    # 64 particles with 200 000 rows are 51 MB, which still fit.
    assert target.in_blocks(one).num_blocks == 1
    monkeypatch.setattr(rows, "_BYTES", 1 << 22)
    blocked = target.in_blocks(one)
    assert blocked.num_blocks >= 12

    def temporary(target):
        batch = jax.jit(jax.vmap(jax.value_and_grad(target.full())))
        lowered = batch.lower(jax.ShapeDtypeStruct((particles, DIM), jnp.float32))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporary(blocked) < particles * num * 4 / 3 < temporary(target)
