"""Function classes: values and closed-form divergences against forward mode, and Hutchinson."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.fields.pfg.functions import Parameters, forward_mode
from parvi.fields.pfg.objective import ExactDivergence, ForwardMode

# Sums of tens of terms of order one in float64.
ROUNDING = 1e-12
DIM, NUM = 4, 12


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def particles(num=NUM, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num, DIM)))


CLASSES = {
    "linear": parvi.functions.Linear(),
    "random_features": parvi.functions.RandomFeatures(9),
    "random_features_wide": parvi.functions.RandomFeatures(5, jax.nn.sigmoid, scale=2.0),
    "mlp_sigmoid": parvi.functions.MLP(7),
    "mlp_tanh": parvi.functions.MLP(7, jnp.tanh),
    "mlp_relu": parvi.functions.MLP(7, jax.nn.relu),
    "mlp_swish": parvi.functions.MLP(7, jax.nn.swish),
    "mlp_scaling": parvi.functions.MLP(7, jnp.tanh, scaling=True),
    "network": parvi.functions.Network(
        lambda key, dim: eqx.nn.MLP(dim, dim, 8, 2, jnp.tanh, key=key)
    ),
}

each_class = pytest.mark.parametrize("name", CLASSES)


def drawn(name, seed=0):
    """The class with parameters none of which is zero."""
    functions = CLASSES[name]
    parameters = functions.init(jax.random.key(seed), particles())
    leaves, treedef = jax.tree_util.tree_flatten(parameters.trainable)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noise = [
        jax.random.normal(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    moved = jax.tree_util.tree_unflatten(
        treedef, [leaf + 0.5 * n for leaf, n in zip(leaves, noise, strict=True)]
    )
    return functions, Parameters(parameters.frozen, moved)


@each_class
def test_values_and_divergences(name):
    functions, parameters = drawn(name)
    x = particles()

    key = jax.random.key(0)

    @jax.jit
    def brute(x):
        one = lambda point: functions(parameters, point)  # noqa: E731
        return jax.vmap(one)(x), jax.vmap(lambda p: jnp.trace(jax.jacrev(one)(p)))(x)

    @jax.jit
    def pairs(x):
        return (
            functions.with_divergences(parameters, x),
            forward_mode(functions, parameters, x),
            ExactDivergence()(key, functions, parameters, x),
            ForwardMode()(key, functions, parameters, x),
        )

    expected_values, expected_divergences = brute(x)
    assert np.max(np.abs(expected_divergences)) > 0.1
    np.testing.assert_allclose(
        functions.values(parameters, x), expected_values, rtol=ROUNDING, atol=ROUNDING
    )
    for values, divergences in pairs(x):
        np.testing.assert_allclose(values, expected_values, rtol=ROUNDING, atol=ROUNDING)
        np.testing.assert_allclose(divergences, expected_divergences, rtol=ROUNDING, atol=ROUNDING)


def test_mlp_against_its_formula():
    functions, parameters = drawn("mlp_tanh")
    w = {name: np.asarray(value) for name, value in parameters.trainable.items()}
    x = np.asarray(particles())
    hidden = np.tanh(x @ w["W1"].T + w["b1"])
    values, divergences = functions.with_divergences(parameters, jnp.asarray(x))
    np.testing.assert_allclose(values, hidden @ w["W2"].T + w["b2"], rtol=ROUNDING, atol=ROUNDING)
    expected = (1 - hidden**2) @ np.diag(w["W1"] @ w["W2"])
    np.testing.assert_allclose(divergences, expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("name", ["linear", "random_features", "random_features_wide"])
def test_moments_of_features(name):
    """f = W psi with the features and gradients that the closed-form solvers are given."""
    functions, parameters = drawn(name)
    x = particles()
    moments = functions.moments(parameters.frozen, x, jnp.full(NUM, 1 / NUM))
    weights = parameters.trainable
    assert moments.features.shape == (NUM, functions.num_weights(DIM))
    np.testing.assert_allclose(
        moments.features @ weights.T, functions.values(parameters, x), rtol=ROUNDING, atol=ROUNDING
    )
    # E div f = tr(W E[grad psi]).
    _, divergences = functions.with_divergences(parameters, x)
    np.testing.assert_allclose(
        jnp.trace(weights @ moments.mean_gradient), jnp.mean(divergences), rtol=ROUNDING
    )


def test_random_features_bend_at_particles():
    """Each threshold lies at a particle, and each direction has the length that was asked."""
    functions = parvi.functions.RandomFeatures(50, scale=2.0)
    x = particles()
    directions, offsets = functions.init(jax.random.key(0), x).frozen
    np.testing.assert_allclose(jnp.linalg.norm(directions, axis=1), 2.0, rtol=ROUNDING)
    nearest = jnp.min(jnp.abs(x @ directions.T + offsets), axis=0)
    assert np.max(nearest) < ROUNDING


@each_class
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_dtype_is_kept(name, dtype):
    functions = CLASSES[name]
    x = particles().astype(dtype)
    parameters = functions.init(jax.random.key(0), x)
    values, divergences = functions.with_divergences(parameters, x)
    assert values.dtype == dtype
    assert divergences.dtype == dtype


@pytest.mark.parametrize("draw", [jax.random.rademacher, jax.random.normal])
@pytest.mark.parametrize("num_probes", [1, 3])
def test_hutchinson_is_unbiased(draw, num_probes):
    functions, parameters = drawn("mlp_tanh")
    weights = parameters.trainable
    # A trace that is large beside the off-diagonal entries, which are the noise.
    parameters = Parameters((), weights | {"W2": weights["W2"] + 2 * weights["W1"].T})
    x = particles(3)
    hutchinson = parvi.fields.Hutchinson(num_probes, draw)
    keys = jax.random.split(jax.random.key(1), 4000)
    values, estimates = jax.jit(jax.vmap(lambda key: hutchinson(key, functions, parameters, x)))(
        keys
    )
    expected_values, expected = functions.with_divergences(parameters, x)
    np.testing.assert_allclose(values[0], expected_values, rtol=ROUNDING, atol=ROUNDING)
    error = np.std(estimates, axis=0) / np.sqrt(len(keys))
    # Three scores beyond 4.5 standard errors: probability 2e-5, and the seed is fixed.
    assert np.max(np.abs(np.mean(estimates, axis=0) - expected) / error) < 4.5
    # The error is small enough that a wrong scale of the probes would be seen.
    assert np.max(error) < 0.05 * np.max(np.abs(expected))


def test_probes_divide_the_variance():
    functions, parameters = drawn("mlp_tanh")
    x = particles(3)
    keys = jax.random.split(jax.random.key(2), 4000)

    def variance(num_probes):
        hutchinson = parvi.fields.Hutchinson(num_probes)
        run = jax.jit(jax.vmap(lambda key: hutchinson(key, functions, parameters, x)[1]))
        return np.var(run(keys), axis=0)

    # A variance from 4000 draws is right to 1 / sqrt(2000) = 2 % or so; two of them, 4 times.
    np.testing.assert_allclose(variance(1) / variance(4), 4, rtol=0.15)


def test_one_rademacher_probe_is_exact_for_a_diagonal_jacobian():
    """xi_i^2 = 1: only off-diagonal entries are noise."""
    diagonal = jnp.array([1.0, -2.0, 0.5, 3.0])
    weights = jnp.concatenate([jnp.ones((DIM, 1)), jnp.diag(diagonal)], axis=1)
    x = particles()
    arguments = (parvi.functions.Linear(), Parameters((), weights), x)
    _, exact = parvi.fields.Hutchinson(1)(jax.random.key(0), *arguments)
    np.testing.assert_allclose(exact, np.full(NUM, 2.5), rtol=ROUNDING)
    _, noisy = parvi.fields.Hutchinson(1, jax.random.normal)(jax.random.key(0), *arguments)
    assert np.std(noisy) > 0.5
