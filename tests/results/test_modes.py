"""Modes in words: how many, how heavy, how sure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.results.modes import modes_of
from parvi.samplers.path import Passes
from parvi.targets import zoo


def mixture(places, weights):
    places, logs = np.asarray(places, float), np.log(weights)

    def log_density(x):
        squares = jnp.sum((x - jnp.asarray(places, x.dtype)) ** 2, axis=1)
        return jax.scipy.special.logsumexp(jnp.asarray(logs, x.dtype) - 0.5 * squares)

    def draw(num, seed=0):
        rng = np.random.default_rng(seed)
        rows = rng.choice(len(weights), size=num, p=weights)
        return places[rows] + rng.normal(size=(num, places.shape[1]))

    return log_density, draw


def found(log_density, particles, passes=None):
    with jax.enable_x64(True):
        x = jnp.asarray(particles)
        values, scores = jax.vmap(jax.value_and_grad(log_density))(x)
        return modes_of(log_density, np.asarray(x), np.asarray(values), np.asarray(scores), passes)


@pytest.mark.first_quick
@pytest.mark.parametrize("dim", [1, 2, 20])
def test_two_modes_have_their_particles(dim):
    places = np.zeros((2, dim))
    places[:, 0] = -3, 3
    log_density, draw = mixture(places, [0.3, 0.7])
    particles = draw(400)
    modes = found(log_density, particles)
    assert len(modes.weights) == 2
    assert modes.weights[0] > modes.weights[1]
    # A few particles lie in the valley, where either mode is right.
    right = particles[:, 0] > 0
    assert np.mean((modes.labels == 0) == right) > 0.98
    assert "the weights are those of the start" in str(modes)


def test_a_mode_that_bends_is_one():
    exact = zoo.banana()
    modes = found(exact.target.full(), exact.draw(np.random.default_rng(0), 400))
    assert len(modes.weights) == 1
    assert str(modes) == "The particles lie in one mode."


def test_standard_errors_come_from_the_passes_and_copies_are_named():
    log_density, draw = mixture([[-4.0, 4.0], [4.0, -4.0], [9.0, 9.0]], [0.4, 0.4, 0.2])
    ends = np.stack([draw(400, seed) for seed in range(6)])
    modes = found(log_density, draw(400, 9), Passes(ends, np.zeros(6)))
    assert len(modes.weights) == 3
    # Independent passes of 400 draws: sqrt(0.4 * 0.6 / 2400) = 0.01, from six of them.
    assert 0.003 < modes.standard_errors[0] < 0.025
    assert modes.copies == ((0, 1),)
    assert "Modes 1 and 2 look like copies" in str(modes)


@pytest.mark.slow
def test_a_result_tells_its_modes(tmp_path):
    log_density, _ = mixture([[-4.0], [4.0]], [0.25, 0.75])
    result = parvi.sample(log_density, np.random.default_rng(0).normal(size=(256, 1)))
    modes = result.modes()
    assert abs(modes.weights[1] - 0.25) < 0.06
    assert 0 < modes.standard_errors[1] < 0.06
    result.save(tmp_path / "run.npz")
    loaded = parvi.load(tmp_path / "run.npz")
    with pytest.raises(ValueError, match=r"result\.modes\(target\)"):
        loaded.modes()
    assert len(loaded.modes(log_density).weights) == 2
