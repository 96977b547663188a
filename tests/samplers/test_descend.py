"""Lone descents, and whether their ends are on hills of their own."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.models.neural_network import initial_networks, network_regression, regression_scores
from parvi.samplers.descend import Descend
from parvi.samplers.part import Part


def wells(x):
    """A hill at every corner of a cube: coordinates are -1 or 1, with sd 0.05."""
    return -jnp.sum((x**2 - 1) ** 2) / (8 * 0.05**2)


def start(num, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(num, dim))


def test_every_particle_climbs_its_own_hill():
    first = start(16, 30)
    result = parvi.sample(wells, first, sampler=Descend())
    assert result.status == parvi.Status.CONVERGED
    # Momentum may carry those past the ridge that begin at its foot. A hill has an sd of 0.05.
    far = np.abs(first) > 0.2
    np.testing.assert_allclose(result.particles[far], np.sign(first)[far], atol=0.05)


def test_it_ends_by_itself():
    """On a Gaussian far from isotropic, within a standard deviation of the top, and early."""
    scales = np.geomspace(0.03, 3, 40)

    def log_density(x):
        return -0.5 * jnp.sum(((x - 1) / jnp.asarray(scales, x.dtype)) ** 2)

    result = parvi.sample(log_density, start(16, 40), sampler=Descend(num_steps=1000))
    assert result.num_steps < 400
    assert result.num_gradients == 16 * (1 + result.num_steps)
    # Flights begin at d / 2 = 20 nats below the top.
    assert np.min(result.log_density) > -20


@pytest.mark.slow
def test_units_do_not_matter():
    """Steps are in units of the start's spread, so a change of units changes nothing."""
    units = np.geomspace(1e-3, 1e3, 5)

    def log_density(x):
        return wells(x / jnp.asarray(units, x.dtype))

    first = start(8, 5)
    plain = parvi.sample(wells, first, sampler=Descend(), num_steps=50)
    other = parvi.sample(log_density, first * units, sampler=Descend(), num_steps=50)
    # Rounding grows over fifty steps across ridges.
    np.testing.assert_allclose(other.particles / units, plain.particles, rtol=1e-6)


def test_coordinates_that_are_alike_are_spread():
    first = start(200, 3) * [0.1, 1.0, 10.0]
    first[:, 1] = 5.0
    result = parvi.sample(lambda x: -0.5 * jnp.sum(x**2), first, sampler=Descend(), num_steps=1)
    np.testing.assert_array_equal(result.particles[:, [0, 2]], first[:, [0, 2]])
    # The geometric mean of 0.1 and 10; three standard errors of 200 draws are 15 %.
    np.testing.assert_allclose(result.particles[:, 1].std(), 1.0, rtol=0.15)
    np.testing.assert_allclose(result.particles[:, 1].mean(), 5.0, atol=0.25)


def test_settings_that_cannot_be_are_refused():
    for wrong in ({"num_steps": 0}, {"length": 0.0}):
        with pytest.raises(ValueError, match="num_steps must be at least 1"):
            Descend(**wrong)


def test_ends_on_one_hill_and_on_many_are_told_apart():
    scales = np.geomspace(0.01, 10, 60)

    def ridge(x):
        """One hill, ill-conditioned and correlated, with a skewed side."""
        z = x / jnp.asarray(scales, x.dtype)
        return -0.5 * jnp.sum(z**2) - 2 * jnp.sum(z) ** 2 + jnp.sum(z - jnp.exp(z))

    first = start(40, 60)
    for log_density, many in ((ridge, False), (wells, True)):
        with pytest.warns(parvi.NotAtRestWarning) if many else contextlib.nullcontext():
            result = parvi.sample(log_density, first, sampler=Part())
        expected = parvi.Status.NOT_AT_REST if many else parvi.Status.CONVERGED
        assert result.status == expected
        np.testing.assert_array_equal(result.particles, first)
        share = result.history["share"][-1]
        assert share < 0.1 if many else share > 0.9
        # 24 particles for 100 steps, and two products with a Hessian each; all once at the start.
        assert result.num_gradients == 40 + 24 * (100 + 4)


@pytest.fixture(scope="module")
def curve():
    """Noisy points on a curve, as a network's data."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(80, 1)).astype(np.float32)
    return x, (np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=80)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "own",
    [pytest.param(True, marks=pytest.mark.slow), False],
    ids=["the model's own start", "N(0, I)"],
)
def test_networks_of_few_particles_descend_and_fly(curve, own):
    target = network_regression(*curve, hidden=20, batch_size=80)
    dim = target.layout.dim
    first = initial_networks(jax.random.key(0), 32, 1, 20)
    if not own:
        keys = iter(jax.random.split(jax.random.key(1), 6))
        first = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape), first)
    with pytest.warns(parvi.NotAtRestWarning):
        result = parvi.sample(target, first)
    assert list(dict.fromkeys(result.history["stage"].tolist())) == [
        "part",
        "descend",
        "explore hills",
    ]
    assert result.num_gradients / 32 < 2500
    rmse, log_likelihood = regression_scores(result.particles, *curve)
    # The noise has a standard deviation of 0.1, and a log-likelihood of 0.88 a row.
    assert rmse < 0.12
    assert log_likelihood > 0.7
    assert result.particles["log_gamma"].std() > 0.05
    assert dim == 63
