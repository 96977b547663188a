"""How far the particles go, and what is kept."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from parvi.cloud import Cloud
from parvi.interface import Info
from parvi.run.step import step
from parvi.steppers import AbstractStepper, Proposal, Verdict

VARIANCES = np.array([1.0, 4.0, 0.25])


def log_density(x):
    return -0.5 * jnp.sum(x**2 / jnp.asarray(VARIANCES, x.dtype))


def begin(num=30, shift=0.0):
    return np.random.default_rng(0).normal(size=(num, 3)) + shift


def linear(preconditioner=None):
    return parvi.fields.PFG(parvi.functions.Linear(), preconditioner, parvi.fields.Ridge())


def fitted(particles, field):
    return _fitted(jnp.asarray(particles), field)


@eqx.filter_jit
def _fitted(particles, field):
    cloud = Cloud.at(log_density, particles)
    fit, _ = field.fit(jax.random.key(0), cloud, field.init(jax.random.key(0), particles))
    return cloud, fit


def proposed(stepper, particles, field, step=0):
    with jax.enable_x64(True):
        cloud, fit = fitted(particles, field)
        memory = stepper.init(cloud.particles)
        proposal, _ = stepper.propose(jnp.asarray(step), cloud, fit, memory)
        return jax.tree.map(np.asarray, (proposal, fit.values))


def test_constant_and_decaying():
    proposal, values = proposed(parvi.steppers.Constant(0.3), begin(), linear())
    np.testing.assert_allclose(proposal.displacement, 0.3 * values, rtol=1e-14)
    decaying = parvi.steppers.Decaying(0.3, horizon=10, power=0.5)
    for number in (0, 30):
        proposal, values = proposed(decaying, begin(), linear(), number)
        expected = 0.3 / np.sqrt(1 + number / 10)
        np.testing.assert_allclose(proposal.displacement, expected * values, rtol=1e-14)
        np.testing.assert_allclose(proposal.step_size, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("preconditioner", "largest"),
    # |H^-1 Hess| for Hess = diag(1, 1/4, 4): 4 with H = I, and 1 with H = Hess.
    [(parvi.preconditioners.Identity(), 4.0), (parvi.preconditioners.Hessian(), 1.0)],
)
def test_curvature_is_seen_through_the_metric(preconditioner, largest):
    stepper = parvi.steppers.Curvature(factor=0.5, max_step=10.0, warm_up=60)
    for wrap in (lambda field: field, parvi.fields.Whitened):
        proposal, values = proposed(stepper, begin(), wrap(linear(preconditioner)))
        if wrap is parvi.fields.Whitened and isinstance(
            preconditioner, parvi.preconditioners.Identity
        ):
            continue  # the identity of the frame is another metric
        # 60 power iterations at an eigenvalue ratio of 4: converged to rounding.
        np.testing.assert_allclose(proposal.step_size, 0.5 / largest, rtol=1e-10)
        np.testing.assert_allclose(proposal.displacement, proposal.step_size * values, rtol=1e-12)
    short, _ = proposed(parvi.steppers.Curvature(max_step=0.01), begin(), linear(preconditioner))
    np.testing.assert_allclose(short.step_size, 0.01)


def test_optax_descends_against_the_velocity():
    proposal, values = proposed(parvi.steppers.Optax(optax.sgd(0.2)), begin(), linear())
    np.testing.assert_allclose(proposal.displacement, 0.2 * values, rtol=1e-14)
    np.testing.assert_allclose(proposal.step_size, 0.2, rtol=1e-12)
    adam, values = proposed(parvi.steppers.Optax(optax.adam(0.2)), begin(), linear())
    # Adam's first step is the sign of the gradient.
    np.testing.assert_allclose(adam.displacement, 0.2 * np.sign(values), rtol=1e-5)


def test_trust_region_shortens_all_by_one_factor():
    particles = begin(shift=100.0)
    proposal, values = proposed(
        parvi.steppers.TrustRegion(parvi.steppers.Constant(1.0), 0.5), particles, linear()
    )
    lengths = np.sqrt(np.mean(proposal.displacement**2, axis=0)) / particles.std(axis=0)
    np.testing.assert_allclose(lengths.max(), 0.5, rtol=1e-12)
    ratios = proposal.displacement / values
    np.testing.assert_allclose(ratios, proposal.step_size, rtol=1e-10)
    assert proposal.step_size < 0.1
    inside, values = proposed(
        parvi.steppers.TrustRegion(parvi.steppers.Constant(1e-3)), begin(), linear()
    )
    np.testing.assert_allclose(inside.displacement, 1e-3 * values, rtol=1e-14)


def judged(step_size, slack=0.5):
    """One judgement of a step along the exact H = Sigma*^-1 velocity from N(m, Sigma*)."""
    stepper = parvi.steppers.LineSearch(step_size=step_size, max_step=10.0, slack=slack)
    with jax.enable_x64(True):
        cloud, fit = fitted(begin(shift=5.0), linear(parvi.preconditioners.Hessian()))
        memory = stepper.init(cloud.particles)
        proposal, memory = stepper.propose(jnp.asarray(0), cloud, fit, memory)
        after = Cloud.at(log_density, cloud.particles + proposal.displacement)
        verdict, memory = stepper.judge(cloud, after, fit, memory)
    return bool(verdict.accepted), float(memory)


def test_line_search_keeps_a_step_iff_it_does_not_overshoot():
    # Far away the mean dominates: along f the KL is nearly quadratic with its minimum at step 1,
    # and slack 1/2 allows 3/2 of it.
    for step_size in (0.1, 0.9, 1.3):
        assert judged(step_size) == (True, pytest.approx(1.2 * step_size))
    for step_size in (1.8, 3.0):
        assert judged(step_size) == (False, pytest.approx(0.5 * step_size))
    assert judged(1.2, slack=0.0) == (False, pytest.approx(0.6))


def test_rejected_moves_leave_everything_and_cost_one_evaluation():
    class Refuse(AbstractStepper):
        """Accepts every third move."""

        def init(self, particles):
            return jnp.zeros((), jnp.int32)

        def propose(self, step, cloud, fit, memory):
            step_size = jnp.asarray(0.1, fit.values.dtype)
            return Proposal(fit.values, step_size, step_size), memory + 1

        def judge(self, before, after, fit, memory):
            return Verdict(memory % 3 == 0, jnp.zeros((), bool)), memory

    evaluations = 0

    def counted(x):
        def count(_):
            nonlocal evaluations
            evaluations += 1

        jax.debug.callback(count, x[0])
        return log_density(x)

    sampler = parvi.Flow(linear(), Refuse())
    with jax.enable_x64(True):
        density = parvi.Target(counted, like=np.zeros(3)).full()
        cloud = Cloud.at(density, jnp.asarray(begin(8)))
        memory = sampler.init(jax.random.key(0), cloud)
        history = [np.asarray(cloud.particles)]
        for number in range(6):
            cloud, memory, _, moved = step(jax.random.key(number), cloud, memory, sampler)
            history.append(np.asarray(cloud.particles))
            assert bool(moved) == (number % 3 == 2)
        jax.effects_barrier()
    assert evaluations == 8 * 7
    moved = [not np.array_equal(a, b) for a, b in itertools.pairwise(history)]
    assert moved == [False, False, True, False, False, True]


def test_line_search_walks_up_to_a_wall_of_nan_and_says_that_it_stalled():
    def walled(x):
        return jnp.where(x[0] < 0.5, 3.0 * x[0], jnp.nan) - 0.5 * jnp.sum(x[1:] ** 2)

    init = begin() * 0.05
    sampler = parvi.Flow(linear(), parvi.steppers.LineSearch())
    result = parvi.sample(walled, init, sampler=sampler, num_steps=500, throw=False)
    assert result.status in (parvi.Status.NONFINITE, parvi.Status.STALLED)
    assert not result.history["accepted"].all()
    assert result.particles[:, 0].max() < 0.5
    assert result.particles[:, 0].max() > 0.4


@pytest.mark.slow
def test_bad_start_does_not_explode():
    """1e4 standard deviations away, ten times too wide: the first steps are the dangerous ones."""
    init = 10 * begin(64) + 1e4
    result = parvi.sample(log_density, init)
    assert result.status == parvi.Status.CONVERGED
    np.testing.assert_allclose(result.particles.std(axis=0), np.sqrt(VARIANCES), rtol=1e-2)
    assert np.abs(result.particles.mean(axis=0) / np.sqrt(VARIANCES)).max() < 0.02


def test_kl_rate_rule():
    rule = parvi.stopping.KLRate(share=0.01, patience=3)
    memory = rule.init(jnp.zeros((100, 5), jnp.float32))

    def info(rate):
        zero = jnp.zeros(())
        return Info(zero, jnp.asarray(rate), zero, zero, zero, {})

    bound = 0.01 * 5 / 100
    quiet, loud = info(-0.9 * bound), info(-1.1 * bound)
    answers = []
    # A step that moved nothing does not count.
    stuck = (info(0.0), False)
    moved = [(fact, True) for fact in (quiet, quiet, loud, quiet, quiet)]
    for fact, accepted in (*moved, stuck, (quiet, True), (quiet, True), (quiet, True)):
        done, memory = rule.update(fact, jnp.asarray(accepted), memory)
        answers.append(bool(done))
    assert answers == [False] * 8 + [True]


def test_kl_rate_rule_has_an_endurance():
    """Steps below the rate of independent draws, d (d + 3) / (2n) = 0.2, whether kept or not."""
    rule = parvi.stopping.KLRate(share=0.01, patience=3, endurance=4)
    memory = rule.init(jnp.zeros((100, 5), jnp.float32))
    zero, answers = jnp.zeros(()), []
    for rate in (-0.21, -0.19, -0.25, 0.19, -0.19, -0.19):
        info = Info(zero, jnp.asarray(rate), zero, zero, zero, {})
        done, memory = rule.update(info, jnp.asarray(False), memory)
        answers.append(bool(done))
    assert answers == [False] * 5 + [True]
