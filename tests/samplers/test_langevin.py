"""Langevin chains: the bias that the closed form predicts, and none with the adjustment.

Each statistical bound is 4.5 standard errors of independent chains, a false-failure rate of 7e-6
for each number that is checked.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.cloud import Cloud
from parvi.run.step import step
from parvi.samplers.langevin import AcceptanceStep, CurvatureStep, Langevin

NUM = 4000
# Standard errors of a mean (in standard deviations) and of a Gaussian's variance (relative).
MEAN_ERROR = 4.5 / np.sqrt(NUM)
VARIANCE_ERROR = 4.5 * np.sqrt(2 / NUM)


def starts(num, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(num, dim)).astype(np.float32)


def test_unadjusted_variance_is_the_closed_form():
    # x' = (1 - eta l) x + sqrt(2 eta) xi has variance 2 eta / (1 - (1 - eta l)^2)
    # = 1 / (l (1 - eta l / 2)): here 1.25 and 2 times the target's.
    precision, eta = np.array([1.0, 2.5]), 0.4
    # The slower coordinate forgets its start by 0.6^60 < 1e-13.
    result = parvi.sample(
        lambda x: -0.5 * jnp.sum(precision * (x - 3) ** 2),
        starts(NUM, 2),
        sampler=parvi.langevin(eta),
        num_steps=60,
    )
    variance = 1 / (precision * (1 - eta * precision / 2))
    np.testing.assert_allclose(result.particles.var(axis=0), variance, rtol=VARIANCE_ERROR)
    errors = (result.particles.mean(axis=0) - 3) / np.sqrt(variance)
    assert np.abs(errors).max() < MEAN_ERROR
    assert np.all(result.history["step_size"] == np.float32(eta))
    assert np.isnan(result.history["kl_rate"]).all()
    # E[(x - mean) . score] is minus precision times variance.
    assert result.history["stein_ratio"][-1] == pytest.approx(
        np.mean(precision * variance), rel=VARIANCE_ERROR
    )


def test_adjusted_has_no_bias_where_unadjusted_doubles_the_variance():
    result = parvi.sample(
        lambda x: -0.5 * jnp.sum((x - 3) ** 2),
        3 + 2 * starts(NUM, 2),
        sampler=parvi.mala(1.0),
        num_steps=100,
    )
    np.testing.assert_allclose(result.particles.var(axis=0), 1.0, rtol=VARIANCE_ERROR)
    assert np.abs(result.particles.mean(axis=0) - 3).max() < MEAN_ERROR
    # A step of 1 in two dimensions is neither always taken nor never.
    assert 0.4 < result.history["acceptance"][-1] < 0.95


@pytest.mark.slow
def test_adjusted_is_exact_off_the_gaussian():
    # e^x is exponential: E[e^x] = 1 with variance 1, E[x] = -0.5772 with variance pi^2 / 6.
    result = parvi.sample(
        lambda x: jnp.sum(x - jnp.exp(x)),
        starts(NUM, 1),
        sampler=parvi.mala(0.5),
        num_steps=150,
    )
    x = result.particles.astype(np.float64)
    assert abs(np.exp(x).mean() - 1) < MEAN_ERROR
    assert abs(x.mean() + np.euler_gamma) < MEAN_ERROR * np.pi / np.sqrt(6)


def test_adjusted_rejects_what_has_no_density():
    # The half-normal: -inf outside. Mean sqrt(2 / pi), variance 1 - 2 / pi.
    result = parvi.sample(
        lambda x: jnp.sum(jnp.where(x > 0, -0.5 * x**2, -jnp.inf)),
        np.abs(starts(NUM, 1)) + 1,
        sampler=parvi.mala(0.3),
        num_steps=150,
    )
    assert result.particles.min() > 0
    error = abs(result.particles.mean() - np.sqrt(2 / np.pi)) / np.sqrt(1 - 2 / np.pi)
    assert error < MEAN_ERROR


def test_unadjusted_reports_what_is_not_finite_and_keeps_the_last_particles():
    # A score of x drives everything out; beyond 10 there is nothing.
    result = parvi.sample(
        lambda x: jnp.sum(jnp.where(jnp.abs(x) < 10, 0.5 * x**2, jnp.nan)),
        starts(50, 1),
        sampler=parvi.langevin(0.5),
        throw=False,
    )
    assert result.status is parvi.Status.NONFINITE
    assert np.abs(result.particles).max() < 10
    assert result.num_steps < 20


def test_default_step_is_the_share_of_the_curvature_and_then_frozen():
    precision = np.logspace(0, 4, 5)
    # Where the Hessian is diagonal, sign vectors measure its norm without error; started far out
    # and wide, in standard deviations of the stiffest coordinate.
    result = parvi.sample(
        lambda x: -0.5 * jnp.sum(precision * x**2),
        3 * starts(1000, 5) + 2,
        sampler=parvi.langevin(),
        num_steps=300,
    )
    expected = 0.2 / np.linalg.norm(precision)
    # float32 sums of five squares and an average over 200 steps.
    np.testing.assert_allclose(result.history["step_size"], expected, rtol=1e-4)
    assert len(set(result.history["step_size"][200:])) == 1
    # The stiffest coordinate is there, with the bias of its closed form: 10 %.
    stiffest = result.particles[:, -1].var() * precision[-1]
    assert stiffest == pytest.approx(1 / (1 - 0.1), rel=4.5 * np.sqrt(2 / 1000))


def test_default_step_survives_a_density_without_curvature():
    # Laplace: the Hessian is zero wherever it is defined, and the regressed slope is E|x| / E[x^2]
    # = 1/2 at rest, so that eta = 0.4. Variance 2 and kurtosis 6: the variance of n draws has a
    # relative standard error of sqrt(5 / n). Steps of sqrt(2 eta) = 0.9 widen it somewhat.
    num = 1000
    result = parvi.sample(
        lambda x: -jnp.sum(jnp.abs(x)), starts(num, 1), sampler=parvi.langevin(), num_steps=1000
    )
    assert result.history["step_size"][-1] == pytest.approx(0.4, rel=0.2)
    error = 4.5 * np.sqrt(5 / num)
    assert 2 * (1 - error) < result.particles.var() < 2 * (1.2 + error)


@pytest.mark.slow
def test_adjusted_default_finds_the_target_acceptance_on_an_ill_conditioned_gaussian():
    precision = np.logspace(0, 2, 5)
    result = parvi.sample(
        lambda x: -0.5 * jnp.sum(precision * x**2),
        3 * starts(1000, 5) + 2,
        sampler=parvi.mala(),
        num_steps=1500,
    )
    steps = result.history["step_size"]
    assert len(set(steps[500:])) == 1
    # A mean over 1000 particles and 1000 steps; what remains is how well 500 steps learnt.
    assert np.mean(result.history["acceptance"][500:]) == pytest.approx(0.574, abs=0.03)
    # The slowest coordinate makes steps of 0.02 of its variance: 1500 of them forget the start.
    ratio = result.particles.var(axis=0) * precision
    np.testing.assert_allclose(ratio, 1.0, atol=4.5 * np.sqrt(2 / 1000))


@pytest.mark.slow
@pytest.mark.parametrize("ready", [parvi.langevin, parvi.mala])
@pytest.mark.parametrize("num", [1, 3])
def test_one_particle_and_duplicates_stay_finite(ready, num):
    sampler = ready()
    cloud = Cloud.at(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros((num, 2)))
    memory = sampler.init(jax.random.key(0), cloud)
    move = eqx.filter_jit(step)
    first = memory
    for number in range(3):
        cloud, memory, info, _ = move(jax.random.key(number), cloud, memory, sampler)
        assert jax.tree_util.tree_map(lambda a: (a.shape, a.dtype), memory) == (
            jax.tree_util.tree_map(lambda a: (a.shape, a.dtype), first)
        )
        assert np.isfinite(cloud.particles).all()
        assert np.isfinite(info.step_size)
    assert not np.allclose(cloud.particles, 0)


def test_the_gradients_of_a_measured_step_are_counted():
    sampler = Langevin(CurvatureStep(burn_in=1))
    cloud = Cloud.at(lambda x: -0.5 * jnp.sum(x**2), jnp.asarray(starts(5, 2)))
    memory = eqx.filter_jit(sampler.init)(jax.random.key(0), cloud)
    compiled = eqx.filter_jit(step)
    # The run's own five; at first one Hessian-vector product for each, of two gradients, too.
    for number, expected in enumerate([15, 5]):
        cloud, memory, info, _ = compiled(jax.random.key(number), cloud, memory, sampler)
        assert info.gradients == expected


def test_ready_functions_choose_the_step_and_refuse_nonsense():
    assert isinstance(parvi.langevin().step_size, CurvatureStep)
    assert isinstance(parvi.mala().step_size, AcceptanceStep)
    for ready in (parvi.langevin, parvi.mala):
        with pytest.raises(ValueError, match="step_size must be None or a positive number, got -1"):
            ready(-1.0)
