"""Stein variational Newton against Newton's method and its own definition."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.interface import AbstractVelocity, Cloud, kl_rate

KEY = jax.random.key(0)
SYSTEMS = [parvi.fields.BlockDiagonalSystem(), parvi.fields.FullSystem()]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def log_density(x):
    """Log-concave, and not Gaussian."""
    return -0.5 * jnp.sum(x**2 * jnp.arange(1.0, 4.0)) - jnp.logaddexp(0.0, 2 * jnp.sum(x))


def cloud_of(num, density=log_density):
    return eqx.filter_jit(Cloud.at)(
        density, jnp.asarray(np.random.default_rng(1).normal(size=(num, 3)))
    )


@eqx.filter_jit
def fit(field, cloud):
    return field.fit(KEY, cloud, field.init(KEY, cloud.particles))[0]


@pytest.mark.first_quick
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    "kernel", [parvi.kernels.RBF(parvi.fields.Dimension()), parvi.kernels.IMQ()]
)
def test_one_particle_is_newton(system, kernel):
    cloud = cloud_of(1)
    hessian = jax.jit(jax.hessian(log_density))(cloud.particles[0])
    expected = -np.linalg.solve(hessian, cloud.scores[0])
    got = fit(parvi.fields.SVN(system, kernel), cloud).values[0]
    # One 3 x 3 system solved in two ways: rounding times its condition, 10.
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_one_particle_at_a_saddle_goes_uphill():
    """The eigenvalue of the wrong sign is taken by size: a step away from the minimum."""

    def saddle(x):
        return 0.5 * x[0] ** 2 - 0.5 * jnp.sum(x[1:] ** 2)

    cloud = cloud_of(1, saddle)
    expected = np.asarray(cloud.particles[0]) * [1, -1, -1]
    np.testing.assert_allclose(fit(parvi.fields.SVN(), cloud).values[0], expected, rtol=1e-12)


@pytest.mark.first_quick
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    "kernel", [parvi.kernels.RBF(parvi.fields.Dimension()), parvi.kernels.IMQ()]
)
def test_kl_rate_is_that_of_the_velocity(system, kernel):
    cloud = cloud_of(9)
    got = fit(parvi.fields.SVN(system, kernel), cloud)
    values, divergences = by_forward_mode(got.velocity, cloud)
    np.testing.assert_allclose(got.values, values, rtol=1e-12)
    # Closed form against forward mode: rounding.
    expected = kl_rate(values, divergences, cloud.scores)
    np.testing.assert_allclose(got.kl_rate, expected, rtol=1e-11)
    assert got.kl_rate < 0


@eqx.filter_jit
def by_forward_mode(velocity, cloud):
    return jax.vmap(velocity)(cloud.particles), AbstractVelocity.divergences(velocity, cloud)


def test_blocks_by_their_definition():
    """h(x, x)^-1 phi(x) in the original coordinates, kernel and gradients by JAX."""
    cloud = cloud_of(7)
    curvatures = -np.asarray(jax.jit(jax.vmap(jax.hessian(log_density)))(cloud.particles))
    metric = curvatures.mean(axis=0)

    def kernel(y, x):
        return jnp.exp(-(y - x) @ metric @ (y - x) / (2 * 3))

    def velocity(x):
        values = jax.vmap(lambda y: kernel(y, x))(cloud.particles)
        slopes = jax.vmap(lambda y: jax.grad(kernel)(y, x))(cloud.particles)
        block = jnp.einsum("j,jab->ab", values**2, curvatures) + slopes.T @ slopes
        return jnp.linalg.solve(block, values @ cloud.scores + jnp.sum(slopes, axis=0))

    expected = jax.jit(jax.vmap(velocity))(cloud.particles)
    # Rounding times the condition of the blocks.
    np.testing.assert_allclose(fit(parvi.fields.SVN(), cloud).values, expected, rtol=1e-10)


def test_full_system_is_the_second_variation():
    """It minimises the quadratic model -<phi, f> + E[f A f + tr (grad f)^2] / 2 of the KL.

    Written with the velocity itself: at the solution its gradient in the coefficients is zero.
    """

    def density(x):
        return -0.5 * jnp.sum(x**2)

    # Three particles far apart: the kernel matrix is far from singular and nothing is clipped.
    particles = jnp.array([[1.5, 0.2], [-1.4, 0.9], [0.3, -1.6]])
    cloud = Cloud.at(density, particles)
    h = 1.5
    field = parvi.fields.SVN(
        parvi.fields.FullSystem(1e-12), parvi.kernels.RBF(parvi.kernels.Fixed(h))
    )
    solved = fit(field, cloud).velocity.inner

    def model(coefficients):
        def velocity(x):
            weights = jnp.exp(-jnp.sum((x - solved.centres) ** 2, axis=1) / h)
            return weights @ coefficients

        def one(x, score):
            value, slope = velocity(x), jax.jacfwd(velocity)(x)
            linear = value @ score + jnp.trace(slope)
            return -linear + 0.5 * (value @ value + jnp.trace(slope @ slope))

        return jnp.mean(jax.vmap(one)(solved.centres, cloud.scores))

    # A = I, so that the frame only subtracts the mean.
    np.testing.assert_allclose(solved.centres, particles - particles.mean(0), atol=1e-15)
    gradient = jax.jit(jax.grad(model))(solved.coefficients)
    start = jax.jit(jax.grad(model))(jnp.zeros_like(solved.coefficients))
    hessian = jax.jit(jax.hessian(model))(solved.coefficients).reshape(6, 6)
    # The model is convex here, or taking eigenvalues by size would matter.
    assert np.linalg.eigvalsh(hessian).min() > 0
    # Rounding times the condition of the system, below 1e3.
    assert np.abs(gradient).max() < 1e-11 * np.abs(start).max()


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_mean_of_a_gaussian_in_few_steps(system):
    precision = np.diag([1.0, 100.0, 1e4])
    mean = np.array([2.0, -1.0, 0.5])

    def gaussian(x):
        return -0.5 * (x - mean) @ (precision @ (x - mean))

    start = np.random.default_rng(3).normal(size=(30, 3))
    sampler = parvi.Flow(parvi.fields.SVN(system), parvi.steppers.Constant(0.5))
    result = parvi.sample(gaussian, start, sampler=sampler, num_steps=15)
    scales = 1 / np.sqrt(np.diag(precision))
    error = np.abs(result.particles.mean(axis=0) - mean) / scales
    # 30 independent draws are wrong by 0.18 standard deviations. The start is off by up to 150:
    # halved at each of 15 steps that is 0.005; a wrong sign of the score would be far off.
    assert error.max() < 0.05
    spread = result.particles.std(axis=0) / scales
    # With the repulsion's sign flipped the particles would coincide; SVGD's fixed point with 30
    # particles and this kernel has most of the spread, in every direction alike.
    assert spread.min() > 0.7
    assert spread.max() < 1.2


def test_bandwidth_counts_varying_coordinates():
    particles = jnp.array([[0.0, 1.0, 5.0], [0.0, 2.0, 6.0]])
    assert parvi.fields.Dimension().of(particles, None) == 4.0
    # One particle has nothing to tell, and must still have a bandwidth.
    assert parvi.fields.Dimension().of(particles[:1], None) == 2.0


@pytest.mark.parametrize("system", SYSTEMS)
def test_coinciding_particles_stay_finite(system):
    cloud = Cloud.at(log_density, jnp.ones((4, 3)))
    got = fit(parvi.fields.SVN(system), cloud)
    newton = fit(parvi.fields.SVN(system), Cloud.at(log_density, jnp.ones((1, 3))))
    assert np.isfinite(got.kl_rate)
    # All together they take one particle's step.
    np.testing.assert_allclose(got.values, np.tile(newton.values, (4, 1)), rtol=1e-10)


def test_bad_input():
    with pytest.raises(ValueError, match="radial"):
        parvi.fields.SVN(kernel=parvi.kernels.LinearKernel())
    with pytest.raises(ValueError, match="damping"):
        parvi.fields.SVN(damping=0.0)
    with pytest.raises(ValueError, match="damping"):
        parvi.fields.FullSystem(damping=2.0)
