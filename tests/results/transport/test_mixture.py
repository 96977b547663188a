"""Mixtures of maps: densities that are sought where they count, against those sought everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import parvi
from parvi.geometry.frame import DenseFrame
from parvi.results.transport.chain import Chain
from parvi.results.transport.importance import log_heavy
from parvi.results.transport.layers import Affine, Bent
from parvi.results.transport.mixture import log_density, sought
from parvi.results.transport.transport import Transport
from parvi.targets.flatten import Layout

CENTRES = np.array([[-3.0, 0.0], [3.0, 0.0], [40.0, 0.0]])
LOG_WEIGHTS = np.log([0.2, 0.5, 0.3])


def standard_frame(mean):
    return DenseFrame(mean, np.eye(2), np.eye(2))


def map_at(number):
    """A bent layer after a shift."""
    rng = np.random.default_rng(number)
    weights = 0.1 * rng.normal(size=(2, 7))
    bent = Bent(
        standard_frame(CENTRES[number]), rng.normal(size=(4, 2)), rng.normal(size=4), weights
    )
    return Chain((Affine(standard_frame(CENTRES[number])), bent))


MAPS = tuple(map_at(number) for number in range(3))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def transport():
    def log_gaussian(x):
        return -0.5 * jnp.sum(x**2) - jnp.log(2 * jnp.pi)

    target = parvi.Target(log_gaussian, like=np.zeros(2))
    return Transport(MAPS, LOG_WEIGHTS, Layout.of(np.zeros(2)), target)


@jax.jit
def everywhere(points):
    """The log density with Newton inverses of all points under all maps."""
    found = []
    for weight, layer in zip(LOG_WEIGHTS, MAPS, strict=True):
        z = layer.inverse(points)
        found.append(weight + log_heavy(z) - layer.log_det(z))
    return jnp.stack(found)


def test_at_any_points():
    """A map that is left out adds less than about e^-10, two of them twice that."""
    rng = np.random.default_rng(0)
    points = CENTRES[rng.integers(3, size=1500)] + 1.5 * rng.normal(size=(1500, 2))
    expected = scipy.special.logsumexp(everywhere(points), axis=0)
    found = log_density(MAPS, LOG_WEIGHTS, points)
    assert found.shape == (1500,)
    np.testing.assert_allclose(found, expected, atol=3e-4)


def test_of_draws(transport):
    """Ratios at draws are their weights, though a draw's own base point is known."""
    found = transport.importance(1000)
    np.testing.assert_allclose(transport.log_ratios(found.draws), found.log_weights, atol=3e-4)


def test_only_what_is_wanted_is_sought():
    """What is found where it is wanted is exact, and everything else counts nothing."""
    rng = np.random.default_rng(1)
    points = CENTRES[0] + 3 * rng.normal(size=(200, 2))
    wanted = np.array([rng.uniform(size=200) < 0.4, rng.uniform(size=200) < 0.01, np.zeros(200)])
    wanted = wanted.astype(bool)
    expected = scipy.special.logsumexp(np.where(wanted, everywhere(points), -np.inf), axis=0)
    found = jax.jit(sought)(MAPS, LOG_WEIGHTS, points, wanted)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
