"""The default with mini-batches: all rows, subsets that all rows correct, or a large network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.models import neural_network
from parvi.models.neural_network import network_classification
from parvi.run import rounds, rows
from parvi.run.rows import affordable_rows, with_rows
from parvi.run.run import Run

NUM_ROWS, DIM, NUM = 4000, 3, 64
BETA = np.array([1.0, -0.5, 0.25])


def log_prior(weights):
    return -0.5 * jnp.sum(weights**2)


def log_likelihood(weights, rows):
    return jax.nn.log_sigmoid(rows @ weights)


def target(batch_size=100, num_rows=NUM_ROWS):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(num_rows, DIM))
    labels = features @ BETA + rng.logistic(size=num_rows) > 0
    signed = features * np.where(labels, 1.0, -1.0)[:, None]
    return parvi.MiniBatch(log_prior, log_likelihood, signed, batch_size, like=np.zeros(DIM))


def start(num=NUM):
    return np.random.default_rng(1).normal(size=(num, DIM))


@pytest.fixture
def dear(monkeypatch):
    """All rows are too dear, however few they are."""
    monkeypatch.setattr(rows, "_CPU_OPERATIONS", 0)
    monkeypatch.setattr(rows, "_FEW_BATCHES", 0)


@pytest.fixture(scope="module")
def all_rows():
    return parvi.sample(target(), start())


@pytest.mark.xdist_group("rows")
def test_all_rows_where_they_are_cheap(all_rows):
    assert all_rows.status == parvi.Status.CONVERGED
    assert set(all_rows.history["rows"]) == {NUM_ROWS}
    assert "verify" in all_rows.history["stage"]
    again = parvi.sample(all_rows.target, **all_rows.settings._asdict())
    np.testing.assert_array_equal(all_rows.particles, again.particles)


@pytest.mark.first_quick
@pytest.mark.parametrize("sampler", [parvi.sgld(), parvi.pfg(num_features=0)])
def test_samplers_without_comparisons_get_the_batches_that_they_ask_for(sampler):
    result = parvi.sample(target(), start(), sampler=sampler, num_steps=3)
    assert set(result.history["rows"]) == {100}


def test_the_decision_is_a_count():
    """200 000 rows of a regression are cheap for 512 particles, MNIST is dear for 100."""
    dtype = np.dtype(np.float32)
    assert with_rows(target(1000, 200_000), parvi.pfg(), (512, DIM), dtype).is_fixed
    images = np.broadcast_to(np.zeros(784, np.float32), (60_000, 784))
    mnist = network_classification(images, np.zeros(60_000, int))
    assert mnist.layout.dim == 101_770
    shape = (100, mnist.layout.dim)
    assert not with_rows(mnist, parvi.pfg(), shape, dtype).is_fixed
    # The matrix products take 101 632 multiplications a row forward, and as many for the score.
    each = rows._CPU_OPERATIONS / affordable_rows(mnist, shape, dtype) / 100
    assert 2 * 101_632 < each < 2.1 * 101_632
    # Of a batch of a quarter, all rows are little more.
    few = network_classification(images[:400], np.zeros(400, int), batch_size=100)
    assert with_rows(few, parvi.pfg(), (10**9, few.layout.dim), dtype).is_fixed


@pytest.mark.xdist_group("rows")
def test_subsets_where_all_rows_are_dear(dear, all_rows):
    result = parvi.sample(target(), start())
    assert result.status == parvi.Status.CONVERGED
    assert result.history["rows"].max() < NUM_ROWS / 4
    assert result.history["row_error"][-1] <= 0.05
    # A batch alone is wrong by about sqrt(4000 / 100) = 6 standard deviations.
    sds = all_rows.particles.std(axis=0)
    off = (result.particles.mean(axis=0) - all_rows.particles.mean(axis=0)) / sds
    # The error above is a bound; 0.02 more for what 64 particles are wrong by themselves.
    assert np.abs(off).max() < 0.07
    np.testing.assert_allclose(result.particles.std(axis=0), sds, rtol=0.05)
    # The check sees all rows.
    assert result.target.num_rows == NUM_ROWS
    assert not result.target.is_fixed


@pytest.mark.slow
def test_all_rows_are_the_same_whatever_the_batch(all_rows):
    asked = parvi.sample(target(NUM_ROWS), start())
    np.testing.assert_array_equal(all_rows.particles, asked.particles)


@pytest.mark.slow
def test_rounds_do_not_depend_on_chunks(dear):
    with jax.enable_x64(True):
        runs = [Run.begin(target(), start(), parvi.pfg()) for _ in range(2)]
        while not all(run.is_done for run in runs):
            runs[0].advance(100)
            runs[1].advance(7)
    assert runs[0].rounds.number >= 1
    np.testing.assert_array_equal(runs[0].particles, runs[1].particles)


@pytest.mark.slow
@pytest.mark.first_quick
@pytest.mark.parametrize("limit", ["_TOLERATED", "_WANTED"])
def test_noise_that_is_left_is_said(dear, monkeypatch, limit):
    """After the last round, or before one that would need too many rows."""
    monkeypatch.setattr(rounds, limit, 0.0)
    monkeypatch.setattr(rounds, "_MOST_ROUNDS", 1)
    with pytest.warns(parvi.NotAtRestWarning, match="larger batch_size"):
        result = parvi.sample(target(), start())
    assert result.status == parvi.Status.NOISY
    assert not result.status.failed
    assert result.history["row_error"][-1] > 0


@pytest.mark.slow
def test_a_large_network_descends_on_batches(dear):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 4)).astype(np.float32)
    labels = (features[:, 0] * features[:, 1] > 0).astype(int)
    model = network_classification(features, labels, 2, hidden=16, batch_size=50)
    first = neural_network.initial_networks(jax.random.key(0), 20, 4, 16, 2, noise=False)
    with pytest.warns(parvi.NotAtRestWarning, match="held out"):
        result = parvi.sample(model, first)
    assert result.status == parvi.Status.NOISY
    assert set(result.history["stage"]) == {"network"}
    assert result.num_steps == 500
    # No linear classifier does better than a coin on this.
    before, after = (
        neural_network.classification_scores(p, features, labels)[0]
        for p in (first, result.particles)
    )
    assert before < 0.7
    assert after > 0.9


def poisson(weights, rows):
    features, counts = rows
    rates = features @ weights
    return counts * rates - jnp.exp(rates)


def many_rows(kind, num_rows):
    """A regression with a design of ones and normal columns, of different scales for Poisson."""
    rng = np.random.default_rng(3)
    dim = {"logistic": 20, "poisson": 8}[kind]
    features = rng.normal(size=(num_rows, dim))
    features[:, 0] = 1.0
    beta = rng.normal(size=dim) / np.sqrt(dim)
    if kind == "logistic":
        labels = features @ beta + rng.logistic(size=num_rows) > 0
        return log_likelihood, features * np.where(labels, 1.0, -1.0)[:, None], dim
    scales = np.logspace(-1, 1, dim)
    counts = rng.poisson(np.exp(features @ beta)).astype(float)
    return poisson, (features * scales, counts), dim


def laplace(target, dim):
    """The mode and the inverse Hessian there; with so many rows the posterior is Gaussian."""
    with jax.enable_x64(True):
        density = target.whole().full()
        place = jnp.zeros(dim)
        for _ in range(30):
            curvature = -jax.hessian(density)(place)
            place = place + jnp.linalg.solve(curvature, jax.grad(density)(place))
        return np.asarray(place), np.sqrt(np.diag(np.linalg.inv(curvature)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "poisson"])
@pytest.mark.parametrize("limit", [None, 0], ids=["all rows", "subsets"])
def test_many_rows_are_right(kind, limit, monkeypatch):
    if limit is not None:
        monkeypatch.setattr(rows, "_CPU_OPERATIONS", limit)
    likelihood, data, dim = many_rows(kind, 200_000)
    model = parvi.MiniBatch(log_prior, likelihood, data, 1000, like=np.zeros(dim))
    mean, sds = laplace(model, dim)
    first = 0.3 * np.random.default_rng(1).normal(size=(512, dim))
    result = parvi.sample(model, first)
    assert result.status == parvi.Status.CONVERGED
    assert result.history["rows"].max() == (200_000 if limit is None else 1000)
    # The skewness of a posterior of 200 000 rows moves its mean by about 0.01 from the mode.
    assert np.abs((result.particles.mean(axis=0) - mean) / sds).max() < 0.05
    np.testing.assert_allclose(result.particles.std(axis=0), sds, rtol=0.05)
