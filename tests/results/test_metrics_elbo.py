"""The evidence lower bound by kernel density."""

import tracemalloc

import numpy as np
import pytest
import scipy.special
import scipy.stats

from parvi import metrics


def normal_log_density(x):
    return scipy.stats.norm.logpdf(x).sum(axis=1)


def test_two_particles_by_hand():
    """q(x_1) = N(x_1; x_2, h^2 C) with C = gap^2 / 4, the covariance of two points."""
    x, log_p = np.array([[1.0], [4.0]]), np.array([-2.0, -3.0])
    h = metrics.silverman(2, 1)
    log_q = scipy.stats.norm.logpdf(4.0, loc=1.0, scale=h * 1.5)
    # The frame adds 2e-14 to the correlation, to keep its factorisation alive.
    assert metrics.elbo(x, log_p) == pytest.approx(-2.5 - log_q, rel=1e-10)


@pytest.mark.parametrize("bandwidth", [metrics.silverman, metrics.scott])
def test_against_a_sum_over_densities(bandwidth):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3)) @ np.array([[2.0, 0.3, 0.0], [0.0, 1.0, -0.7], [0.0, 0.0, 0.1]])
    log_p = rng.normal(size=30)
    covariance = bandwidth(30, 3) ** 2 * np.cov(x.T, bias=True)
    log_q = [
        scipy.special.logsumexp(
            scipy.stats.multivariate_normal.logpdf(np.delete(x, i, axis=0), x[i], covariance)
        )
        - np.log(29)
        for i in range(30)
    ]
    # As above: the frame's 2e-14, times the condition of the correlation.
    assert metrics.elbo(x, log_p, bandwidth) == pytest.approx(np.mean(log_p - log_q), rel=1e-9)


def test_bandwidths():
    assert metrics.scott(1000, 2) == pytest.approx(1000 ** (-1 / 6))
    # 1.06 n^(-1/5) in one dimension; both rules agree in two.
    assert metrics.silverman(32, 1) == pytest.approx(1.06 * 0.5, rel=1e-2)
    assert metrics.silverman(1000, 2) == pytest.approx(metrics.scott(1000, 2))


def test_exact_draws_give_the_log_evidence_up_to_the_stated_bias():
    x = np.random.default_rng(1).normal(size=(2000, 1))
    value = metrics.elbo(x, normal_log_density(x))
    smoothing = 0.5 * (np.log1p(h2 := metrics.silverman(2000, 1) ** 2) - h2 / (1 + h2))
    # E = E KL(q || estimate) > 0. Smoothing alone gives 7e-4, the noise of the estimate a few
    # times more. log p - log q varies by about 0.05 between particles, so by 1e-3 in the mean.
    assert smoothing - 3e-3 < value < 0.01
    # A constant in log p is log evidence.
    assert metrics.elbo(x, normal_log_density(x) + 7) == pytest.approx(value + 7, abs=1e-9)


def test_other_particles_fall_below_by_their_kl():
    rng = np.random.default_rng(2)
    z = rng.normal(size=(2000, 2))
    mean, sd = np.array([1.0, -0.5]), np.array([0.5, 1.2])
    kl = metrics.gaussian_kl(mean, np.diag(sd**2), np.zeros(2), np.eye(2))
    # The bias upwards is 0.02 at n = 2000, d = 2, the same for all Gaussians as the kernels
    # follow the covariance: subtracted. The mean of log p has standard error 1.8/sqrt(2000) = 0.04.
    bias = metrics.elbo(z, normal_log_density(z))
    x = mean + sd * z
    assert metrics.elbo(x, normal_log_density(x)) - bias == pytest.approx(-kl, abs=0.12)
    assert kl > 0.5


def test_bias_in_high_dimension_is_as_large_as_stated():
    x = np.random.default_rng(3).normal(size=(1000, 20))
    assert metrics.elbo(x, normal_log_density(x)) > 1


def test_fewer_particles_than_dimensions_and_far_away_particles_stay_finite():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(10, 30))
    x[0] = 1e4
    assert np.isfinite(metrics.elbo(x, np.zeros(10)))


def test_blocks_change_nothing_and_bound_the_memory():
    x = np.random.default_rng(5).normal(size=(1201, 2))
    log_p = normal_log_density(x)
    whole = metrics.elbo(x, log_p, block_size=2000)
    tracemalloc.start()
    tiled = metrics.elbo(x, log_p, block_size=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Only the order of summation changes.
    assert tiled == pytest.approx(whole, abs=1e-12)
    # A full matrix is 11.5 MB; a handful of tiles of 80 kB and copies of the points are all.
    assert peak < 1.5e6
    # Also where the first tile of a row holds nothing but the particle itself.
    few = slice(0, 20)
    alone = metrics.elbo(x[few], log_p[few], block_size=1)
    assert alone == pytest.approx(metrics.elbo(x[few], log_p[few]), abs=1e-12)


def test_wrong_inputs():
    x = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"log_densities must have shape \(3,\), got \(3, 1\)"):
        metrics.elbo(x, np.zeros((3, 1)))
    with pytest.raises(ValueError, match="at least 2"):
        metrics.elbo(x[:1], np.zeros(1))
    with pytest.raises(ValueError, match="log_densities holds values that are not finite"):
        metrics.elbo(x, np.array([0.0, -np.inf, 0.0]))
