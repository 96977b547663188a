"""Projected SVN against SVN, and a linear inverse problem with a known posterior."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.interface import AbstractVelocity, Cloud, kl_rate

KEY = jax.random.key(0)
COVARIANCE = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 0.3]])


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def log_density(x):
    """Log-concave, and not Gaussian."""
    return -0.5 * jnp.sum(x**2 * jnp.arange(1.0, 4.0)) - jnp.logaddexp(0.0, 2 * jnp.sum(x))


def cloud_of(num=9):
    return Cloud.at(log_density, jnp.asarray(np.random.default_rng(1).normal(size=(num, 3))))


@eqx.filter_jit
def fit(field, cloud):
    return field.fit(KEY, cloud, field.init(KEY, cloud.particles))[0]


@pytest.mark.first_quick
@pytest.mark.parametrize("system", [parvi.fields.BlockDiagonalSystem(), parvi.fields.FullSystem()])
@pytest.mark.parametrize("prior", [(0.0, 1.0), (np.ones(3), COVARIANCE), (0.0, None)])
def test_all_directions_are_svn(system, prior):
    cloud, svn = cloud_of(), parvi.fields.SVN(system)
    expected = fit(svn, cloud)
    got = fit(parvi.fields.ProjectedSVN(3, 0.0, *prior, svn=svn), cloud)
    # SVN is affine invariant where the density is log-concave: rounding, times the condition of
    # the system, which for the full one is at most 1 / damping.
    np.testing.assert_allclose(got.values, expected.values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got.kl_rate, expected.kl_rate, rtol=1e-9)


@pytest.mark.first_quick
@pytest.mark.parametrize(("rank", "threshold"), [(2, 0.0), (3, 1.2), (3, 100.0)])
def test_kl_rate_is_that_of_the_velocity(rank, threshold):
    cloud = cloud_of()
    got = fit(parvi.fields.ProjectedSVN(rank, threshold, prior_covariance=1.0), cloud)
    values, divergences = by_forward_mode(got.velocity, cloud)
    np.testing.assert_allclose(got.values, values, rtol=1e-12, atol=1e-14)
    # Closed form against forward mode: rounding.
    expected = kl_rate(values, divergences, cloud.scores)
    np.testing.assert_allclose(got.kl_rate, expected, rtol=1e-11, atol=1e-13)
    # As many directions as are in use, and no others, are in the span of the velocities.
    used = int(got.extra["rank"])
    assert used == {0.0: 2, 1.2: 2, 100.0: 0}[threshold]
    assert np.linalg.matrix_rank(got.values, tol=1e-10) == used


@eqx.filter_jit
def by_forward_mode(velocity, cloud):
    return jax.vmap(velocity)(cloud.particles), AbstractVelocity.divergences(velocity, cloud)


def test_masked_directions_change_nothing():
    """Three directions of which one is below the threshold are the same as two."""
    cloud = cloud_of()
    two, masked = (
        fit(parvi.fields.ProjectedSVN(*settings, prior_covariance=1.0), cloud)
        for settings in [(2, 0.0), (3, 1.2)]
    )
    assert int(masked.extra["rank"]) == 2
    np.testing.assert_allclose(masked.values, two.values, rtol=1e-11)


@pytest.mark.slow
def test_linear_inverse_problem():
    """Five observations of 200 parameters; the posterior is Gaussian and known."""
    rng, dim, num, noise = np.random.default_rng(0), 200, 60, 0.3
    variances = 1 / np.arange(1, dim + 1) ** 0.5
    prior_mean = np.ones(dim)
    operator = rng.normal(size=(5, dim)) / np.sqrt(dim)
    truth = prior_mean + np.sqrt(variances) * rng.normal(size=dim)
    data = operator @ truth + noise * rng.normal(size=5)

    def posterior(x):
        residual = (data - operator @ x) / noise
        return -0.5 * jnp.sum(residual**2) - 0.5 * jnp.sum((x - prior_mean) ** 2 / variances)

    start = prior_mean + np.sqrt(variances) * rng.normal(size=(num, dim))
    sampler = parvi.projected_svn(10, prior_mean=prior_mean, prior_covariance=variances)
    result = parvi.sample(posterior, start, sampler=sampler, num_steps=40)
    assert set(result.history["rank"]) == {5}

    # Coefficients in which the prior is N(0, I), in the subspace that the data inform.
    scaled = operator * np.sqrt(variances)
    _, _, directions = np.linalg.svd(scaled, full_matrices=False)
    precision = np.eye(5) + directions @ scaled.T @ scaled @ directions.T / noise**2
    shifted = data - operator @ prior_mean
    mean = np.linalg.solve(precision, directions @ scaled.T @ shifted / noise**2)
    whiten = np.linalg.cholesky(precision).T
    coefficients = (result.particles - prior_mean) / np.sqrt(variances) @ directions.T
    standard = (coefficients - mean) @ whiten.T

    # In posterior standard deviations; 60 independent draws are wrong by 0.13 in each mean. The
    # fixed point has the mean of a Gaussian exactly; 40 halvings leave nothing of the start.
    assert np.abs(standard.mean(axis=0)).max() < 0.05
    # SVGD's fixed point with 60 particles in 5 dimensions and a kernel of width 2d is too narrow
    # by some percent; 60 draws have a standard error of 0.18 on each variance.
    covariance = np.cov(standard.T, bias=True)
    assert np.abs(np.diag(covariance) - 1).max() < 0.2
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 0.1

    # What the data do not inform stays as it was drawn: to rounding.
    def outside(particles):
        whitened = (particles - prior_mean) / np.sqrt(variances)
        return whitened - whitened @ directions.T @ directions

    np.testing.assert_allclose(outside(result.particles), outside(start), atol=1e-9)


@pytest.mark.slow
def test_without_a_prior_it_is_right_or_refuses():
    """N((1, -1), diag(1, 4)): against a prior N(0, I) the first coordinate looks uninformed."""
    mean, sds = np.array([1.0, -1.0]), np.array([1.0, 2.0])
    start = np.random.default_rng(0).normal(size=(128, 2))

    def log_density(x):
        return -0.5 * jnp.sum(((x - mean) / sds) ** 2)

    result = parvi.sample(log_density, start, sampler=parvi.projected_svn())
    # SVN's fixed point has a Gaussian's mean exactly; its kernel is too narrow by a few percent.
    assert np.abs((result.particles.mean(axis=0) - mean) / sds).max() < 0.02
    np.testing.assert_allclose(result.particles.std(axis=0), sds, rtol=0.1)
    with pytest.raises(ValueError, match="Give prior_covariance=C"):
        parvi.sample(log_density, start, sampler=parvi.projected_svn(rank=1))


def test_bad_input():
    with pytest.raises(ValueError, match="rank"):
        parvi.fields.ProjectedSVN(rank=0)
    with pytest.raises(ValueError, match="threshold"):
        parvi.fields.ProjectedSVN(threshold=-1.0)
    with pytest.raises(ValueError, match="prior_mean has shape"):
        parvi.fields.ProjectedSVN(prior_mean=np.zeros(2)).init(KEY, jnp.zeros((4, 3)))
