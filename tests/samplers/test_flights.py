"""Hamiltonian transitions leave the target as it is, and move nothing before they end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parvi.fields.frame import own_frame
from parvi.interface import Cloud
from parvi.samplers import flights
from parvi.targets import zoo


def fly(log_density, particles, key, num_steps):
    """The particles after so many leapfrogs, and how often each was taken to a new place."""

    def body(carry, args):
        left, key = args
        place, flight, count = carry
        cloud = Cloud(*place, log_density)
        key_normal, key_uniform = jax.random.split(key)
        momenta = jax.random.normal(key_normal, cloud.particles.shape)
        uniforms = jax.random.uniform(key_uniform, (2, len(cloud.particles)))
        flight = flights.leapt(left, flight, cloud, frame, momenta, uniforms[0])
        proposed = Cloud.at(log_density, flight.positions)
        flight, taken = flights.landed(left, flight, proposed, frame, uniforms[1])
        new = (proposed.particles, proposed.scores, proposed.log_densities)
        place = [
            jnp.where(taken.reshape(-1, *[1] * (a.ndim - 1)), a, b)
            for a, b in zip(new, place, strict=True)
        ]
        return (tuple(place), flight, count + taken), None

    particles = jnp.asarray(particles)
    frame = own_frame(particles)
    cloud = Cloud.at(log_density, particles)
    place = (cloud.particles, cloud.scores, cloud.log_densities)
    first = (place, flights.grounded(particles), jnp.zeros(len(particles), int))
    left = flights.NUM_STEPS - jnp.arange(num_steps)
    (place, _, count), _ = jax.lax.scan(body, first, (left, jax.random.split(key, num_steps)))
    return np.asarray(place[0]), np.asarray(count)


def test_draws_stay_draws():
    exact = zoo.funnel()
    with jax.enable_x64(True):
        start = exact.draw(np.random.default_rng(0), 4000)
        end, count = fly(exact.target.full(), start, jax.random.key(1), flights.NUM_STEPS)
    assert np.mean(count > 0) > 0.99
    # v ~ N(0, 1.5^2): four standard errors of 4000 draws.
    assert np.mean(end[:, 0]) == pytest.approx(0, abs=4 * 1.5 / 4000**0.5)
    assert np.std(end[:, 0]) == pytest.approx(1.5, rel=4 / (2 * 4000) ** 0.5)
    scaled = end[:, 1:] * np.exp(-end[:, :1] / 2)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=4 / (2 * 4000) ** 0.5)


def test_wrong_draws_come_closer():
    exact = zoo.funnel()
    with jax.enable_x64(True):
        start = exact.draw(np.random.default_rng(0), 1000) * 0.6
        end, _ = fly(exact.target.full(), start, jax.random.key(1), flights.NUM_STEPS)
    assert np.std(start[:, 0]) < 1.0
    assert np.std(end[:, 0]) == pytest.approx(1.5, rel=0.1)


def test_nothing_moves_before_a_transition_ends():
    exact = zoo.banana()
    with jax.enable_x64(True):
        start = exact.draw(np.random.default_rng(0), 50)
        before, _ = fly(exact.target.full(), start, jax.random.key(1), 7)
        after, count = fly(exact.target.full(), start, jax.random.key(1), 8)
    np.testing.assert_array_equal(before, start)
    moved = np.any(after != start, axis=1)
    np.testing.assert_array_equal(moved, count > 0)
    assert moved.any()


def test_a_cliff_is_never_crossed():
    """Where the density is not finite, a trajectory ends as it began."""

    def log_density(x):
        return jnp.where(x[0] > 0, -x[0] - 0.5 * x[1] ** 2, -jnp.inf)

    with jax.enable_x64(True):
        start = np.abs(np.random.default_rng(0).normal(size=(200, 2)))
        end, _ = fly(log_density, start, jax.random.key(1), 80)
    assert np.isfinite(end).all()
    assert (end[:, 0] > 0).all()
