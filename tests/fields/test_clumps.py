"""Separated clumps are found, and skewed or heavy-tailed hills are not taken for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parvi.geometry.clumps import separated
from parvi.geometry.frame import DenseFrame
from parvi.targets import zoo

CLUMPED = {"four modes": zoo.four_modes(2), "four modes in 20 dimensions": zoo.four_modes(20)}
ONE_HILL = {
    "Gaussian": zoo.rotated_gaussian(10, 1e4),
    "banana": zoo.banana(),
    "Student-t": zoo.student_t(),
    "funnel": zoo.funnel(),
}


def share(exact):
    """How often clumps are found in 512 exact draws."""
    density = exact.target.full()

    @jax.jit
    def one(x):
        frame = DenseFrame.of(x)
        return separated(frame.enter(x), frame.pull(jax.vmap(jax.grad(density))(x)))

    draws = [exact.draw(np.random.default_rng(seed), 512) for seed in range(20)]
    return np.mean([one(jnp.asarray(x, jnp.float32)) for x in draws])


@pytest.mark.first_quick
@pytest.mark.parametrize("name", CLUMPED)
def test_clumps_are_found(name):
    assert share(CLUMPED[name]) >= 0.9


@pytest.mark.first_quick
@pytest.mark.parametrize("name", ONE_HILL)
def test_one_hill_is_one(name):
    assert share(ONE_HILL[name]) <= 0.1
