"""SGLD: the stationary moments of its recursion, mini-batch noise included.

Each statistical bound is 4.5 standard errors of independent replicates, a false-failure rate of
7e-6 for each number that is checked.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from parvi.cloud import Cloud
from parvi.models.neural_network import network_regression, regression_scores
from parvi.run.step import step
from parvi.samplers.sgld import SGLD, PolynomialDecay

NUM_ROWS, BATCH_SIZE, NUM_REPLICATES = 200, 10, 4000


def gaussian_mean_model():
    """y_i ~ N(x, 1), x ~ N(0, 1): the score is -(N + 1) x + (N / B) sum of the batch."""
    rows = np.random.default_rng(0).normal(1.0, 1.0, NUM_ROWS).astype(np.float32)
    target = parvi.MiniBatch(
        lambda x: -0.5 * jnp.sum(x**2),
        lambda x, y: -0.5 * (y - x[0]) ** 2,
        rows,
        BATCH_SIZE,
        like=jnp.zeros(1),
    )
    return rows, target


def test_stationary_moments_with_mini_batch_noise():
    rows, target = gaussian_mean_model()
    precision, eta = NUM_ROWS + 1.0, 2e-3
    sampler = SGLD(PolynomialDecay(eta, 1.0, 0.0))

    @jax.jit
    @jax.vmap
    def replicate(key):
        """Two chains on the same batches."""
        cloud = Cloud.at(target.at(key), jnp.zeros((2, 1)))

        def body(carry, number):
            place, memory = carry
            key_sampler, key_target = jax.random.split(jax.random.fold_in(key, number))
            cloud = Cloud(*place, target.at(key_target))
            after = step(key_sampler, cloud, memory, sampler)
            return (after.cloud.place, after.memory), None

        # (1 - eta precision)^40 = 0.6^40 < 1e-8 of the start is left.
        first = cloud.place, sampler.init(key, cloud)
        return jax.lax.scan(body, first, jnp.arange(40))[0][0].particles[:, 0]

    pairs = np.asarray(replicate(jax.random.split(jax.random.key(1), NUM_REPLICATES)), np.float64)

    # x' = (1 - eta P) x + eta (P m + g) + sqrt(2 eta) xi, and g, common to both chains, has the
    # variance of (N / B) times a sum of B rows drawn with replacement: N^2 var(y) / B.
    memory = 1 - (1 - eta * precision) ** 2
    injected = 2 * eta / memory
    batches = eta**2 * NUM_ROWS**2 * rows.var() / BATCH_SIZE / memory
    # Mini-batch noise must be a part that the test can see.
    assert batches > injected

    bound = 4.5 * np.sqrt(2 / NUM_REPLICATES)
    difference = (pairs[:, 0] - pairs[:, 1]) / np.sqrt(2)
    assert np.mean(difference**2) == pytest.approx(injected, rel=bound)
    centre = rows.sum() / precision
    total = injected + batches
    assert np.mean((pairs[:, 0] - centre) ** 2) == pytest.approx(total, rel=bound)
    assert abs(pairs[:, 0].mean() - centre) < 4.5 * np.sqrt(total / NUM_REPLICATES)


@pytest.mark.slow
def test_the_bias_fades_with_the_steps():
    # The same model through ``sample``: after 1000 steps of 0.02 (10 + t)^-0.75 the step is 1e-4,
    # eta P = 0.02, and a Gaussian's variance 1 / (P (1 - eta P / 2)) is 1 % too large.
    rows, target = gaussian_mean_model()
    num = 2000
    start = np.random.default_rng(1).normal(size=(num, 1)).astype(np.float32)
    sampler = parvi.sgld(0.02, offset=10.0, power=0.75)
    result = parvi.sample(target, start, sampler=sampler, num_steps=1000)
    variance = result.particles.var() * (NUM_ROWS + 1)
    assert variance == pytest.approx(1.01, rel=4.5 * np.sqrt(2 / num) + 0.01)
    # All particles see the same batches, so that their mean wanders: by eta N^2 var / (2 B P),
    # 10 times the posterior's variance times eta P / 2, a third of its standard deviation.
    wander = np.sqrt(1e-4 * NUM_ROWS**2 * rows.var() / (2 * BATCH_SIZE * (NUM_ROWS + 1)))
    assert abs(result.particles.mean() - rows.sum() / (NUM_ROWS + 1)) < 4.5 * wander
    steps = np.arange(1000)
    np.testing.assert_allclose(result.history["step_size"], 0.02 * (10 + steps) ** -0.75, rtol=1e-5)
    assert np.isnan(result.history["kl_rate"]).all()


def test_any_schedule_and_float64():
    result = parvi.sample(
        lambda x: -0.5 * jnp.sum(x**2),
        np.random.default_rng(0).normal(size=(20, 2)),
        sampler=parvi.sgld(optax.linear_schedule(0.2, 0.1, 10)),
        num_steps=12,
    )
    assert result.particles.dtype == np.float64
    expected = np.concatenate([0.2 - 0.01 * np.arange(11), [0.1]])
    # optax's schedules are computed in the default precision of the run.
    np.testing.assert_allclose(result.history["step_size"], expected, rtol=1e-6)


def test_too_long_a_step_is_reported():
    result = parvi.sample(
        lambda x: -0.25 * jnp.sum(x**4),
        5 + np.random.default_rng(0).normal(size=(20, 1)),
        sampler=parvi.sgld(1.0, power=0.0),
        throw=False,
    )
    assert result.status in (parvi.Status.NONFINITE, parvi.Status.DIVERGED)
    assert np.isfinite(result.particles).all()


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="scale > 0"):
        parvi.sgld(-1.0)


MEAN, SDS = np.array([1.0, -1.0]), np.array([1.0, 2.0])


@pytest.mark.first_quick
@pytest.mark.parametrize(
    "scale",
    [pytest.param(1.0, marks=pytest.mark.slow), 1e-3, pytest.param(1e3, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("ready", [parvi.sgld, parvi.psgld])
def test_defaults_are_right_on_any_scale(ready, scale):
    """Nothing is chosen, and the start is wider, narrower or elsewhere."""
    num = 512
    start = np.random.default_rng(0).normal(size=(num, 2)) * scale

    def log_density(x):
        return -0.5 * jnp.sum(((x / scale - MEAN) / SDS) ** 2)

    result = parvi.sample(log_density, start, sampler=ready(), key=1)
    off = (result.particles.mean(axis=0) / scale - MEAN) / SDS
    # 4.5 standard errors of 512 independent draws are 0.2, and 0.14 of the sds.
    assert np.abs(off).max() < 0.2
    np.testing.assert_allclose(result.particles.std(axis=0) / scale, SDS, rtol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("ready", [parvi.sgld, parvi.psgld])
def test_the_first_step_scales_with_the_rows(ready):
    """A hundred times the rows: steps a hundred (SGLD) or ten (pSGLD) times shorter at the end."""

    def last_step(num_rows):
        rows = np.random.default_rng(0).normal(3.0, 1.0, num_rows).astype(np.float32)
        target = parvi.MiniBatch(
            lambda x: -0.5 * jnp.sum(x**2),
            lambda x, y: -0.5 * (y - x[0]) ** 2,
            rows,
            num_rows // 10,
            like=jnp.zeros(1),
        )
        start = np.random.default_rng(1).normal(size=(200, 1)).astype(np.float32)
        result = parvi.sample(target, start, sampler=ready(), num_steps=1000)
        sd = (num_rows + 1) ** -0.5
        # The noise of batches of a tenth moves all particles by a share of a standard deviation.
        assert abs(result.particles.mean() - rows.sum() / (num_rows + 1)) < sd
        assert 0.7 < result.particles.std() / sd < 1.5
        return result.history["step_size"][-1]

    ratio = last_step(100) / last_step(10_000)
    power = 1.0 if ready is parvi.sgld else 0.5
    assert ratio == pytest.approx(100**power, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    "ready",
    [parvi.sgld, parvi.psgld, pytest.param(parvi.pfg_algorithm_1, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_network_from_the_prior_stays_finite(ready, seed):
    """Scores of 1e5 and curvatures that differ by orders of magnitude between particles."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(300, 4)).astype(np.float32)
    targets = np.sin(features[:, 0]).astype(np.float32)
    target = network_regression(features, targets, hidden=5, batch_size=50)
    start = rng.normal(size=(50, target.layout.dim)).astype(np.float32)
    particles = jax.vmap(target.layout.constrain)(start)
    before = np.mean(regression_scores(particles, features, targets)[0])
    result = parvi.sample(target, particles, sampler=ready(), num_steps=100)
    assert result.status == parvi.Status.MAX_STEPS
    # The spread of so wide a prior's predictions is most of the error at first.
    after, _ = regression_scores(result.particles, features, targets)
    assert after < 0.8 * before
