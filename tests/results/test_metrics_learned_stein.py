"""The learned Stein discrepancy: the Fisher divergence between Gaussians, and its test."""

import numpy as np
import pytest
import scipy.stats

import parvi
from parvi import metrics

# A critic in closed form, for tests that need many of them.
QUICK = {"functions": parvi.functions.RandomFeatures(8), "solver": parvi.fields.HeldOutRidge()}
LINEAR = {"functions": parvi.functions.Linear(), "solver": parvi.fields.Ridge()}


def fisher_divergence(shift, sd, dim):
    """E|sd (s - grad log q)|^2 for q = N(shift, sd^2) against N(0, 1) in each coordinate.

    s - grad log q = -x + (x - shift)/sd^2, of mean -shift and standard deviation 1/sd - sd.
    """
    return dim * sd**2 * (shift**2 + (1 / sd - sd) ** 2)


def test_network_finds_the_fisher_divergence_of_a_shift():
    x = np.random.default_rng(0).normal(size=(600, 2)) + 0.5
    found = metrics.learned_stein_discrepancy(x, -x)
    exact = fisher_divergence(0.5, 1.0, 2)
    # fisher_divergence is a lower bound in expectation, with standard error about
    # 2 sd(f . s + div f)/sqrt(300) = 0.09; discrepancy has half of that noise but is not bounded.
    assert 0.5 * exact < found.fisher_divergence < exact + 0.3
    assert found.discrepancy == pytest.approx(exact, rel=0.4)
    # The critic f = -shift has f . s + div f = shift . x: mean 0.5, sd 0.7, so about 12.
    assert found.statistic > 6
    assert found.p_value < 1e-6


@pytest.mark.parametrize(("shift", "sd"), [(0.5, 1.0), (0.0, 0.6), (0.3, 1.4)])
def test_linear_critic_is_exact_between_gaussians(shift, sd):
    num, dim = 8000, 2
    z = np.random.default_rng(1).normal(size=(num, dim))
    x = shift + sd * z
    found = metrics.learned_stein_discrepancy(x, -x, **LINEAR)
    exact = fisher_divergence(shift, sd, dim)
    error = found.discrepancy / found.statistic
    # The class holds the best critic. The held-out half and the training half (through the
    # critic) bring one standard error each to the discrepancy; fisher_divergence has about twice
    # the held-out noise, and is flat in the critic at its best. 4 standard errors.
    assert found.discrepancy == pytest.approx(exact, abs=4 * 2**0.5 * error)
    assert found.fisher_divergence == pytest.approx(exact, abs=4 * 2 * error)
    assert 4 * 2 * error < 0.25 * exact


def test_does_not_depend_on_units():
    z = np.random.default_rng(2).normal(size=(400, 2))
    mix = np.array([[30.0, 0.0], [1.0, 0.01]])
    x = 0.4 + z
    found = metrics.learned_stein_discrepancy(x, -x, **LINEAR)
    # y = A x has score A^-T s. The Cholesky frames agree as A is lower triangular with a
    # positive diagonal; rounding times the condition of A (3000).
    moved = metrics.learned_stein_discrepancy(x @ mix.T, -x @ np.linalg.inv(mix), **LINEAR)
    assert moved.statistic == pytest.approx(found.statistic, rel=1e-6)
    assert moved.fisher_divergence == pytest.approx(found.fisher_divergence, rel=1e-6)


def test_regularisation_scales_the_critic_only():
    x = np.random.default_rng(3).normal(size=(400, 2)) + 0.4
    one = metrics.learned_stein_discrepancy(x, -x, **LINEAR)
    two = metrics.learned_stein_discrepancy(x, -x, **LINEAR, regularisation=1.0)
    # The closed form is exactly 1 / (2 lambda) times as large.
    assert two.discrepancy == pytest.approx(one.discrepancy / 2, rel=1e-9)
    assert two.statistic == pytest.approx(one.statistic, rel=1e-9)
    assert two.fisher_divergence == pytest.approx(one.fisher_divergence, rel=1e-9)


@pytest.mark.slow
def test_rejects_at_its_level_under_the_null():
    num, repeats, level = 100, 200, 0.05
    rng = np.random.default_rng(4)
    rejected = 0
    for seed in range(repeats):
        x = rng.normal(size=(num, 2))
        found = metrics.learned_stein_discrepancy(x, -x, **QUICK, key=seed)
        rejected += found.p_value <= level
    # The central 99.8 % of the binomial. The statistic is normal only in the limit; with 50
    # held-out particles its true level may be off by a percent or two, within the band.
    low, high = scipy.stats.binom.ppf([0.001, 0.999], repeats, level)
    assert low <= rejected <= high


def test_same_key_same_result():
    x = np.random.default_rng(5).normal(size=(100, 2))
    first = metrics.learned_stein_discrepancy(x, -x, **QUICK, key=1)
    assert metrics.learned_stein_discrepancy(x, -x, **QUICK, key=1) == first
    assert metrics.learned_stein_discrepancy(x, -x, **QUICK, key=2) != first


def test_wrong_inputs():
    x = np.zeros((10, 2))
    with pytest.raises(ValueError, match="at least 4"):
        metrics.learned_stein_discrepancy(x[:3], x[:3])
    with pytest.raises(ValueError, match="holdout"):
        metrics.learned_stein_discrepancy(x, x, holdout=1.0)
    with pytest.raises(ValueError, match="regularisation"):
        metrics.learned_stein_discrepancy(x, x, regularisation=0.0)
    with pytest.raises(ValueError, match="linear in their weights"):
        metrics.learned_stein_discrepancy(x, x, parvi.functions.MLP(4), parvi.fields.Ridge())
