"""Clouds: means and values in blocks are those of all particles at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
import parvi.cloud
import parvi.run.run
from parvi.cloud import Cloud, View
from parvi.geometry.frame import DenseFrame, InFrame
from parvi.kept import forget
from parvi.samplers.bend import Bend
from parvi.targets.zoo import banana, rotated_gaussian, student_t

DIM = 4


def log_density(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4)


def particles(num, seed=0):
    mixing = np.random.default_rng(7).normal(size=(DIM, DIM))
    draws = np.random.default_rng(seed).normal(size=(num, DIM))
    return jnp.asarray(3 + draws @ mixing.T)


@pytest.fixture
def small(monkeypatch):
    """Blocks of about 60 particles; from 200 on they are many, and scores need not be held."""
    monkeypatch.setattr(parvi.cloud, "BLOCK", 60)
    monkeypatch.setattr(parvi.run.run, "_LARGE", 200 * DIM * 4)
    forget()
    yield
    forget()


def second_moments(block, weights):
    return block.scores.T @ (weights[:, None] * block.particles), weights @ block.log_densities


# A number with small divisors, and a prime: its last block begins early.
@pytest.mark.first_quick
@pytest.mark.parametrize("num", [240, 241])
@pytest.mark.parametrize("held", [False, True])
def test_means_over_blocks_are_means(small, num, held):
    with jax.enable_x64(True):
        x = particles(num)
        whole = Cloud.at(log_density, x)
        cloud = whole if held else Cloud.unread(log_density, x)
        found = cloud.mean(second_moments)
        values = cloud.values(lambda block: block.particles**2)
        some = cloud.some(50)
        seen = View(cloud, InFrame(DenseFrame.of(x)))
        square = seen.mean(lambda block, w: block.particles.T @ (w[:, None] * block.particles))
    scores, x = np.asarray(whole.scores), np.asarray(x)
    np.testing.assert_allclose(found[0], scores.T @ x / num, rtol=1e-10)
    np.testing.assert_allclose(found[1], np.asarray(whole.log_densities).mean(), rtol=1e-10)
    np.testing.assert_allclose(values, x**2, rtol=1e-12)
    np.testing.assert_allclose(square, np.eye(DIM), atol=1e-9)
    assert cloud.is_held == held
    assert some.is_held
    assert some.shape == (50, DIM)


def test_not_finite_is_seen(small):
    x = particles(240)
    second = jnp.sort(x[:, 0])[-2]
    bad = lambda y: log_density(y) + jnp.where(y[0] > second, -jnp.inf, 0.0)  # noqa: E731
    for cloud in (Cloud.unread(bad, x), Cloud.at(bad, x)):
        assert not cloud.finite
    assert np.isnan(Cloud.unread(bad, x).mean(second_moments)[0]).any()
    assert Cloud.unread(log_density, x).finite


@pytest.mark.slow
@pytest.mark.parametrize("exact", [rotated_gaussian(DIM, 100.0), student_t(DIM)])
def test_many_particles_are_better_than_as_many_draws(small, exact):
    num = 600
    start = np.random.default_rng(0).normal(size=(num, DIM)).astype(np.float32) + 3
    result = parvi.sample(exact.target, start)
    assert result.status == parvi.Status.CONVERGED
    truth = exact.draw(np.random.default_rng(1), 10_000)
    ours = parvi.metrics.energy_distance(result.particles, truth)
    rng = np.random.default_rng(2)
    draws = [parvi.metrics.energy_distance(exact.draw(rng, num), truth) for _ in range(4)]
    assert ours < 0.7 * np.mean(draws)


@pytest.mark.parametrize(
    "sampler", [parvi.pfg(num_features=0), pytest.param(parvi.pfg(), marks=pytest.mark.slow)]
)
def test_many_particles_are_the_same_program_as_few(sampler, monkeypatch):
    """Whether scores are held changes rounding, and nothing else."""
    start = np.random.default_rng(0).normal(size=(400, 2))
    one = parvi.sample(rotated_gaussian(2, 9.0).target, start, sampler=sampler)
    monkeypatch.setattr(parvi.run.run, "_LARGE", 1)
    other = parvi.sample(rotated_gaussian(2, 9.0).target, start, sampler=sampler)
    assert one.history["stage"].tolist() == other.history["stage"].tolist()
    np.testing.assert_allclose(one.particles, other.particles, rtol=1e-6, atol=1e-6)
    # Scores that are not held are found once more for every fit.
    assert other.num_gradients > one.num_gradients


@pytest.mark.slow
def test_many_particles_can_fly(small):
    start = np.random.default_rng(0).normal(size=(420, 2)).astype(np.float32)
    result = parvi.sample(banana(turned=0.4).target, start, num_steps=600)
    assert not result.status.failed
    assert "fly" in result.history["stage"]


def test_the_carry_does_not_grow():
    """Beside the particles nothing that bending remembers has their number."""
    rows = jax.ShapeDtypeStruct((100_000, DIM), np.float32)
    memory = jax.eval_shape(
        lambda x: Bend().init(jax.random.key(0), Cloud.unread(log_density, x)), rows
    )
    sizes = [np.prod(leaf.shape) for leaf in jax.tree_util.tree_leaves(memory)]
    assert max(sizes) <= (1 + DIM + 128) ** 2
