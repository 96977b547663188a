"""Grassmann SVGD: closed forms, the projectors, and the variance in high dimension."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.cloud import Cloud
from parvi.fields import grassmann_svgd
from parvi.fields.grassmann_svgd import GrassmannSVGD
from parvi.fields.svgd import SVGD
from parvi.interface import kl_rate
from parvi.kernels import Fixed, Median
from parvi.run.step import step


def banana(x):
    """Not Gaussian, not symmetric and not separable: nothing vanishes by accident."""
    return -0.5 * x[0] ** 2 - 2 * jnp.sum((x[1:] - x[:-1] ** 2) ** 2) - 0.3 * jnp.sin(x[-1])


def standard(x):
    return -0.5 * jnp.sum(x**2)


def make_cloud(num, dim, dtype=np.float64, log_density=banana):
    particles = np.random.default_rng(0).normal(size=(num, dim))
    return eqx.filter_jit(Cloud.at)(log_density, jnp.asarray(particles, dtype))


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
        svgd, _ = eqx.filter_jit(SVGD().fit)(jax.random.key(0), cloud, ())
        # The median is searched to 1e-4 of its rank, and rounding may end the search elsewhere:
        # none was seen. Else the rounding of a rotation, on numbers of order 100.
        np.testing.assert_allclose(fit.values, svgd.values, atol=1e-10)
        np.testing.assert_allclose(fit.kl_rate, svgd.kl_rate, rtol=1e-10)


@pytest.mark.parametrize("k", [1, 2])
def test_velocity_is_the_average_of_its_definition(k):
    with jax.enable_x64(True):
        cloud = make_cloud(6, 5)
        fit, _ = fitted(GrassmannSVGD(subspace_dim=k, num_projectors=3), cloud, num_fits=2)
        subspaces = list(zip(fit.velocity.projectors, fit.velocity.squares, strict=True))

        @jax.jit
        def velocity(x):
            total = jnp.zeros(5)
            for projector, square in subspaces:

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


@pytest.mark.parametrize("k", [1, 2])
def test_kl_rate_and_divergences_are_those_of_forward_mode(k):
    with jax.enable_x64(True):
        cloud = make_cloud(20, 5)
        fit, _ = fitted(GrassmannSVGD(subspace_dim=k), cloud, num_fits=3)
        jacobians = jax.jit(jax.vmap(jax.jacfwd(fit.velocity)))(cloud.particles)
        divergences = jnp.trace(jacobians, axis1=1, axis2=2)
        # The same sums in another order, of numbers of order 100, in float64.
        np.testing.assert_allclose(fit.velocity.divergences(cloud), divergences, atol=1e-10)
        expected = kl_rate(fit.values, divergences, cloud.scores)
        np.testing.assert_allclose(fit.kl_rate, expected, rtol=1e-11)
        assert fit.kl_rate < 0


def lines_and_squares(num, dim, dtype):
    rng = np.random.default_rng(1)
    lines = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:num, :, None]
    return jnp.asarray(lines, dtype), jnp.asarray(rng.uniform(0.2, 2, num), dtype)


def test_closed_form_on_lines_is_that_of_automatic_differentiation():
    with jax.enable_x64(True):
        cloud = make_cloud(40, 5)
        # Far from the origin: the mean is taken out before the closed form, and must not matter.
        at = (*lines_and_squares(4, 5, np.float64), cloud.particles + 10, cloud.scores)
        closed = jax.jit(grassmann_svgd._gradients_on_lines)(*at)
        generic = jax.jit(grassmann_svgd._gradients)(*at)
        for ours, expected in zip(closed, generic, strict=True):
            # The generic path expands |x - y|^2, and cancels some digits of the sixteen.
            np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-11)


def test_a_far_particle_costs_no_precision_in_float32():
    with jax.enable_x64(True):
        particles = np.array(make_cloud(40, 5).particles)
        # Squares or cubes of this distance would leave no digit to the others in float32.
        particles[7] *= 1e4
        scores = np.random.default_rng(2).normal(size=particles.shape)
        lines, squares = lines_and_squares(4, 5, np.float32)
        closed = jax.jit(grassmann_svgd._on_lines)
        arrays = [jnp.asarray(array, np.float32) for array in (particles, scores, particles)]
        single = (lines[..., 0], squares, *arrays)
        exact = [array.astype(np.float64) for array in single]
        near = np.arange(40) != 7
        for ours, expected in zip(closed(*single), closed(*exact), strict=True):
            assert ours.dtype == np.float32
            # The far particle moves the mean, and with it all others by some 250 on a line, of
            # which float32 keeps 1.5e-5; f'' amplifies that to 8e-5 here.
            error = np.max(np.abs(ours - expected)[:, near])
            assert error < 3e-4 * np.max(np.abs(expected[:, near]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_particles_beyond_all_measure_stay_finite(dtype):
    with jax.enable_x64(dtype == np.float64):
        particles = np.array(make_cloud(10, 3, dtype).particles)
        particles[4] = 1e15
        # In units of the bandwidth the cube of this distance would not be a float32.
        cloud = Cloud.at(standard, jnp.asarray(particles, dtype))
        fit, memory = fitted(GrassmannSVGD(bandwidth=Fixed(0.1)), cloud)
        assert np.all(np.isfinite(fit.values))
        assert np.all(np.isfinite(memory.projectors))


@pytest.mark.parametrize("k", [1, 2])
def test_particles_move_before_the_projectors(k):
    with jax.enable_x64(True):
        cloud = make_cloud(20, 4)
        field = GrassmannSVGD(subspace_dim=k)
        start = field.init(jax.random.key(0), cloud.particles)
        fit, memory = fitted(field, cloud)
        np.testing.assert_array_equal(fit.velocity.projectors, start.projectors)
        assert np.max(np.abs(memory.projectors - start.projectors)) > 1e-3
        fit, _ = fitted(field, cloud, num_fits=2)
        np.testing.assert_array_equal(fit.velocity.projectors, memory.projectors)


@pytest.mark.parametrize("k", [1, 2])
def test_order_of_the_particles_does_not_matter(k):
    with jax.enable_x64(True):
        cloud = make_cloud(30, 4)
        order = np.random.default_rng(1).permutation(30)
        fit, memory = fitted(GrassmannSVGD(subspace_dim=k), cloud, num_fits=3)
        shuffled = Cloud.at(banana, cloud.particles[order])
        other, other_memory = fitted(GrassmannSVGD(subspace_dim=k), shuffled, num_fits=3)
        # The same sums in another order, of numbers of order 100, through three fits.
        np.testing.assert_allclose(other.values, fit.values[order], atol=1e-9)
        np.testing.assert_allclose(other_memory.projectors, memory.projectors, atol=1e-11)


@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_bandwidth_on_lines_is_the_median(shift):
    with jax.enable_x64(True):
        particles = make_cloud(300, 3).particles + shift
        field = GrassmannSVGD(bandwidth=Median(over_log=False))
        fit, _ = fitted(field, Cloud.at(banana, particles), num_fits=2)
        first, second = np.triu_indices(300, 1)
        lines = fit.velocity.projectors[..., 0]
        for line, square in zip(lines, fit.velocity.squares, strict=True):
            t = np.asarray(particles @ line)
            # The search stops when the rank is right to 1e-4; a pair more is 2e-5 of the rank.
            below = np.mean((t[first] - t[second]) ** 2 <= square)
            assert below == pytest.approx(0.5, abs=1.3e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.0, 0.1, 1e3])
@pytest.mark.parametrize("coinciding", [9, 12])
def test_bandwidth_is_one_where_most_pairs_coincide(dtype, shift, coinciding):
    with jax.enable_x64(dtype == np.float64):
        particles = np.array(make_cloud(12, 3, dtype).particles)
        particles[:coinciding] = 0.3
        cloud = Cloud.at(standard, jnp.asarray(particles + shift, dtype))
        # Two fits: on a general line the projections of equal particles may differ by rounding.
        fit, _ = fitted(GrassmannSVGD(), cloud, num_fits=2)
        np.testing.assert_array_equal(fit.velocity.squares, 1.0)
        assert np.all(np.isfinite(fit.values))


@pytest.mark.parametrize(
    ("k", "dtype"),
    [
        (1, np.float32),
        (3, np.float64),
        pytest.param(1, np.float64, marks=pytest.mark.slow),
        pytest.param(3, np.float32, marks=pytest.mark.slow),
    ],
)
def test_projectors_stay_orthonormal_through_50_steps(k, dtype):
    with jax.enable_x64(dtype == np.float64):
        cloud = make_cloud(20, 6, dtype)
        sampler = parvi.grassmann_svgd(subspace_dim=k)
        memory = sampler.init(jax.random.key(0), cloud)
        move = eqx.filter_jit(step)
        start = memory.field.projectors
        for number in range(50):
            cloud, memory, *_ = move(jax.random.key(number), cloud, memory, sampler)
        projectors = memory.field.projectors
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
        field = GrassmannSVGD(temperature=0.0, bandwidth=Fixed(1.0), projector_step=0.02)
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num", [1, 4])
def test_one_particle_and_coinciding_particles_stay_finite(num, dtype):
    with jax.enable_x64(dtype == np.float64):
        sampler = parvi.grassmann_svgd()
        cloud = Cloud.at(banana, jnp.full((num, 3), 0.5, dtype))
        memory = sampler.init(jax.random.key(0), cloud)
        move = eqx.filter_jit(step)
        for number in range(3):
            cloud, memory, info, moved = move(jax.random.key(number), cloud, memory, sampler)
            assert moved
        assert cloud.dtype == dtype
        assert jnp.all(jnp.isfinite(cloud.particles))
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
