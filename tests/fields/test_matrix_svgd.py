"""Matrix SVGD against SVGD, against its definition, and under affine maps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.interface import AbstractVelocity, Cloud, kl_rate

KEY = jax.random.key(0)
# Not orthogonal, and a shift.
MATRIX = np.array([[2.0, 0.3, -0.1], [0.4, 0.5, 0.2], [-0.3, 0.1, 0.15]])
SHIFT = np.array([3.0, -1.0, 0.5])


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def log_density(x):
    """Log-concave, and not Gaussian."""
    return -0.5 * jnp.sum(x**2 * jnp.arange(1.0, 4.0)) - jnp.logaddexp(0.0, 2 * jnp.sum(x))


def mapped_density(y):
    return log_density(jnp.linalg.solve(MATRIX, y - SHIFT))


def cloud_of(density=log_density, num=9):
    return eqx.filter_jit(Cloud.at)(
        density, jnp.asarray(np.random.default_rng(1).normal(size=(num, 3)))
    )


@eqx.filter_jit
def fit(field, cloud):
    return field.fit(KEY, cloud, field.init(KEY, cloud.particles))[0]


@pytest.mark.parametrize(
    "kernel", [parvi.kernels.RBF(), parvi.kernels.IMQ(), parvi.kernels.LinearKernel()]
)
def test_identity_is_svgd(kernel):
    cloud = cloud_of()
    expected = fit(parvi.fields.SVGD(kernel), cloud)
    got = fit(
        parvi.fields.MatrixSVGD(
            parvi.fields.SharedPreconditioner(parvi.preconditioners.Identity()), kernel
        ),
        cloud,
    )
    # The same operations: rounding only.
    np.testing.assert_allclose(got.values, expected.values, rtol=1e-13)
    np.testing.assert_allclose(got.kl_rate, expected.kl_rate, rtol=1e-13)


@pytest.mark.parametrize("kernel", [parvi.kernels.RBF(), parvi.kernels.IMQ()])
def test_one_anchor_with_the_identity_is_svgd(kernel):
    """With more anchors, even all with Q = I, the weights w_l(x) w_l(y) change the kernel."""
    cloud = cloud_of()
    expected = fit(parvi.fields.SVGD(kernel), cloud)
    one = parvi.fields.PreconditionerMixture(
        parvi.preconditioners.Identity(), anchors=np.array([[0.3, -0.2, 1.0]])
    )
    got = fit(parvi.fields.MatrixSVGD(one, kernel), cloud)
    # The pull to the anchor is subtracted from itself, of the size of the scores: rounding.
    np.testing.assert_allclose(got.values, expected.values, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(got.kl_rate, expected.kl_rate, rtol=1e-12)


def test_one_anchor_is_the_shared_preconditioner_of_that_point():
    cloud, anchor = cloud_of(), np.array([[0.3, -0.2, 1.0]])
    mixture = fit(
        parvi.fields.MatrixSVGD(parvi.fields.PreconditionerMixture(anchors=anchor)), cloud
    )
    hessian = -np.asarray(jax.jit(jax.hessian(log_density))(anchor[0]))

    def quadratic(x):
        return -0.5 * x @ hessian @ x

    shared = parvi.fields.SharedPreconditioner()
    frozen = Cloud(cloud.particles, cloud.scores, cloud.log_densities, quadratic)
    expected = fit(parvi.fields.MatrixSVGD(shared), frozen)
    # Two ways to the same numbers: rounding times the condition of a 3 x 3 Hessian.
    np.testing.assert_allclose(mixture.values, expected.values, rtol=1e-11, atol=1e-13)


@eqx.filter_jit
def by_forward_mode(velocity, cloud):
    return jax.vmap(velocity)(cloud.particles), AbstractVelocity.divergences(velocity, cloud)


def test_mixture_by_its_definition():
    """E_y[K(x, y) s(y) + K(x, y) grad_y] with K written down and differentiated by JAX."""
    cloud, h = cloud_of(num=5), 1.7
    precisions = -np.asarray(jax.jit(jax.vmap(jax.hessian(log_density)))(cloud.particles))

    def weights(x):
        away = x - cloud.particles
        square = jnp.einsum("la,lab,lb->l", away, precisions, away)
        return jax.nn.softmax(0.5 * jnp.linalg.slogdet(precisions)[1] - 0.5 * square)

    def matrix_kernel(x, y):
        square = jnp.einsum("a,lab,b->l", x - y, precisions, x - y)
        scalars = weights(x) * weights(y) * jnp.exp(-square / h)
        return jnp.einsum("l,lab->ab", scalars, jnp.linalg.inv(precisions))

    def velocity(x):
        def one(y, score):
            slopes = jax.jacfwd(matrix_kernel, argnums=1)(x, y)
            return matrix_kernel(x, y) @ score + jnp.einsum("abb->a", slopes)

        return jnp.mean(jax.vmap(one)(cloud.particles, cloud.scores), axis=0)

    field = parvi.fields.MatrixSVGD(
        parvi.fields.PreconditionerMixture(), parvi.kernels.RBF(parvi.kernels.Fixed(h))
    )
    # Rounding, times the condition of the Hessians.
    expected = jax.jit(jax.vmap(velocity))(cloud.particles)
    np.testing.assert_allclose(fit(field, cloud).values, expected, rtol=1e-11, atol=1e-13)


KRONECKER = parvi.preconditioners.Kronecker(((1, 2), (1,)))


@pytest.mark.first_quick
@pytest.mark.parametrize(
    "matrix_kernel",
    [
        parvi.fields.SharedPreconditioner(),
        parvi.fields.SharedPreconditioner(parvi.preconditioners.FisherDiagonal()),
        parvi.fields.SharedPreconditioner(parvi.preconditioners.RegressedHessian()),
        parvi.fields.SharedPreconditioner(KRONECKER),
        parvi.fields.PreconditionerMixture(),
        parvi.fields.PreconditionerMixture(KRONECKER),
    ],
)
def test_kl_rate_is_that_of_the_velocity(matrix_kernel):
    cloud = cloud_of()
    got = fit(parvi.fields.MatrixSVGD(matrix_kernel, parvi.fields.UnitMean()), cloud)
    values, divergences = by_forward_mode(got.velocity, cloud)
    np.testing.assert_allclose(got.values, values, rtol=1e-12, atol=1e-14)
    expected = kl_rate(values, divergences, cloud.scores)
    # Closed form against forward mode: rounding.
    np.testing.assert_allclose(got.kl_rate, expected, rtol=1e-12)
    assert got.kl_rate < 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "matrix_kernel", [parvi.fields.SharedPreconditioner(), parvi.fields.PreconditionerMixture()]
)
def test_affine_equivariance(matrix_kernel):
    kernel = parvi.fields.UnitMean(parvi.kernels.RBF(parvi.kernels.Fixed(2.0)))
    sampler = parvi.Flow(
        parvi.fields.MatrixSVGD(matrix_kernel, kernel), parvi.steppers.Constant(0.3)
    )
    start = np.random.default_rng(2).normal(size=(8, 3))
    plain = parvi.sample(log_density, start, sampler=sampler, num_steps=10)
    image = start @ MATRIX.T + SHIFT
    mapped = parvi.sample(mapped_density, image, sampler=sampler, num_steps=10)
    assert np.abs(plain.particles - start).max() > 0.1
    # Rounding, times the squared condition of the map and ten steps of a smooth flow.
    np.testing.assert_allclose(mapped.particles, plain.particles @ MATRIX.T + SHIFT, atol=1e-10)


def test_unit_mean():
    particles = cloud_of().particles

    @jax.jit
    def pairs(particles):
        kernel = parvi.fields.UnitMean(parvi.kernels.IMQ()).adapted(particles, None)
        return jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(particles))(particles)

    np.testing.assert_allclose(np.mean(pairs(particles)), 1.0, rtol=1e-12)


def test_unit_mean_of_a_part_of_the_particles():
    """Far apart only the pairs of a particle with itself count: the mean is 1 / n, not 1 / m."""
    particles = 100.0 * jnp.arange(12.0)[:, None]
    kernel = parvi.fields.UnitMean(parvi.kernels.RBF(parvi.kernels.Fixed(1.0))).adapted(
        particles, 4
    )
    np.testing.assert_allclose(kernel.scale, 12.0, rtol=1e-12)


def test_bad_input():
    with pytest.raises(ValueError, match="radial"):
        parvi.fields.MatrixSVGD(parvi.fields.PreconditionerMixture(), parvi.kernels.LinearKernel())
    with pytest.raises(ValueError, match="alone"):
        parvi.fields.PreconditionerMixture(parvi.preconditioners.InverseCovariance())
