"""Neural SVGD is PFG with H = I and a network; its loss is written out here a second time."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from parvi.interface import Cloud
from parvi.samplers.ready import _adam, _swish

START = np.random.default_rng(0).normal(size=(12, 2))


def log_density(x):
    return -0.5 * jnp.sum((x - jnp.array([1.0, -1.0])) ** 2 * jnp.array([1.0, 4.0]))


def test_is_pfg_with_identity_metric_bitwise():
    solver = parvi.fields.GradientDescent(_adam(5e-3), 4, holdout=0.25, patience=2)
    field = parvi.fields.PFG(
        parvi.functions.Network(_swish(32, 2)), parvi.preconditioners.Identity(), solver
    )
    stepper = parvi.steppers.TrustRegion(parvi.steppers.Constant(0.1))
    by_hand = parvi.Flow(parvi.fields.Whitened(field), stepper)
    ready = parvi.neural_svgd(num_inner_steps=4, patience=2)
    runs = [parvi.sample(log_density, START, sampler=s, num_steps=3) for s in (by_hand, ready)]
    np.testing.assert_array_equal(runs[0].particles, runs[1].particles)
    assert not np.array_equal(runs[0].particles, START)


def test_network_is_swish_with_two_layers_of_32():
    network = _swish(32, 2)(jax.random.key(0), 5)
    assert [layer.weight.shape for layer in network.layers] == [(32, 5), (32, 32), (5, 32)]
    assert network.activation is jax.nn.swish


def test_equal_settings_are_one_program():
    assert parvi.neural_svgd() == parvi.neural_svgd()
    assert hash(_swish(32, 2)) == hash(_swish(32, 2))


@pytest.mark.slow
def test_fit_is_descent_on_the_regularised_stein_discrepancy():
    """Three inner steps, transcribed: minimise E[|f|^2 / 2 - f . s - div f] on the training part.

    The particles are taken one by one and the divergence by reverse mode, d rows of the Jacobian.
    """
    num_steps = 3
    optimizer = optax.adam(5e-3)
    with jax.enable_x64(True):
        solver = parvi.fields.GradientDescent(
            optimizer, num_steps, holdout=0.25, patience=num_steps
        )
        field = parvi.fields.PFG(
            parvi.functions.Network(_swish(32, 2)), parvi.preconditioners.Identity(), solver
        )
        particles = jnp.asarray(START)
        memory = field.init(jax.random.key(7), particles)
        cloud = Cloud.at(log_density, particles)
        fit, _ = eqx.filter_jit(field.fit)(jax.random.key(3), cloud, memory)

        # The same first weights, as a module; the same split, from the same keys.
        weights = memory.solver.parameters.trainable
        template = _swish(32, 2)(jax.random.key(0), 2)
        first = eqx.combine(weights, eqx.filter(template, lambda leaf: not eqx.is_array(leaf)))
        network = first
        key_solve = jax.random.split(jax.random.key(3), 3)[0]
        order = np.asarray(jax.random.permutation(jax.random.split(key_solve)[0], len(START)))
        held_out, train = order[:3], order[3:]

        @eqx.filter_jit
        def loss(network, rows):
            total = 0.0
            for row in rows:
                x, score = particles[row], cloud.scores[row]
                value = network(x)
                divergence = jnp.trace(jax.jacrev(network)(x))
                total += 0.5 * value @ value - value @ score - divergence
            return total / len(rows)

        descent = eqx.filter_jit(eqx.filter_grad(loss))
        state = optimizer.init(eqx.filter(network, eqx.is_array))
        best, lowest = network, loss(network, held_out)
        for _ in range(num_steps):
            gradient = descent(network, train)
            updates, state = optimizer.update(gradient, state)
            network = eqx.apply_updates(network, updates)
            score = loss(network, held_out)
            if score < lowest:
                best, lowest = network, score
        expected = np.asarray(jax.vmap(best)(particles))
        untrained = np.asarray(jax.vmap(first)(particles))
    # Two orders of summation in float64, magnified by Adam's division by its own gradients.
    np.testing.assert_allclose(fit.values, expected, rtol=1e-6, atol=1e-9)
    # The fit must have moved, or both sides would agree for nothing.
    assert np.max(np.abs(expected - untrained)) > 1e-2
    assert int(fit.extra["inner_steps"]) == num_steps


@pytest.mark.slow
def test_reaches_a_gaussian():
    start = np.random.default_rng(1).normal(size=(100, 2)).astype(np.float32)
    sampler = parvi.neural_svgd(num_inner_steps=20)
    result = parvi.sample(log_density, start, sampler=sampler, num_steps=100)
    # 100 independent draws have a mean with a standard error of 0.1 (0.05) and standard
    # deviations that are off by 7 %. The learned direction of 75 particles is as noisy as that:
    # three such errors.
    np.testing.assert_allclose(result.particles.mean(axis=0), [1, -1], atol=0.3)
    np.testing.assert_allclose(result.particles.std(axis=0), [1, 0.5], rtol=0.2)
