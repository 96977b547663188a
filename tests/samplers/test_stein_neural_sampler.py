"""The Stein neural sampler: its generator, its critic, and its moments on a Gaussian."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from parvi.cloud import Cloud
from parvi.fields.affine_network import AffineNetwork
from parvi.fields.pfg.functions import Parameters, forward_mode
from parvi.geometry.frame import DenseFrame
from parvi.run.step import step
from parvi.samplers.stein_neural_sampler import SteinNeuralSampler
from parvi.status import Status

MEAN = np.array([3.0, -1.0], np.float32)
COVARIANCE = np.array([[4.0, 0.6], [0.6, 0.25]], np.float32)
PRECISION = np.linalg.inv(COVARIANCE)


def gaussian(x):
    return -0.5 * (x - MEAN) @ PRECISION @ (x - MEAN)


def trained(sampler, start, log_density, num_steps, key):
    """The particles and the memory after so many steps."""
    cloud = Cloud.at(log_density, start)

    def body(number, carry):
        place, memory = carry
        cloud = Cloud(*place, log_density)
        after = step(jax.random.fold_in(key, number), cloud, memory, sampler)
        return after.cloud.place, after.memory

    first = cloud.place, sampler.init(key, cloud)
    place, memory = eqx.filter_jit(lambda c: jax.lax.fori_loop(0, num_steps, body, c))(first)
    return place.particles, memory


@pytest.mark.slow
def test_particles_and_new_draws_have_the_moments_of_a_gaussian():
    start = jax.random.normal(jax.random.key(0), (128, 2))
    sampler = parvi.stein_neural_sampler()
    particles, memory = trained(sampler, start, gaussian, 1500, jax.random.key(1))
    draws = np.asarray(sampler.generate(jax.random.key(2), memory, 4000))
    scale = np.sqrt(np.diag(COVARIANCE))
    for sample in (np.asarray(particles), draws):
        # The noise behind the particles is white to rounding, and 4000 draws have a standard error
        # of 2 %. What is left is the game's: Adam of 3e-3 on minibatches of 128 keeps the
        # generator within about 0.1 standard deviations.
        np.testing.assert_allclose(sample.mean(axis=0) / scale, MEAN / scale, atol=0.25)
        np.testing.assert_allclose(sample.std(axis=0), scale, rtol=0.2)
        correlation = np.corrcoef(sample.T)[0, 1]
        np.testing.assert_allclose(correlation, 0.6, atol=0.15)
    assert draws.dtype == np.float32


def test_starts_at_the_initial_particles():
    start = 5 + 3 * jax.random.normal(jax.random.key(0), (20, 3))
    sampler = parvi.stein_neural_sampler()
    cloud = eqx.filter_jit(Cloud.at)(lambda x: -jnp.sum(x**2), start)
    memory = eqx.filter_jit(sampler.init)(jax.random.key(1), cloud)
    network = AffineNetwork(32)
    pushed = network.values(Parameters((), memory.generator), memory.noise)
    # Whitened and back: float32 rounding of numbers near 5.
    np.testing.assert_allclose(pushed, start, rtol=1e-5)
    # And new draws are Gaussian with the same moments: 20 000 draws, standard error 0.02.
    draws = sampler.generate(jax.random.key(2), memory, 20_000)
    np.testing.assert_allclose(draws.mean(axis=0), start.mean(axis=0), atol=0.1)
    np.testing.assert_allclose(draws.std(axis=0), start.std(axis=0), rtol=0.03)


@pytest.mark.slow
def test_critic_learns_the_difference_of_scores():
    """For q = N(0, I) and p = N(m, I) the best critic is the constant m, the maximum |m|^2 / 2."""
    shift = np.array([0.5, -1.0], np.float32)

    def log_density(x):
        return -0.5 * jnp.sum((x - shift) ** 2)

    start = jax.random.normal(jax.random.key(0), (2000, 2))
    sampler = SteinNeuralSampler(optax.adam(1e-2), optax.adam(2e-2), 4, num_critic_steps=300)
    cloud = Cloud.at(log_density, start)
    memory = sampler.init(jax.random.key(1), cloud)
    frame = DenseFrame.of(start)
    unit = jnp.asarray(1.5, jnp.float32)
    critic, _ = eqx.filter_jit(sampler._train_critic)(memory, cloud, frame, unit)
    inside = frame.enter(start)
    values = unit * AffineNetwork(4).values(Parameters((), critic), inside)
    # The scores' mean over 2000 particles has a standard error of 0.02. A fit of 26 weights is off
    # by sqrt(26 / 2000) = 0.11 in root mean square; twice that.
    np.testing.assert_allclose(values.mean(axis=0), shift, atol=0.08)
    np.testing.assert_allclose(values.std(axis=0), 0, atol=0.23)
    value = sampler._discrepancy(critic, start, cloud.scores, frame, unit) * unit**2
    np.testing.assert_allclose(value, 0.5 * np.sum(shift**2), rtol=0.15)


@pytest.mark.slow
def test_affine_network_has_the_divergence_of_its_jacobian():
    with jax.enable_x64(True):
        network = AffineNetwork(5)
        particles = jax.random.normal(jax.random.key(0), (7, 3), jnp.float64)
        start = network.init(jax.random.key(1), particles).trainable
        keys = jax.random.split(jax.random.key(2), len(start))
        weights = {
            name: jax.random.normal(k, leaf.shape, leaf.dtype)
            for k, (name, leaf) in zip(keys, start.items(), strict=True)
        }
        values, divergences = network.with_divergences(Parameters((), weights), particles)
        expected = forward_mode(network, Parameters((), weights), particles)
        # Both exact: float64 rounding.
        np.testing.assert_allclose(values, expected[0], rtol=1e-12)
        np.testing.assert_allclose(divergences, expected[1], rtol=1e-10)


@pytest.mark.slow
def test_keeps_the_last_good_particles():
    def log_density(x):
        # Walls that the first step of the generator crosses.
        return jnp.where(jnp.all(jnp.abs(x) < 10), jnp.sum(x), jnp.nan)

    start = -jnp.abs(jax.random.normal(jax.random.key(0), (10, 2)))
    sampler = SteinNeuralSampler(optax.sgd(1e6), optax.adam(1e-2), 4, 1)
    cloud = Cloud.at(log_density, start)
    memory = sampler.init(jax.random.key(1), cloud)
    after = step(jax.random.key(2), cloud, memory, sampler)
    assert int(after.info.status) == Status.NONFINITE
    assert not bool(after.moved)
    np.testing.assert_array_equal(after.cloud.particles, start)
    before = jax.tree_util.tree_leaves(memory)
    for kept, old in zip(jax.tree_util.tree_leaves(after.memory), before, strict=True):
        np.testing.assert_array_equal(kept, old)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="num_critic_steps must be at least 1, got 32 and 0"):
        parvi.stein_neural_sampler(num_critic_steps=0)
