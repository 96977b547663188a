"""Hamiltonian transitions leave the target as it is, and move nothing before they end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.run.run import Run
from parvi.samplers.fly import Fly
from parvi.targets import zoo


def fly(target, particles, num_steps=320):
    """The particles after so many leapfrogs."""
    with jax.enable_x64(True):
        run = Run.begin(target, particles, Fly(), key=1)
        run.advance(num_steps)
    return np.asarray(run.particles), run


@pytest.mark.slow
def test_draws_stay_draws():
    exact = zoo.funnel()
    start = exact.draw(np.random.default_rng(0), 4000)
    end, run = fly(exact.target, start)
    assert run.status == parvi.Status.CONVERGED
    assert np.mean(np.any(end != start, axis=1)) > 0.99
    # v ~ N(0, 1.5^2): four standard errors of 4000 draws.
    assert np.mean(end[:, 0]) == pytest.approx(0, abs=4 * 1.5 / 4000**0.5)
    assert np.std(end[:, 0]) == pytest.approx(1.5, rel=4 / (2 * 4000) ** 0.5)
    scaled = end[:, 1:] * np.exp(-end[:, :1] / 2)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=4 / (2 * 4000) ** 0.5)


def test_wrong_draws_come_closer():
    exact = zoo.funnel()
    start = exact.draw(np.random.default_rng(0), 1000) * 0.6
    end, _ = fly(exact.target, start)
    assert np.std(start[:, 0]) < 1.0
    assert np.std(end[:, 0]) == pytest.approx(1.5, rel=0.1)


def test_nothing_moves_before_a_transition_ends():
    exact = zoo.banana()
    start = exact.draw(np.random.default_rng(0), 50)
    before, _ = fly(exact.target, start, 7)
    after, run = fly(exact.target, start, 8)
    np.testing.assert_array_equal(before, start)
    moved = np.any(after != start, axis=1)
    assert 0 < moved.sum() < 50
    accepted = np.concatenate([record.accepted for _, record in run.history])
    np.testing.assert_array_equal(accepted, [False] * 7 + [True])


def test_a_cliff_is_never_crossed():
    """Where the density is not finite, a trajectory ends as it began."""

    def log_density(x):
        return jnp.where(x[0] > 0, -x[0] - 0.5 * x[1] ** 2, -jnp.inf)

    start = np.abs(np.random.default_rng(0).normal(size=(200, 2)))
    end, _ = fly(log_density, start, 80)
    assert np.isfinite(end).all()
    assert (end[:, 0] > 0).all()
