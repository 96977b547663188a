"""Figure 5's ruler is straight: its ELBO, its MMD and its Laplace approximation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parvi.experiments import logistic
from parvi.experiments.logistic_reference import Reference, gaussian_elbo, laplace, log_joint
from parvi.experiments.moments import exact_normal
from parvi.kernels import Fixed
from parvi.models.logistic import logistic_regression, signed_features
from parvi.results.metrics import gaussian_kl, mmd


def table(rows=40, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, dim))
    return features, (features[:, 0] + rng.normal(size=rows) > 0).astype(float)


def test_the_elbo_of_a_gaussian_is_the_evidence_less_the_divergence():
    # p(x, data) = exp(-3) N(m, S), q the particles' own mean and covariance: log joints are
    # quadratic, so that averaging over the particles is exact but for n - 1 in place of n.
    num, dim = 4000, 3
    mean, factor = np.array([1.0, -2.0, 0.5]), np.diag([2.0, 0.5, 1.0])
    x = exact_normal(num, dim) + 0.3
    residual = np.linalg.solve(factor, (x - mean).T).T
    log_volume = dim * np.log(2 * np.pi) / 2 + np.sum(np.log(np.diag(factor)))
    log_joints = -3.0 - 0.5 * np.sum(residual**2, axis=1) - log_volume
    divergence = gaussian_kl(np.full(dim, 0.3), np.eye(dim), mean, factor @ factor.T)
    assert divergence > 1
    # The entropy has d/2 log(n / (n - 1)) = 4e-4 too much.
    assert gaussian_elbo(x, log_joints) == pytest.approx(-3.0 - divergence, abs=1e-3)


def test_the_mmd_is_the_metrics_own():
    rng = np.random.default_rng(1)
    draws, particles = rng.normal(size=(3000, 4)), rng.normal(0.5, 1.0, size=(50, 4))
    truth = Reference.of(draws, {})
    squared = mmd(particles, draws[:300], Fixed(truth.bandwidth))
    # The same sums in another order.
    assert truth.mmd(particles) == pytest.approx(np.sqrt(squared), rel=1e-9)
    # The median of |x - y|^2 of N(0, I) in d dimensions is twice that of chi^2_4, 3.357; of 300
    # points it is known to a few per cent.
    assert truth.bandwidth == pytest.approx(2 * 3.357, rel=0.1)
    scores = truth.measured(draws, np.zeros(len(draws)))
    assert scores["mean_error"] == 0


def test_laplace_is_at_the_mode_with_the_curvature_there():
    features, labels = table()
    mode, factor = laplace(signed_features(features, labels))
    with jax.enable_x64(True):
        joint = log_joint(logistic_regression(features, labels))
        score, hessian = jax.jit(lambda x: (jax.grad(joint)(x), jax.hessian(joint)(x)))(mode)
    # Newton's method has converged to rounding; sums of 40 rows.
    np.testing.assert_allclose(score, 0, atol=1e-12)
    np.testing.assert_allclose(factor.T @ -np.asarray(hessian) @ factor, np.eye(3), atol=1e-10)


def test_the_joint_has_the_priors_constant():
    with jax.enable_x64(True):
        joint = log_joint(logistic_regression(*table()))
        at_zero = float(joint(jnp.zeros(3)))
    # Every row has probability 1/2 at zero, and the prior N(0; 0, I).
    assert at_zero == pytest.approx(-40 * np.log(2) - 1.5 * np.log(2 * np.pi), rel=1e-12)


@pytest.mark.slow
def test_looks_are_those_of_one_run_with_this_step_size():
    target = logistic_regression(*table())
    looks, status, _ = logistic._follow("SVGD", 0.03, target, [1, 3, 10], 0)
    alone = logistic._follow("SVGD", 0.03, target, [10], 0)[0]
    assert ([look.step for look in looks], status.name) == ([0, 1, 3, 10], "MAX_STEPS")
    # Chunks do not change bits.
    np.testing.assert_array_equal(looks[-1].particles, alone[-1].particles)
    assert np.mean(looks[-1].log_joints) > np.mean(looks[0].log_joints)
    # Adam's first step is the step size in every coordinate, whatever the velocity, but for its
    # epsilon of 1e-8: a thousandth of the smallest of 600 velocities of order 1 at the most. In
    # float32 the particles, of order 1, have 1e-7 of rounding each.
    moved = np.abs(looks[1].particles - looks[0].particles)
    np.testing.assert_allclose(moved, 0.03, rtol=1e-3)
