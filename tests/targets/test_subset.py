"""Subsets of rows that all rows correct: exact for quadratics, and an error that is known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.targets.subset import drawn, error, taylor

NUM, DIM = 4000, 3


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def linear(weights, rows):
    x, y = rows
    return -0.5 * (y - x @ weights) ** 2


def logistic(weights, rows):
    x, y = rows
    return -jnp.logaddexp(0.0, -jnp.sign(y) * (x @ weights))


def whole(log_likelihood):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM, DIM))
    y = x @ np.array([1.0, -1.0, 0.5]) + rng.logistic(size=NUM)
    target = parvi.MiniBatch(
        lambda w: -0.5 * jnp.sum(w**2), log_likelihood, (x, y), 100, like=np.zeros(DIM)
    )
    return jax.tree_util.tree_map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, target
    )


def points(spread, num=50):
    rng = np.random.default_rng(1)
    return jnp.asarray(np.array([0.9, -0.9, 0.4]) + spread * rng.normal(size=(num, DIM)))


def at_mean(target, particles):
    centre = jnp.mean(particles, axis=0)
    return centre, taylor(target, centre)


@eqx.filter_jit
def differences(one, other, particles):
    """How the two log densities differ, up to a constant, and how their scores do."""
    values = [jax.vmap(density)(particles) for density in (one, other)]
    scores = [jax.vmap(jax.grad(density))(particles) for density in (one, other)]
    gap = values[0] - values[1]
    return gap - jnp.mean(gap), scores[0] - scores[1]


def test_a_quadratic_likelihood_is_corrected_exactly():
    target, particles = whole(linear), points(1.0)
    subset = drawn(jax.random.key(0), target, 16, *at_mean(target, particles))
    gap, scores = differences(subset.full(), target.full(), particles)
    # Rounding of sums of 4000 rows.
    assert np.abs(gap).max() < 1e-8
    assert np.abs(scores).max() < 1e-8
    assert error(subset, particles) < 1e-8
    # Without the correction 16 rows are far from 4000.
    alone = drawn(jax.random.key(0), target, 16, jnp.mean(particles, axis=0), None)
    assert np.abs(differences(alone.full(), target.full(), particles)[1]).max() > 100


@pytest.mark.slow
def test_the_error_is_that_of_the_subset():
    target, particles = whole(logistic), points(0.2)
    centre = at_mean(target, particles)
    true, estimated = [], []
    for seed in range(40):
        subset = drawn(jax.random.key(seed), target, 80, *centre)
        gap, _ = differences(subset.full(), target.full(), particles)
        true.append(np.mean(np.asarray(gap) ** 2))
        estimated.append(float(error(subset, particles)) ** 2)
    # Means of 40 squares, each of some few directions: their ratio has a standard error of a
    # quarter; it would be 8 if the parts' variance were taken for the subset's.
    assert 0.4 < np.mean(estimated) / np.mean(true) < 2.5
    # Four times the rows have half of the error, on the average.
    more = [
        float(error(drawn(jax.random.key(s), target, 1280, *centre), particles)) ** 2
        for s in range(40)
    ]
    assert np.mean(more) < np.mean(estimated) / 8


def test_constraints_are_corrected_in_flat_coordinates():
    rng = np.random.default_rng(0)
    target = parvi.MiniBatch(
        lambda p: -p["sd"],
        lambda p, y: -jnp.log(p["sd"]) - 0.5 * (y / p["sd"]) ** 2,
        jnp.asarray(rng.normal(size=NUM)),
        100,
        like={"sd": np.ones(())},
        constraints={"sd": parvi.Positive()},
    )
    particles = jnp.asarray(0.05 * rng.normal(size=(50, 1)))
    subset = drawn(jax.random.key(0), target, 800, *at_mean(target, particles))
    gap, _ = differences(subset.full(), target.full(), particles)
    alone = drawn(jax.random.key(0), target, 800, jnp.mean(particles, axis=0), None)
    before, _ = differences(alone.full(), target.full(), particles)
    # The third derivative of 4000 rows at 0.05 is 4000 * 8 * 0.05^3 / 6, of which a subset of 800
    # misses a few percent.
    assert np.std(gap) < 0.1
    assert np.std(before) > 10 * np.std(gap)
