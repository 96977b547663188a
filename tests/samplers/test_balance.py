"""Weights of modes: by bridges inside them, and by the path where the bridges do not hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.geometry.bridge import Mass, bridge
from parvi.samplers.balance import Balance, Balanced, _averaged
from parvi.samplers.temper import Temper

NUM = 512


def path(balance=Balance()):
    return parvi.Sequence(
        parvi.Stage("temper", Temper(num_passes=2, most_passes=2)), parvi.Stage("balance", balance)
    )


def student_modes(x):
    """Two modes with tails of 8 degrees of freedom, far apart, with unequal weights and widths."""
    means = jnp.asarray([[-6.0, 0, 0], [6.0, 0, 0]], x.dtype)
    widths = jnp.asarray([0.5, 1.5], x.dtype)
    squares = jnp.sum((x - means) ** 2, axis=1) / widths**2
    logs = -0.5 * (8 + 3) * jnp.log1p(squares / 8) - 3 * jnp.log(widths)
    return jax.scipy.special.logsumexp(logs + jnp.log(jnp.asarray([0.3, 0.7], x.dtype)))


@pytest.fixture(scope="module")
def run():
    start = 6 * np.random.default_rng(0).normal(size=(NUM, 3))
    return parvi.sample(student_modes, start.astype(np.float32), sampler=path())


@pytest.mark.xdist_group("balance")
def test_modes_that_are_no_gaussians_get_their_weights(run):
    rows = np.argsort(run.balanced.weights)[-2:]
    weights, errors = (np.asarray(a)[rows] for a in run.balanced[1:3])
    # Independent draws would have a standard error of 0.02.
    assert 0.001 < errors.max() < 0.01
    assert np.all(np.abs(weights - [0.3, 0.7]) < 4 * errors)
    assert abs(np.mean(run.particles[:, 0] < 0) - weights[0]) < 1.5 / NUM


@pytest.mark.xdist_group("balance")
def test_the_evidence_is_that_of_both(run):
    # The constant of a Student's t density with 8 degrees of freedom in 3 dimensions.
    gamma = jax.scipy.special.gammaln
    constant = float(gamma(4.0) - gamma(5.5) + 1.5 * np.log(8 * np.pi))
    assert run.log_evidence() == pytest.approx(constant, abs=0.05)


def test_a_bridge_between_normals_is_exact():
    """The ratio of constants is known, for normals that overlap and are not the same."""
    rng = np.random.default_rng(0)

    def log_ratio(x):
        # exp(-x^2 / 2), of mass sqrt(2 pi), over N(0.5, 1.3^2).
        return -0.5 * x**2 + 0.5 * ((x - 0.5) / 1.3) ** 2 + np.log(1.3 * np.sqrt(2 * np.pi))

    own, draws = rng.normal(size=4000), 0.5 + 1.3 * rng.normal(size=4000)
    weights = np.full(4000, 1 / 4000)
    found = bridge(*map(jnp.asarray, (log_ratio(own), weights, log_ratio(draws))))
    error = float(found.log_mass) - 0.5 * np.log(2 * np.pi)
    assert 0.001 < float(found.variance) ** 0.5 < 0.02
    assert abs(error) < 4 * float(found.variance) ** 0.5


@pytest.mark.parametrize("wrong", [np.nan, 3.0])
def test_bridges_that_contradict_the_path_are_not_believed(wrong):
    shares, errors = jnp.asarray([0.3, 0.7]), jnp.asarray([0.02, 0.02])
    masses = Mass(jnp.asarray([wrong, 0.0]), jnp.asarray([1e-6, 1e-6]))
    weights, kept, evidence = _averaged(shares, errors, masses)
    np.testing.assert_array_equal(weights, shares)
    np.testing.assert_array_equal(kept, errors)
    assert np.isnan(evidence)


@pytest.mark.slow
def test_errors_larger_than_wanted_are_said():
    start = 6 * np.random.default_rng(0).normal(size=(NUM, 3)).astype(np.float32)
    with pytest.warns(parvi.NotAtRestWarning):
        result = parvi.sample(student_modes, start, sampler=path(Balance(share=1e-3)))
    assert result.status == parvi.Status.NOT_AT_REST
    assert isinstance(result.balanced, Balanced)


def test_it_needs_a_path():
    sampler = parvi.Sequence(parvi.Stage("balance", Balance()))
    with pytest.raises(ValueError, match="Temper before it"):
        parvi.sample(student_modes, np.random.default_rng(0).normal(size=(64, 3)), sampler=sampler)
