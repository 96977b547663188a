"""Sliced SVGD: closed forms, the learned directions, and the variance in high dimension."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from parvi.cloud import Cloud
from parvi.fields.lines import squares_on_lines
from parvi.fields.sliced_svgd import SlicedSVGD
from parvi.fields.svgd import SVGD
from parvi.interface import kl_rate
from parvi.kernels import Fixed, Median
from parvi.run.step import step


def banana(x):
    """Not Gaussian, not symmetric and not separable: nothing vanishes by accident."""
    return -0.5 * x[0] ** 2 - 2 * jnp.sum((x[1:] - x[:-1] ** 2) ** 2) - 0.3 * jnp.sin(x[-1])


def make_cloud(num, dim, dtype=np.float64, seed=0, log_density=banana):
    particles = np.random.default_rng(seed).normal(size=(num, dim))
    return eqx.filter_jit(Cloud.at)(log_density, jnp.asarray(particles, dtype))


@eqx.filter_jit
def refit(field, cloud, memory):
    return field.fit(jax.random.key(1), cloud, memory)


def fitted(field, cloud, num_fits=1):
    memory = eqx.filter_jit(field.init)(jax.random.key(0), cloud.particles)
    for _ in range(num_fits):
        fit, memory = refit(field, cloud, memory)
    return fit, memory


def rotation(dim, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]


@pytest.mark.parametrize("basis", [[[1.0]], [[-1.0]]])
def test_equals_svgd_in_one_dimension(basis):
    with jax.enable_x64(True):
        cloud = make_cloud(30, 1)
        sliced, memory = fitted(SlicedSVGD(basis=jnp.asarray(basis)), cloud, num_fits=3)
        svgd, _ = eqx.filter_jit(SVGD().fit)(jax.random.key(0), cloud, ())
        # SVGD takes squared distances from a matrix product, which loses a few digits of the
        # small ones: 1e-12 of numbers of order 10.
        np.testing.assert_allclose(sliced.values, svgd.values, atol=1e-11)
        np.testing.assert_allclose(sliced.kl_rate, svgd.kl_rate, rtol=1e-11)
        np.testing.assert_array_equal(memory.directions, basis)


def test_velocity_is_the_average_of_its_definition():
    with jax.enable_x64(True):
        cloud = make_cloud(7, 3)
        fit, memory = fitted(SlicedSVGD(basis=jnp.asarray(rotation(3))), cloud, num_fits=3)
        basis = rotation(3)

        @jax.jit
        def velocity(x):
            total = jnp.zeros(3)
            for r, g, square in zip(basis, memory.directions, memory.squares, strict=True):

                def kernel(v, g=g, square=square):
                    return jnp.exp(-((x @ g - v) ** 2) / square)

                for y, score in zip(cloud.particles, cloud.scores, strict=True):
                    force = jax.grad(kernel)(y @ g)
                    total += r * ((score @ r) * kernel(y @ g) + (r @ g) * force) / 7
            return total

        expected = jax.vmap(velocity)(cloud.particles)
        # Two ways to the same sums of some twenty terms of order 10 in float64.
        np.testing.assert_allclose(fit.values, expected, atol=1e-12)
        np.testing.assert_allclose(fit.velocity(cloud.particles[2]), expected[2], atol=1e-12)


@pytest.mark.first_quick
@pytest.mark.parametrize("rotated", [False, True])
def test_kl_rate_and_divergences_are_those_of_forward_mode(rotated):
    with jax.enable_x64(True):
        cloud = make_cloud(20, 4)
        field = SlicedSVGD(basis=jnp.asarray(rotation(4)) if rotated else None)
        fit, _ = fitted(field, cloud, num_fits=5)
        jacobians = jax.jit(jax.vmap(jax.jacfwd(fit.velocity)))(cloud.particles)
        divergences = jnp.trace(jacobians, axis1=1, axis2=2)
        # The same sums in another order, in float64.
        np.testing.assert_allclose(fit.velocity.divergences(cloud), divergences, atol=1e-11)
        expected = kl_rate(fit.values, divergences, cloud.scores)
        np.testing.assert_allclose(fit.kl_rate, expected, rtol=1e-11)
        assert fit.kl_rate < 0


def discrepancy_of_its_definition(direction, slice_, square, particles, scores):
    """D_r(g), pair by pair, with the derivatives of the kernel left to JAX."""
    g = direction / jnp.linalg.norm(direction)
    c = slice_ @ g

    def kernel(u, v):
        return jnp.exp(-((u - v) ** 2) / square)

    def pair(x, y, score, other):
        at, a, b = (x @ g, y @ g), score @ slice_, other @ slice_
        du, dv = (jax.grad(kernel, argument)(*at) for argument in (0, 1))
        mixed = jax.grad(jax.grad(kernel, 0), 1)(*at)
        return a * b * kernel(*at) + c * (a * dv + b * du) + c**2 * mixed

    over_others = jax.vmap(pair, (None, 0, None, 0))
    return jnp.mean(jax.vmap(over_others, (0, None, 0, None))(particles, particles, scores, scores))


# One pair may be met twice with an even number of particles.
@pytest.mark.first_quick
@pytest.mark.parametrize(
    ("num", "rotated"),
    [
        (1, True),
        (2, False),
        (7, True),
        (8, False),
        *(
            pytest.param(num, rotated, marks=pytest.mark.slow)
            for num, rotated in ((1, False), (2, True), (7, False), (8, True))
        ),
    ],
)
def test_a_fit_is_that_of_automatic_differentiation(num, rotated):
    with jax.enable_x64(True):
        # Far from the origin, which must not matter.
        cloud = Cloud.at(lambda x: banana(x - 10), make_cloud(num, 4).particles + 10)
        particles_and_scores = cloud.particles, cloud.scores
        basis = rotation(4) if rotated else np.eye(4)
        field = SlicedSVGD(optax.sgd(0.1), basis=jnp.asarray(basis) if rotated else None)
        memory = field.init(jax.random.key(0), cloud.particles)
        # Away from the slices, in both senses: cosines of either sign.
        memory = memory._replace(
            directions=jnp.asarray(rotation(4, seed=3)), squares=jnp.array([0.3, 0.8, 2.0, 5.0])
        )
        fit, moved = refit(field, cloud, memory)

        value_and_gradient = jax.value_and_grad(discrepancy_of_its_definition)
        at = jax.jit(jax.vmap(value_and_gradient, (0, 0, 0, None, None)))
        _, gradients = at(memory.directions, basis, memory.squares, *particles_and_scores)
        directions = memory.directions + 0.1 * gradients
        directions /= jnp.linalg.norm(directions, axis=1, keepdims=True)
        # Sums of 64 terms of order 100 in float64, and coordinates around 10 in the differences.
        np.testing.assert_allclose(moved.directions, directions, atol=1e-12)
        discrepancies, _ = at(directions, basis, moved.squares, *particles_and_scores)
        np.testing.assert_allclose(fit.kl_rate, -jnp.sum(discrepancies), rtol=1e-12)


@pytest.mark.parametrize(
    ("num", "over_log"), [(1, True), (2, True), (30, True), (101, False), (600, True)]
)
def test_bandwidths_are_those_of_each_line_alone(num, over_log):
    with jax.enable_x64(True):
        positions = make_cloud(num, 3).particles.T
        bandwidth = Median(over_log)
        squares = jax.jit(lambda t: squares_on_lines(bandwidth, t, 512))(positions)
        alone = jax.jit(jax.vmap(lambda t: bandwidth.of(t[:, None], 512)))(positions)
        # The same search, on counts that are the same.
        np.testing.assert_allclose(squares, alone, rtol=1e-12)


@pytest.mark.parametrize(
    ("coinciding", "dtype"),
    [
        (9, np.float32),
        (12, np.float64),
        pytest.param(9, np.float64, marks=pytest.mark.slow),
        pytest.param(12, np.float32, marks=pytest.mark.slow),
    ],
)
def test_bandwidth_is_one_where_most_pairs_coincide(coinciding, dtype):
    with jax.enable_x64(dtype == np.float64):
        particles = np.array(make_cloud(12, 3, dtype).particles)
        particles[:coinciding] = 0.3
        fit, _ = fitted(SlicedSVGD(), Cloud.at(banana, jnp.asarray(particles)), num_fits=2)
        np.testing.assert_array_equal(fit.velocity.squares, 1.0)
        assert np.all(np.isfinite(fit.values))


@pytest.mark.parametrize("rotated", [False, True])
def test_velocity_at_the_particles_is_that_of_the_fit(rotated):
    with jax.enable_x64(True):
        cloud = make_cloud(20, 4)
        field = SlicedSVGD(basis=jnp.asarray(rotation(4)) if rotated else None)
        fit, _ = fitted(field, cloud, num_fits=3)
        # The fit meets each pair once, the velocity each particle: other orders of one sum.
        np.testing.assert_allclose(fit.velocity.on(cloud), fit.values, rtol=1e-11, atol=1e-11)


def test_learned_directions_are_unit_vectors_of_higher_discrepancy():
    with jax.enable_x64(True):
        # Correlated coordinates: the axes are not the worst directions.
        precision = jnp.array([[2.0, 1.6, 0.0], [1.6, 2.0, 0.5], [0.0, 0.5, 1.0]])
        cloud = make_cloud(60, 3, log_density=lambda x: -0.5 * x @ precision @ x)
        field = SlicedSVGD(optax.sgd(0.02), bandwidth=Fixed(1.0))
        memory = field.init(jax.random.key(0), cloud.particles)
        rates = []
        for _ in range(60):
            fit, memory = refit(field, cloud, memory)
            rates.append(float(fit.kl_rate))
            # Normalised at the end of each fit: wrong by a few roundings, 2e-16 each.
            np.testing.assert_allclose(jnp.linalg.norm(memory.directions, axis=1), 1, atol=1e-15)
        # The KL rate is minus the discrepancy; particles and bandwidth stand still, so that
        # ascent by short steps makes it fall at every one, up to rounding.
        assert np.max(np.diff(rates)) < 1e-12
        assert rates[-1] < 1.2 * rates[0] < 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num", [1, 4])
def test_one_particle_and_coinciding_particles_stay_finite(num, dtype):
    with jax.enable_x64(dtype == np.float64):
        sampler = parvi.sliced_svgd()
        cloud = Cloud.at(banana, jnp.full((num, 3), 0.5, dtype))
        memory = sampler.init(jax.random.key(0), cloud)
        move = eqx.filter_jit(step)
        for number in range(3):
            cloud, memory, info, moved = move(jax.random.key(number), cloud, memory, sampler)
            assert moved
        assert cloud.dtype == dtype
        assert jnp.all(jnp.isfinite(cloud.particles))
        assert jnp.isfinite(info.kl_rate)


def test_one_particle_climbs_the_log_density():
    with jax.enable_x64(True):
        cloud = make_cloud(1, 3)
        fit, _ = fitted(SlicedSVGD(basis=jnp.asarray(rotation(3))), cloud)
        # k = 1 and no force: the velocity is the score, up to the rounding of the rotation.
        np.testing.assert_allclose(fit.values, cloud.scores, rtol=1e-13)


def test_permuted_particles_move_alike():
    with jax.enable_x64(True):
        cloud = make_cloud(12, 3)
        order = np.random.default_rng(1).permutation(12)
        fit, _ = fitted(SlicedSVGD(), cloud, num_fits=2)
        permuted = Cloud.at(banana, cloud.particles[order])
        again, _ = fitted(SlicedSVGD(), permuted, num_fits=2)
        # Sums in another order.
        np.testing.assert_allclose(again.values, fit.values[order], atol=1e-11)


@pytest.mark.slow
def test_keeps_the_variance_where_svgd_loses_it():
    dim, num = 40, 60
    start = np.random.default_rng(0).normal(1, 1.4, size=(num, dim)).astype(np.float32)

    def spread(sampler):
        result = parvi.sample(lambda x: -0.5 * jnp.sum(x**2), start, sampler=sampler, num_steps=200)
        return np.mean(np.var(result.particles, axis=0))

    # The learned directions also fit the noise of sixty particles in forty dimensions, which
    # costs some of the variance: 25 %. SVGD tends to about ln(n)/d = 0.1 of it.
    assert abs(spread(parvi.sliced_svgd()) - 1) < 0.25
    assert spread(parvi.svgd()) < 0.3


@pytest.mark.parametrize(
    ("basis", "message"),
    [(np.ones((2, 3)), "square matrix"), (2 * np.eye(2), "orthonormal")],
)
def test_a_basis_that_is_not_orthogonal_is_refused(basis, message):
    with pytest.raises(ValueError, match=message):
        SlicedSVGD(basis=basis)


def test_a_basis_of_another_dimension_is_refused():
    with pytest.raises(ValueError, match="2 slices"):
        SlicedSVGD(basis=np.eye(2)).init(jax.random.key(0), jnp.zeros((4, 3)))
