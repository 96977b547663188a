"""Targets: own derivatives, mini-batches, known shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi


def test_own_score_and_hessian_vector_product_are_used():
    """Deliberately wrong derivatives must show: nothing may go back to JAX's own."""

    def log_density(p):
        return -0.5 * jnp.sum(p["a"] ** 2)

    target = parvi.Target(
        log_density,
        like={"a": np.zeros(3)},
        score=lambda p: {"a": -7 * p["a"]},
        hessian_vector_product=lambda p, v: {"a": -11 * v["a"]},
    )
    density = target.full()
    x, v = jnp.arange(1.0, 4.0), jnp.ones(3)
    np.testing.assert_allclose(density(x), -7.0)
    np.testing.assert_allclose(jax.grad(density)(x), -7 * x)
    np.testing.assert_allclose(jax.jvp(jax.grad(density), (x,), (v,))[1], -11 * v)
    without = parvi.Target(log_density, like={"a": np.zeros(3)}, score=lambda p: {"a": -7 * p["a"]})
    np.testing.assert_allclose(jax.jvp(jax.grad(without.full()), (x,), (v,))[1], -7 * v)
    with pytest.raises(ValueError, match="give score as well"):
        parvi.Target(log_density, hessian_vector_product=lambda p, v: v)


@pytest.mark.parametrize(
    "sampler", [parvi.pfg(num_features=0), pytest.param(parvi.pfg(), marks=pytest.mark.slow)]
)
def test_score_makes_an_untraceable_gradient_usable(sampler):
    """A while_loop cannot be differentiated in reverse; with its score it can be sampled."""

    def log_density(x):
        start = (0, -0.5 * jnp.sum((x - 2.0) ** 2))
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 1.0 * c[1]), start)[1]

    init = np.random.default_rng(0).normal(size=(64, 2))
    with pytest.raises(ValueError, match="score="):
        parvi.sample(log_density, init)
    target = parvi.Target(log_density, score=lambda x: 2.0 - x)
    result = parvi.sample(target, init, sampler=sampler)
    np.testing.assert_allclose(result.particles.mean(axis=0), 2.0, atol=1e-2)


def test_check_is_silent_on_a_good_target_and_speaks_on_a_bad_one():
    key = jax.random.key(0)
    particles = jnp.ones((4, 2))
    assert parvi.targets.gaussian(np.zeros(2), np.eye(2)).check(particles, key) is None
    bad = parvi.Target(lambda x: x, like=np.zeros(2))
    with pytest.raises(ValueError, match="one number for one particle"):
        bad.check(particles, key)
    with pytest.raises(ValueError, match="give like= or init="):
        parvi.Target(lambda x: jnp.sum(x)).check(particles, key)
    with pytest.raises(ValueError, match="function of one particle"):
        parvi.Target(3.0)


def test_gaussian_is_normalised():
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    with jax.enable_x64(True):
        value = parvi.targets.gaussian(np.ones(2), covariance).full()(jnp.ones(2))
    np.testing.assert_allclose(value, -np.log(2 * np.pi) - 0.5 * np.log(1.75), rtol=1e-12)


def minibatch(batch_size, data):
    return parvi.MiniBatch(
        lambda x: -0.5 * jnp.sum(x**2),
        lambda x, rows: -0.5 * jnp.sum((rows["y"][:, None] - x) ** 2, axis=1),
        data,
        batch_size,
        like=np.zeros(2),
    )


def test_minibatch_is_unbiased_and_fresh():
    data = {"y": np.arange(10.0)}
    target = minibatch(4, data)
    x = np.array([0.3, -1.0], np.float32)
    keys = jax.random.split(jax.random.key(0), 4000)

    @jax.jit
    def found():
        each = jax.vmap(lambda k: jax.value_and_grad(target.at(k))(x))(keys)
        return each, jax.value_and_grad(target.full())(x), target.at(keys[0])(x)

    found = jax.tree.map(np.asarray, found())
    (values, gradients), (full, gradient), first = found
    # Five standard errors of the mean: a false failure once in a million.
    assert abs(values.mean() - full) < 5 * values.std() / 4000**0.5
    assert (abs(gradients.mean(axis=0) - gradient) < 5 * gradients.std(axis=0) / 4000**0.5).all()
    assert values.std() > 1
    np.testing.assert_allclose(first, values[0])


def test_whole_batch_is_the_full_log_density():
    data = {"y": np.arange(10.0)}
    target = minibatch(10, data)
    x = jnp.array([0.3, -1.0])
    assert target.at(jax.random.key(0))(x) == target.full()(x)
    expected = -0.5 * np.sum(np.asarray(x) ** 2) - 0.5 * sum(
        np.sum((y - np.asarray(x)) ** 2) for y in data["y"]
    )
    np.testing.assert_allclose(target.full()(x), expected, rtol=1e-6)


@pytest.mark.parametrize("batch_size", [0, 11])
def test_minibatch_settings(batch_size):
    with pytest.raises(ValueError, match="between 1 and the number of rows"):
        minibatch(batch_size, {"y": np.arange(10.0)})
    with pytest.raises(ValueError, match="common leading axis"):
        minibatch(1, {"y": np.arange(10.0), "z": np.arange(9.0)})
