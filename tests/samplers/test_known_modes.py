"""Modes that scouts have found are at their place all along a tempered path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

import parvi
from parvi.geometry.broad import Base
from parvi.geometry.frame import DenseFrame
from parvi.geometry.resampling import next_beta

WEIGHTS = np.array([0.1, 0.3, 0.6])
WIDTHS = np.array([1.0, 0.6, 1.5])
MEANS = 4 * np.eye(3, 8)


def three(x):
    """No valley between the peaks is 2 nats deep, and few starts are in the narrow one's basin."""
    squares = jnp.sum((x - MEANS) ** 2, axis=1) / WIDTHS**2
    return logsumexp(jnp.log(WEIGHTS) - 8 * jnp.log(WIDTHS) - 0.5 * squares)


def frame(centre, covariance):
    factor = np.linalg.cholesky(covariance)
    parts = (np.asarray(centre, float), factor, np.linalg.inv(factor))
    return DenseFrame(*(jnp.asarray(part) for part in parts))


PARTS = [
    ([3.0, 0.0], [[0.5, 0.2], [0.2, 0.4]]),
    ([9.0, 9.0], np.eye(2)),
    ([-2.0, 1.0], [[20, 0], [0, 4]]),
]


def beside(parts):
    modes = jax.tree.map(lambda *rows: jnp.stack(rows), *[frame(*part) for part in parts])
    # The second one does not count.
    log_masses = jnp.log(jnp.asarray([0.3, 0.0, 1.0]))
    return Base.beside(frame([0.0, 0.0], 16 * np.eye(2)), modes, log_masses)


@pytest.fixture(scope="module")
def base():
    return beside(PARTS)


def test_modes_of_like_volumes_are_left_to_the_broad_gaussian():
    """Beside known ones, other modes would have little mass until late."""
    alike = beside([*PARTS[:2], ([-2.0, 1.0], [[2, 0], [0, 0.1]])])
    np.testing.assert_array_equal(np.exp(alike.log_shares), [1, 0, 0, 0])
    normals = jax.random.normal(jax.random.key(1), (50, 2))
    np.testing.assert_array_equal(alike.draw(normals), alike.broad.leave(normals))
    expected = -4 * np.asarray(alike.broad.mean) - normals / 4
    np.testing.assert_allclose(alike.score(alike.draw(normals)), expected, rtol=1e-5, atol=1e-6)


def test_half_of_the_base_is_broad_and_modes_share_the_rest(base):
    # The mean of equal shares and of shares by mass.
    first = 0.25 * (0.5 + 0.3 / 1.3)
    np.testing.assert_allclose(np.exp(base.log_shares), [0.5, first, 0, 0.5 - first], rtol=1e-6)


def test_the_base_is_a_density_with_its_score_and_its_draws(base):
    side = np.linspace(-40, 40, 801)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    mass = float(jnp.sum(jnp.exp(base.log_density(jnp.asarray(grid))))) * 0.1**2
    assert mass == pytest.approx(1, abs=1e-3)
    points = base.draw(jax.random.normal(jax.random.key(0), (20_000, 2)))
    slopes = jax.vmap(jax.grad(lambda x: base.log_density(x[None])[0]))(points[:50])
    np.testing.assert_allclose(base.score(points[:50]), slopes, rtol=1e-4, atol=1e-4)
    # Stein's identity holds for draws and score of the same density: E[x_i s_j] = -1 if i = j.
    moments = np.asarray(points.T @ base.score(points)) / len(points)
    np.testing.assert_allclose(moments, -np.eye(2), atol=0.06)


def test_the_next_temperature_can_be_that_of_some_particles():
    gains = jnp.asarray([0.0] * 50 + [-20.0 * (k % 2) for k in range(50)])
    counts = jnp.asarray([0.0] * 50 + [1.0] * 50)
    of_all = next_beta(gains, jnp.zeros(()), 0.7)
    of_some = next_beta(gains, jnp.zeros(()), 0.7, counts)
    weights = np.exp(of_some * gains[50:])
    assert weights.sum() ** 2 / (weights**2).sum() == pytest.approx(0.7 * 50, rel=1e-3)
    assert of_some < of_all


@pytest.mark.slow
@pytest.mark.xdist_group("known modes")
@pytest.mark.parametrize("seed", range(3))
def test_modes_of_other_widths_get_their_weights(seed):
    """Without the base, the path lost most of the narrow mode; without scouts, all of both."""
    start = np.random.default_rng(seed).normal(size=(512, 8))
    result = parvi.sample(three, start, key=seed)
    assert result.status == parvi.Status.CONVERGED
    squares = np.sum((result.particles[:, None] - MEANS) ** 2, axis=2) / WIDTHS**2
    own = np.argmin(squares + 2 * 8 * np.log(WIDTHS), axis=1)
    np.testing.assert_allclose(np.bincount(own, minlength=3) / 512, WEIGHTS, atol=0.03)
    # Each mass is the weight times the constant of a normal.
    assert result.log_evidence() == pytest.approx(4 * np.log(2 * np.pi), abs=0.05)
