"""JKO steps by convex networks, against the closed form of a JKO step between Gaussians."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from parvi.fields.icnn import ICNN
from parvi.fields.jko_icnn import JKOICNN
from parvi.interface import Cloud

ADAM = optax.adam(2e-2)


def exact_step(mean, sd, target_mean, target_variance, step_size):
    """Mean and standard deviation after one JKO step, one coordinate at a time.

    Minimise (m - m0)^2 / 2h + (m - m*)^2 / 2s* over m, and (r - r0)^2 / 2h + r^2 / 2s* - log r
    over r: the second has the stationary point r^2 (1/h + 1/s*) - r r0 / h - 1 = 0.
    """
    pull, spring = 1 / target_variance, 1 / step_size
    new_mean = (spring * mean + pull * target_mean) / (spring + pull)
    inside = (spring * sd) ** 2 + 4 * (spring + pull)
    return new_mean, (spring * sd + np.sqrt(inside)) / (2 * (spring + pull))


def white(num, dim, seed=0):
    """Particles whose own mean is 0 and whose own covariance is I, to rounding."""
    draws = np.random.default_rng(seed).normal(size=(num, dim))
    draws = draws - draws.mean(axis=0)
    return draws @ np.linalg.inv(np.linalg.cholesky(draws.T @ draws / num)).T


@pytest.mark.slow
@pytest.mark.parametrize("step_size", [0.3, 2.0])
def test_one_step_between_gaussians(step_size):
    mean, sd = np.array([1.0, -2.0]), np.array([0.5, 2.0])
    target_mean, target_variance = np.array([0.0, 1.0]), np.array([2.0, 0.25])
    particles = mean + sd * white(400, 2)
    expected_mean, expected_sd = exact_step(mean, sd, target_mean, target_variance, step_size)
    # The step is long enough that neither staying nor going all the way would pass.
    assert np.min(np.abs(expected_sd / sd - 1)) > 0.1
    assert np.min(np.abs(expected_sd / np.sqrt(target_variance) - 1)) > 0.03

    with jax.enable_x64(True):

        def log_density(x):
            return -0.5 * jnp.sum((x - target_mean) ** 2 / target_variance)

        # Few units: 400 particles are not quite Gaussian, and what they are not is also fitted.
        field = JKOICNN(ADAM, ICNN(width=4), step_size, num_inner_steps=600)
        cloud = Cloud.at(log_density, jnp.asarray(particles))
        fit, _ = eqx.filter_jit(field.fit)(jax.random.key(0), cloud, ())
        moved = particles + np.asarray(fit.values)
    # The affine minimiser has exactly these moments. What the hidden units add, from the
    # particles' own third and fourth moments (about 1 / sqrt(400) = 5 %), moves them by less.
    scale = np.sqrt(target_variance)
    np.testing.assert_allclose(moved.mean(axis=0) / scale, expected_mean / scale, atol=0.03)
    np.testing.assert_allclose(moved.std(axis=0), expected_sd, rtol=0.03)
    correlation = np.corrcoef(moved.T)[0, 1]
    assert abs(correlation) < 0.03


def test_gradient_and_hessian_are_those_of_the_potential():
    with jax.enable_x64(True):
        potential = ICNN(width=6, depth=3, convexity=0.05)
        weights = random_weights(potential)
        x = jax.random.normal(jax.random.key(3), (3,), jnp.float64)
        gradient, hessian = jax.jit(potential.map_with_hessian)(weights, x)
        # Both sides are exact: float64 rounding.
        expected = jax.jit(jax.grad(potential, argnums=1))(weights, x)
        np.testing.assert_allclose(gradient, expected, rtol=1e-12)
        expected = jax.jit(jax.hessian(potential, argnums=1))(weights, x)
        np.testing.assert_allclose(hessian, expected, rtol=1e-10)


def test_projection_makes_it_strongly_convex():
    with jax.enable_x64(True):
        potential = ICNN(width=6, depth=3, convexity=0.05)
        weights = potential.project(random_weights(potential))
        points = 3 * jax.random.normal(jax.random.key(4), (200, 3), jnp.float64)
        hessians_at = jax.jit(jax.vmap(jax.hessian(potential, 1), in_axes=(None, 0)))
        hessians = hessians_at(weights, points)
        # The quadratic part alone has this lower bound; 1e-12 for rounding.
        assert float(jnp.min(jnp.linalg.eigvalsh(hessians))) >= 0.05 - 1e-12
        # It is the projection that does it.
        raw = hessians_at(random_weights(potential), points)
        assert float(jnp.min(jnp.linalg.eigvalsh(raw))) < 0


def random_weights(potential):
    weights = potential.init(jax.random.key(0), 3, jnp.float64)
    leaves, structure = jax.tree_util.tree_flatten(weights)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [
        jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure, drawn)


@pytest.mark.slow
def test_first_map_is_the_identity():
    potential = ICNN()
    weights = potential.init(jax.random.key(0), 3, jnp.float32)
    x = jnp.array([1.0, -2.0, 3.0])
    # alpha + (sqrt(1 - alpha))^2 = 1 to float32 rounding.
    np.testing.assert_allclose(potential.map(weights, x), x, rtol=1e-6)


@pytest.mark.slow
def test_goes_back_where_the_density_has_no_value():
    def log_density(x):
        # Nothing beyond 0.1 to the left of the particles, which the score pulls them to.
        return jnp.sum(jnp.where(x > -0.1, -100.0 * x, jnp.nan))

    particles = jnp.abs(jnp.asarray(white(20, 2), jnp.float32)) + 0.05
    field = JKOICNN(optax.adam(0.1), ICNN(width=4), 1.0, num_inner_steps=30)
    cloud = Cloud.at(log_density, particles)
    fit, _ = eqx.filter_jit(field.fit)(jax.random.key(0), cloud, ())
    assert bool(jnp.all(jax.vmap(log_density)(particles + fit.values) > -jnp.inf))
    assert float(jnp.mean(fit.values)) < 0


@pytest.mark.slow
def test_ready_sampler_reaches_a_shifted_gaussian():
    start = jnp.asarray(white(50, 2, seed=1), jnp.float32)
    result = parvi.sample(
        lambda x: -0.5 * jnp.sum((x - 3) ** 2 / 4),
        start,
        sampler=parvi.jko_icnn(num_inner_steps=50),
        num_steps=12,
    )
    # 12 steps each leave about half of the distance; Adam's last steps and the particles' own
    # third moments (1 / sqrt(50) = 14 %) leave a few per cent.
    np.testing.assert_allclose(result.particles.mean(axis=0), 3, atol=0.3)
    np.testing.assert_allclose(result.particles.std(axis=0), 2, rtol=0.15)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="step_size must be positive, got 0"):
        JKOICNN(ADAM, step_size=0.0)
    with pytest.raises(ValueError, match="num_inner_steps must be at least 1"):
        JKOICNN(ADAM, num_inner_steps=0)
    with pytest.raises(ValueError, match="convexity must be between 0 and 1"):
        ICNN(convexity=0.0)
