"""Very many particles, streamed: the same method in sums over blocks. Here with small numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.fields.frame import DenseFrame
from parvi.fields.pfg.functions import RandomFeatures
from parvi.fields.pfg.metric import DenseMetric
from parvi.samplers import streams
from parvi.samplers.rounds import Round
from parvi.targets.zoo import rotated_gaussian, student_t

DIM = 4


def cloud(num, seed=0):
    mixing = np.random.default_rng(7).normal(size=(DIM, DIM))
    draws = np.random.default_rng(seed).normal(size=(num, DIM))
    return jnp.asarray(3 + draws @ mixing.T, jnp.float32)


def log_density(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4)


def a_round(x, num_features=5):
    frame = DenseFrame.of(x)
    functions = RandomFeatures(num_features)
    features = functions.init(jax.random.key(1), frame.enter(x)).frozen
    return Round(frame, DenseMetric(jnp.ones(DIM), jnp.eye(DIM)), features)


@pytest.fixture
def small(monkeypatch):
    """Streamed from 200 particles on, in blocks of about 60."""
    monkeypatch.setattr(streams, "MANY", 200)
    monkeypatch.setattr(streams, "_BLOCK", 60)
    jax.clear_caches()
    yield
    jax.clear_caches()


# A number with small divisors, and a prime: its last block begins early.
@pytest.mark.parametrize("num", [240, 241])
@pytest.mark.parametrize("moves", [False, True])
def test_sums_over_blocks_are_means(small, num, moves):
    x = cloud(num)
    current = a_round(x)
    wide = 1 + DIM + 5
    shift = 0.1 * jax.random.normal(jax.random.key(2), (DIM, wide)) if moves else None
    limit = jnp.asarray(3.0)
    moved, sums = streams._passed(x, shift, current, log_density, limit)

    functions, frame = RandomFeatures(5), current.frame
    z = frame.enter(x)
    if moves:
        z = z + functions.features_and_slopes(current.features, z)[0] @ shift.T
    expected = frame.leave(z)
    np.testing.assert_allclose(moved, expected if moves else x, rtol=1e-5, atol=1e-5)
    psi, slopes = functions.features_and_slopes(current.features, z)
    s = frame.pull(jax.vmap(jax.grad(log_density))(expected))
    lengths = jnp.linalg.norm(s, axis=1, keepdims=True)
    assert (lengths > limit).any()
    s = s * jnp.minimum(1.0, limit / lengths)
    close = {"rtol": 1e-3, "atol": 1e-4}
    np.testing.assert_allclose(sums.gram, psi.T @ psi / num, **close)
    np.testing.assert_allclose(sums.target, s.T @ psi / num, **close)
    np.testing.assert_allclose(sums.fisher, s.T @ s / num, **close)
    np.testing.assert_allclose(sums.slopes, slopes.mean(axis=0), **close)
    assert sums.finite


def test_a_new_frame_needs_no_pass(small):
    """Affine sums carried over to the particles' own frame are those that a pass finds there."""
    x = cloud(240)
    rough = a_round(x)._replace(frame=DenseFrame.of(x[:30] * 2))
    none = jnp.asarray(jnp.inf)
    _, sums = streams._passed(x, None, rough, log_density, none)
    own, known = streams._reframed(rough, sums)
    z = own.frame.enter(x)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(z.T @ z / len(z), np.eye(DIM), atol=2e-3)
    _, again = streams._passed(x, None, own, log_density, none)
    affine = slice(0, DIM + 1)
    np.testing.assert_allclose(
        known.target[:, affine], again.target[:, affine], rtol=1e-2, atol=1e-2
    )
    np.testing.assert_allclose(known.fisher, again.fisher, rtol=1e-2, atol=1e-2)


def test_not_finite_is_seen(small):
    x = cloud(240)
    bad = lambda y: log_density(y) + jnp.where(y[0] > jnp.sort(x[:, 0])[-2], jnp.nan, 0.0)  # noqa: E731
    _, sums = streams._passed(x, None, a_round(x), bad, jnp.asarray(jnp.inf))
    assert not sums.finite


@pytest.mark.parametrize("exact", [rotated_gaussian(DIM, 100.0), student_t(DIM)])
def test_better_than_as_many_draws(small, exact):
    num = 600
    start = np.random.default_rng(0).normal(size=(num, DIM)).astype(np.float32) + 3
    result = parvi.sample(exact.target, start)
    assert result.status == parvi.Status.CONVERGED
    truth = exact.draw(np.random.default_rng(1), 10_000)
    ours = parvi.metrics.energy_distance(result.particles, truth)
    rng = np.random.default_rng(2)
    draws = [parvi.metrics.energy_distance(exact.draw(rng, num), truth) for _ in range(4)]
    assert ours < 0.7 * np.mean(draws)


def test_the_carry_does_not_grow(small):
    """Beside the particles nothing in the state has their number."""
    state = jax.eval_shape(
        lambda x: parvi.pfg().init(jax.random.key(0), x, log_density), cloud(1000)
    )
    sizes = [np.prod(leaf.shape) for leaf in jax.tree_util.tree_leaves(state.memory)]
    assert max(sizes) <= (1 + DIM + 125) ** 2
    assert state.particles.shape == (1000, DIM)
