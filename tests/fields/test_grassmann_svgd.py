"""Grassmann SVGD: closed forms, the projectors, and the variance in high dimension."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.fields.grassmann_svgd import GrassmannSVGD
from parvi.interface import Cloud, kl_rate


def banana(x):
    """Not Gaussian, not symmetric and not separable: nothing vanishes by accident."""
    return -0.5 * x[0] ** 2 - 2 * jnp.sum((x[1:] - x[:-1] ** 2) ** 2) - 0.3 * jnp.sin(x[-1])


def standard(x):
    return -0.5 * jnp.sum(x**2)


def make_cloud(num, dim, dtype=np.float64, log_density=banana):
    particles = np.random.default_rng(0).normal(size=(num, dim))
    return Cloud.at(log_density, jnp.asarray(particles, dtype))


@eqx.filter_jit
def refit(field, key, cloud, memory):
    return field.fit(key, cloud, memory)


def fitted(field, cloud, num_fits=1):
    memory = eqx.filter_jit(field.init)(jax.random.key(0), cloud.particles)
    for number in range(num_fits):
        fit, memory = refit(field, jax.random.key(number), cloud, memory)
    return fit, memory


def test_a_full_projector_is_svgd_in_any_rotation():
    with jax.enable_x64(True):
        cloud = make_cloud(30, 4)
        field = GrassmannSVGD(subspace_dim=4, num_projectors=1)
        memory = field.init(jax.random.key(0), cloud.particles)
        rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0]
        memory = memory._replace(projectors=jnp.asarray(rotation)[None])
        fit, _ = refit(field, jax.random.key(0), cloud, memory)
        svgd, _ = parvi.SVGD().fit(jax.random.key(0), cloud, ())
        # The median is searched to 1e-4 of its rank, and rounding may end the search elsewhere:
        # none was seen. Else the rounding of a rotation, on numbers of order 100.
        np.testing.assert_allclose(fit.values, svgd.values, atol=1e-10)
        np.testing.assert_allclose(fit.kl_rate, svgd.kl_rate, rtol=1e-10)


def test_velocity_is_the_average_of_its_definition():
    with jax.enable_x64(True):
        cloud = make_cloud(6, 5)
        fit, memory = fitted(GrassmannSVGD(subspace_dim=2, num_projectors=3), cloud, num_fits=2)

        @jax.jit
        def velocity(x):
            total = jnp.zeros(5)
            for projector, square in zip(memory.projectors, memory.squares, strict=True):

                def kernel(v, projector=projector, square=square):
                    return jnp.exp(-jnp.sum((x @ projector - v) ** 2) / square)

                for y, score in zip(cloud.particles, cloud.scores, strict=True):
                    v = y @ projector
                    along = kernel(v) * (score @ projector) + jax.grad(kernel)(v)
                    total += projector @ along / 6
            return total

        expected = jax.vmap(velocity)(cloud.particles)
        # Two ways to the same sums of some twenty terms of order 100 in float64.
        np.testing.assert_allclose(fit.values, expected, atol=1e-11)
        np.testing.assert_allclose(fit.velocity(cloud.particles[2]), expected[2], atol=1e-11)


def test_kl_rate_and_divergences_are_those_of_forward_mode():
    with jax.enable_x64(True):
        cloud = make_cloud(20, 5)
        fit, _ = fitted(GrassmannSVGD(subspace_dim=2), cloud, num_fits=3)
        jacobians = jax.jit(jax.vmap(jax.jacfwd(fit.velocity)))(cloud.particles)
        divergences = jnp.trace(jacobians, axis1=1, axis2=2)
        # The same sums in another order, of numbers of order 100, in float64.
        np.testing.assert_allclose(fit.velocity.divergences(cloud), divergences, atol=1e-10)
        expected = kl_rate(fit.values, divergences, cloud.scores)
        np.testing.assert_allclose(fit.kl_rate, expected, rtol=1e-11)
        assert fit.kl_rate < 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 3])
def test_projectors_stay_orthonormal_through_50_steps(k, dtype):
    with jax.enable_x64(dtype == np.float64):
        cloud = make_cloud(20, 6, dtype)
        sampler = parvi.grassmann_svgd(subspace_dim=k)
        state = sampler.init(jax.random.key(0), cloud.particles, banana)
        step = eqx.filter_jit(lambda key, state: sampler.step(key, state, banana))
        start = state.memory.field.projectors
        for number in range(50):
            state, _ = step(jax.random.key(number), state)
        projectors = state.memory.field.projectors
        gram = jnp.einsum("mdk,mdj->mkj", projectors, projectors)
        # A fresh QR at each step: no drift, an error of a few eps whatever the step before.
        error = jnp.max(jnp.abs(gram - jnp.eye(k, dtype=dtype)))
        assert error < 20 * jnp.finfo(dtype).eps
        assert projectors.dtype == dtype
        # They have moved: the mean square cosine to the first subspaces is not 1 any more.
        cosines = jnp.einsum("mdk,mdj->mkj", start, projectors)
        assert jnp.sum(cosines**2) / (k * len(start)) < 0.9


def test_projectors_climb_their_discrepancy():
    with jax.enable_x64(True):
        # All that is wrong is along the diagonal; the axes see a part of it each.
        diagonal = jnp.ones(4) / 2
        precision = jnp.eye(4) + 3 * jnp.outer(diagonal, diagonal)
        cloud = make_cloud(80, 4, log_density=lambda x: -0.5 * x @ precision @ x)
        field = GrassmannSVGD(temperature=0.0, bandwidth=parvi.Fixed(1.0), projector_step=0.02)
        memory = field.init(jax.random.key(0), cloud.particles)
        rates = []
        for _ in range(100):
            fit, memory = refit(field, jax.random.key(0), cloud, memory)
            rates.append(float(fit.kl_rate))
        # The KL rate is minus the sum of the discrepancies; with particles and bandwidth fixed,
        # ascent by short steps without noise makes it fall at every one, up to rounding.
        assert np.max(np.diff(rates)) < 1e-12
        # From cosine 1/2; 80 particles have sampling errors of about 1/sqrt(80) of their own.
        cosines = jnp.abs(memory.projectors[..., 0] @ diagonal)
        assert jnp.min(cosines) > 0.9


def test_temperature_rises_where_nothing_changes_any_more():
    cloud = make_cloud(10, 3, np.float32, standard)
    _, constant = fitted(GrassmannSVGD(annealing_tolerance=0.0), cloud, num_fits=4)
    assert constant.temperature == np.float32(1e-4)
    # The first fit has nothing to compare with; each later one multiplies by ten.
    _, heated = fitted(GrassmannSVGD(annealing_tolerance=1e6), cloud, num_fits=4)
    np.testing.assert_allclose(heated.temperature, 0.1, rtol=1e-6)
    # Noise of unit size is the limit: 2 T delta = 1.
    _, hottest = fitted(GrassmannSVGD(annealing_tolerance=1e6), cloud, num_fits=10)
    np.testing.assert_allclose(hottest.temperature, 5.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("dim", "k", "shape"), [(1, 2, (1, 1, 1)), (7, 2, (3, 7, 2)), (50, 1, (20, 50, 1))]
)
def test_number_of_projectors_is_that_of_the_paper(dim, k, shape):
    memory = GrassmannSVGD(subspace_dim=k).init(jax.random.key(0), jnp.ones((3, dim)))
    assert memory.projectors.shape == shape


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num", [1, 4])
def test_one_particle_and_coinciding_particles_stay_finite(num, dtype):
    with jax.enable_x64(dtype == np.float64):
        sampler = parvi.grassmann_svgd()
        state = sampler.init(jax.random.key(0), jnp.full((num, 3), 0.5, dtype), banana)
        step = eqx.filter_jit(lambda key, state: sampler.step(key, state, banana))
        for number in range(3):
            state, info = step(jax.random.key(number), state)
            assert info.accepted
        assert state.particles.dtype == dtype
        assert jnp.all(jnp.isfinite(state.particles))
        assert jnp.isfinite(info.kl_rate)


def average_variance(sampler, num, dim, num_steps):
    """The paper's setting but for its size: N(0, I) from N(2, 2I), Adam at 0.1."""
    start = 2 + np.sqrt(2) * np.random.default_rng(0).normal(size=(num, dim))
    result = parvi.sample(standard, start.astype(np.float32), sampler=sampler, num_steps=num_steps)
    return np.mean(np.var(result.particles, axis=0))


@pytest.mark.slow
def test_keeps_the_variance_where_svgd_loses_it():
    # The step of Adam leaves the particles jittering and 60 of them are few: 20 %. SVGD tends to
    # about ln(n)/d = 0.1 of the variance.
    assert abs(average_variance(parvi.grassmann_svgd(), 60, 40, 250) - 1) < 0.2
    assert average_variance(parvi.svgd(), 60, 40, 250) < 0.3


@pytest.mark.slow
def test_variance_in_a_hundred_dimensions():
    # The published table has 1.00 with 500 particles and 2000 steps; the task of keeping it
    # within 10 % is harder with fewer of both.
    assert abs(average_variance(parvi.grassmann_svgd(), 200, 100, 1000) - 1) < 0.1
    # ln(200)/100 = 0.05 is where SVGD goes, from above.
    assert average_variance(parvi.svgd(), 200, 100, 1000) < 0.15


@pytest.mark.parametrize(
    "settings",
    [{"subspace_dim": 0}, {"num_projectors": 0}, {"projector_step": -1.0}, {"temperature": -1.0}],
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        GrassmannSVGD(**settings)
