"""JKO steps by a primal-dual game, against the closed form and against convex networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from parvi.fields.icnn import ICNN
from parvi.fields.jko_icnn import JKOICNN
from parvi.fields.jko_variational import JKOVariational, LogRatio
from parvi.interface import Cloud
from parvi.stopping import exactly

ADAM = optax.adam(2e-2)
SLOW = optax.adam(1e-3)


def exact_step(mean, sd, target_mean, target_variance, step_size):
    """Mean and standard deviation after one JKO step (derived in test_jko_icnn.py)."""
    pull, spring = 1 / target_variance, 1 / step_size
    new_mean = (spring * mean + pull * target_mean) / (spring + pull)
    inside = (spring * sd) ** 2 + 4 * (spring + pull)
    return new_mean, (spring * sd + np.sqrt(inside)) / (2 * (spring + pull))


def white(num, dim, seed=0):
    """Particles whose own mean is 0 and whose own covariance is I, to rounding."""
    draws = np.random.default_rng(seed).normal(size=(num, dim))
    draws = draws - draws.mean(axis=0)
    return draws @ np.linalg.inv(np.linalg.cholesky(draws.T @ draws / num)).T


MEAN, SD = np.array([1.0, -2.0]), np.array([0.5, 2.0])
TARGET_MEAN, TARGET_VARIANCE = np.array([0.0, 1.0]), np.array([2.0, 0.25])


def gaussian(x):
    return -0.5 * jnp.sum((x - TARGET_MEAN) ** 2 / TARGET_VARIANCE)


def velocity_of(field, particles, log_density):
    memory = field.init(jax.random.key(1), particles)
    cloud = Cloud.at(log_density, particles)
    return eqx.filter_jit(field.fit)(jax.random.key(0), cloud, memory)[0].velocity


@pytest.mark.slow
@pytest.mark.parametrize("step_size", [pytest.param(0.3, marks=pytest.mark.slow), 2.0])
def test_one_step_between_gaussians(step_size):
    expected_mean, expected_sd = exact_step(MEAN, SD, TARGET_MEAN, TARGET_VARIANCE, step_size)
    with jax.enable_x64(True):
        particles = jnp.asarray(MEAN + SD * white(400, 2))
        field = JKOVariational(ADAM, SLOW, width=4, step_size=step_size, num_inner_steps=400)
        velocity = velocity_of(field, particles, gaussian)
        moved = np.asarray(particles + jax.vmap(velocity)(particles))
    # With h = 1 the step is exact. The ratio that is learned from 400 draws has an error of about
    # 1 / sqrt(400) = 5 %, of which a slow dual optimiser takes up a part.
    scale = np.sqrt(TARGET_VARIANCE)
    np.testing.assert_allclose(moved.mean(axis=0) / scale, expected_mean / scale, atol=0.05)
    np.testing.assert_allclose(moved.std(axis=0), expected_sd, rtol=0.05)


@pytest.mark.slow
def test_agrees_with_convex_networks_where_nothing_is_gaussian():
    def log_density(x):
        return -0.5 * x[0] ** 2 - 2 * (x[1] - x[0] ** 2) ** 2

    step_size = 0.5

    @eqx.filter_jit
    def objective(velocity, particles):
        """What a JKO step minimises, with the exact log determinant, for any map."""

        def one(x):
            moved = x + velocity(x)
            slope = jnp.eye(2) + jax.jacfwd(velocity)(x)
            cost = 0.5 * jnp.sum(velocity(x) ** 2) / step_size
            return cost - log_density(moved) - jnp.linalg.slogdet(slope)[1], moved

        values, moved = jax.vmap(one)(particles)
        return jnp.mean(values), moved

    with jax.enable_x64(True):
        particles = jnp.asarray(white(300, 2, seed=2))
        game = JKOVariational(ADAM, optax.adam(1e-2), 16, step_size, 400, 3)
        convex = JKOICNN(ADAM, ICNN(width=16), step_size, 400)
        before, _ = objective(jnp.zeros_like, particles)
        (by_game, one), (by_convex, other) = (
            (float(value), np.asarray(moved))
            for value, moved in (
                objective(velocity_of(field, particles, log_density), particles)
                for field in (game, convex)
            )
        )
    # Maps that differ by what hardly moves the density cost nearly the same, so they are compared
    # by what they were made for. The game never sees the determinant that this objective has; its
    # dual function, from 300 particles, is off by about 1 / sqrt(300) = 6 %, and so is its gain.
    gain = float(before) - by_convex
    assert gain > 1
    assert abs(by_game - by_convex) < 0.06 * gain
    # So are the moments, of which the last says that both have bent the particles.
    np.testing.assert_allclose(one.mean(axis=0), other.mean(axis=0), atol=0.12)
    np.testing.assert_allclose(one.std(axis=0), other.std(axis=0), rtol=0.12)
    bends = [np.corrcoef(moved[:, 0] ** 2, moved[:, 1])[0, 1] for moved in (one, other)]
    assert min(bends) > 0.4


@pytest.mark.slow
def test_dual_function_learns_the_log_ratio_to_the_reference():
    # Particles on two sides of 0 with covariance 1, so that the reference is N(0, 1): the log
    # ratio is known, and at the target the map should rest, by the dual function alone.
    centre, spread = 0.9, np.sqrt(1 - 0.9**2)
    rng = np.random.default_rng(0)
    signs = np.where(np.arange(600) < 300, 1.0, -1.0)
    particles = (centre * signs + spread * rng.normal(size=600))[:, None]
    particles = (particles - particles.mean()) / particles.std()

    def log_density(x):
        return jax.nn.logsumexp(
            -0.5 * ((x[0] - jnp.array([-centre, centre])) / spread) ** 2
        ) - jnp.log(2 * spread * jnp.sqrt(2 * jnp.pi))

    with jax.enable_x64(True):
        # A step too short to move: the game is the dual player's alone.
        field = JKOVariational(optax.adam(1e-12), optax.adam(2e-2), 16, 1e-6, 300, 5)
        points = jnp.asarray(particles)
        memory = field.init(jax.random.key(1), points)
        cloud = Cloud.at(log_density, points)
        _, (dual, _) = eqx.filter_jit(field.fit)(jax.random.key(0), cloud, memory)
        grid = jnp.linspace(-1.5, 1.5, 31)[:, None]
        learned = np.asarray(LogRatio(16)(dual, grid))
        reference = -0.5 * grid[:, 0] ** 2 - 0.5 * jnp.log(2 * jnp.pi)
        exact = np.asarray(jax.vmap(log_density)(grid) - reference)
    # 600 particles in about ten resolvable bins: an error of 1 / sqrt(60) = 0.13 in the log of
    # each; twice that. The log ratio itself spans 2 from the gap to the modes.
    assert np.max(exact) - np.min(exact) > 1.5
    assert np.sqrt(np.mean((learned - exact) ** 2)) < 0.26


@pytest.mark.slow
def test_ready_sampler_reaches_a_shifted_gaussian():
    start = jnp.asarray(white(50, 2, seed=1), jnp.float32)
    sampler = exactly(parvi.jko_variational(num_inner_steps=50), 12)

    def run(key):
        return parvi.sample(
            lambda x: -0.5 * jnp.sum((x - 3) ** 2 / 4), start, key=key, sampler=sampler
        ).particles

    # 12 steps each leave about half of the distance; the rest is what the dual function makes of
    # 50 particles (1 / sqrt(50) = 14 %). One key in six is outside: the middle one of three counts.
    runs = [run(key) for key in range(3)]
    means, sds = ([f(particles, axis=0) for particles in runs] for f in (np.mean, np.std))
    np.testing.assert_allclose(np.median(means, axis=0), 3, atol=0.3)
    np.testing.assert_allclose(np.median(sds, axis=0), 2, rtol=0.15)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="step_size must be positive, got 0"):
        JKOVariational(ADAM, SLOW, step_size=0.0)
    with pytest.raises(ValueError, match="num_dual_steps must be at least 1"):
        JKOVariational(ADAM, SLOW, num_dual_steps=0)
