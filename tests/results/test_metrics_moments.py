"""Variances, Stein ratios and the KL between Gaussians: exact on particles with exact moments."""

import numpy as np
import pytest

from parvi import metrics


def exact_cloud(mean, covariance, num=50):
    """Particles whose empirical mean and covariance are these, up to rounding."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(num, len(mean)))
    z -= z.mean(axis=0)
    z = np.linalg.solve(np.linalg.cholesky(z.T @ z / num), z.T).T
    return mean + z @ np.linalg.cholesky(covariance).T


def rotation(dim):
    return np.linalg.qr(np.random.default_rng(1).normal(size=(dim, dim)))[0]


def test_marginal_variance():
    x = exact_cloud(np.array([5.0, -1.0]), np.array([[2.0, 0.5], [0.5, 4.0]]))
    # Exact up to rounding.
    assert metrics.marginal_variance(x) == pytest.approx(3.0, rel=1e-12)
    assert metrics.marginal_variance(np.ones((1, 4))) == 0.0


def test_stein_ratio_is_the_trace_of_precision_times_covariance():
    covariance, precision = np.diag([0.5, 2.0]), np.array([[1.0, 0.3], [0.3, 3.0]])
    x = exact_cloud(np.array([1.0, 2.0]), covariance)
    # The mean of the target does not matter.
    scores = -(x - 9.0) @ precision
    expected = np.trace(precision @ covariance) / 2
    assert metrics.stein_ratio(x, scores) == pytest.approx(expected, rel=1e-12)


def test_stein_ratios_are_variances_in_units_of_the_target():
    basis = rotation(4)  # columns are the principal directions
    variances, precisions = np.array([8.0, 3.0, 1.0, 0.1]), np.array([0.125, 0.1, 1.5, 20.0])
    x = exact_cloud(np.arange(4.0), basis @ np.diag(variances) @ basis.T)
    scores = -(x + 5) @ (basis @ np.diag(precisions) @ basis.T)
    found = metrics.stein_ratios(x, scores)
    # Exact up to rounding, amplified by the gaps between eigenvalues (order 1).
    assert found.variances == pytest.approx(variances, rel=1e-9)
    assert found.ratios == pytest.approx(variances * precisions, rel=1e-9)
    assert np.abs(np.sum(found.directions * basis.T, axis=1)) == pytest.approx(np.ones(4), rel=1e-9)
    assert found.ratios.mean() == pytest.approx(metrics.stein_ratio(x, scores), rel=1e-12)


def test_stein_ratios_show_one_collapsed_direction():
    x = exact_cloud(np.zeros(3), np.diag([1.0, 1.0 + 1e-3, 0.0 + 1e-12]))
    found = metrics.stein_ratios(x, -x)
    assert found.ratios[:2] == pytest.approx(np.ones(2), rel=1e-2)
    assert found.ratios[2] == pytest.approx(0.0, abs=1e-9)
    # Fewer particles than dimensions: no variance, and ratio 0, in d - (n - 1) directions.
    few = np.random.default_rng(2).normal(size=(3, 5))
    assert np.count_nonzero(metrics.stein_ratios(few, -few).ratios > 1e-9) == 2


def test_gaussian_kl_by_hand():
    # 1/2 (s^2/t^2 + shift^2/t^2 - 1 + log t^2/s^2) in one dimension.
    value = metrics.gaussian_kl([1.0], [[4.0]], [3.0], [[9.0]])
    assert value == pytest.approx(0.5 * (4 / 9 + 4 / 9 - 1 + np.log(9 / 4)), rel=1e-12)


def test_gaussian_kl_is_invariant_and_zero_only_at_equality():
    rng = np.random.default_rng(3)
    a, b, change = (rng.normal(size=(3, 3)) for _ in range(3))
    p, q = a @ a.T + np.eye(3), b @ b.T + np.eye(3)
    mean_p, mean_q = rng.normal(size=(2, 3))
    value = metrics.gaussian_kl(mean_p, p, mean_q, q)
    moved = metrics.gaussian_kl(
        change @ mean_p, change @ p @ change.T, change @ mean_q, change @ q @ change.T
    )
    # Rounding times the condition of the change of coordinates (below 100).
    assert moved == pytest.approx(value, rel=1e-9)
    assert value > 0.1
    assert metrics.gaussian_kl(mean_p, p, mean_p, p) == pytest.approx(0.0, abs=1e-12)
    assert metrics.gaussian_kl(np.zeros(2), np.diag([1.0, 0.0]), np.zeros(2), np.eye(2)) == np.inf


def test_wrong_inputs():
    with pytest.raises(ValueError, match="scores must hold one gradient a particle"):
        metrics.stein_ratio(np.zeros((3, 2)), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="scores must hold one gradient a particle"):
        metrics.stein_ratios(np.zeros((3, 2)), np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"particles\[:, None\]"):
        metrics.marginal_variance(np.zeros(3))
    with pytest.raises(ValueError, match=r"covariance_q must have shape \(2, 2\)"):
        metrics.gaussian_kl(np.zeros(2), np.eye(2), np.zeros(2), np.eye(3))
    with pytest.raises(ValueError, match="covariance_q must be positive definite"):
        metrics.gaussian_kl(np.zeros(2), np.eye(2), np.zeros(2), np.zeros((2, 2)))
