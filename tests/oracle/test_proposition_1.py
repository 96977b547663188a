"""Proposition 1: the fitted velocity is H^-1 grad log p*/p, and the objective measures the gap.

Everything is affine and the particles' moments are exact, so that each identity holds to
rounding: 1e-10 is 1e-16 times the condition numbers of the fit (at most 1e3), with a margin.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from oracle import exact
from parvi.fields.pfg.functions import Parameters
from parvi.fields.pfg.solvers import Problem

ROUNDING = 1e-10
DIM = 6

PRECONDITIONERS = {
    "Identity": parvi.preconditioners.Identity(),
    "FisherDiagonal": parvi.preconditioners.FisherDiagonal(),
    "FisherDiagonal^0.5": parvi.preconditioners.FisherDiagonal(exponent=0.5),
    "Fisher": parvi.preconditioners.Fisher(),
    "Hessian": parvi.preconditioners.Hessian(),
    "InverseCovariance": parvi.preconditioners.InverseCovariance(),
    "RegressedHessian": parvi.preconditioners.RegressedHessian(),
    "Kronecker": parvi.preconditioners.Kronecker(((2, 2), (2,))),
}
FRAMES = {"dense": parvi.fields.Whitened, "diagonal": parvi.fields.Standardised}

each_preconditioner = pytest.mark.parametrize("name", PRECONDITIONERS)


class Case:
    """Two Gaussians, and particles that are the first one exactly."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.mean, self.target_mean = rng.normal(size=DIM), rng.normal(size=DIM)
        self.covariance = exact.covariance_of(rng, np.geomspace(0.3, 3, DIM))
        self.target_covariance = exact.covariance_of(rng, np.geomspace(0.1, 10, DIM))
        self.particles = exact.particles_with(rng, 40, self.mean, self.covariance)
        self.log_density = exact.gaussian(self.target_mean, self.target_covariance)
        self.elsewhere = 3 * rng.normal(size=(10, DIM))

    def gradient(self, x):
        return exact.log_ratio_gradient(
            x, self.mean, self.covariance, self.target_mean, self.target_covariance
        )


@pytest.fixture(scope="module")
def case():
    return Case()


def linear_pfg(name):
    return parvi.fields.PFG(
        parvi.functions.Linear(), PRECONDITIONERS[name], parvi.fields.Ridge(0.0)
    )


@each_preconditioner
def test_velocity_is_the_preconditioned_wasserstein_gradient(name, case):
    fit = exact.fit(linear_pfg(name), case.log_density, case.particles)
    metric = fit.velocity.metric
    at_particles = metric.solve(jnp.asarray(case.gradient(case.particles)))
    assert exact.relative_error(fit.values, at_particles) < ROUNDING
    # The velocity is a function: it holds where no particle is, too.
    elsewhere = metric.solve(jnp.asarray(case.gradient(case.elsewhere)))
    assert exact.relative_error(jax.vmap(fit.velocity)(case.elsewhere), elsewhere) < ROUNDING


@each_preconditioner
@pytest.mark.parametrize("frame", FRAMES)
def test_the_same_through_a_frame(name, frame, case):
    fit = exact.fit(FRAMES[frame](linear_pfg(name)), case.log_density, case.particles)
    expected = jax.vmap(fit.velocity.precondition)(jnp.asarray(case.gradient(case.elsewhere)))
    # The frame's jitter of 100 eps changes the frame, but not the fit in it.
    assert exact.relative_error(jax.vmap(fit.velocity)(case.elsewhere), expected) < ROUNDING


def test_identity_in_the_whitened_frame_is_the_inverse_covariance(case):
    fit = exact.fit(parvi.fields.Whitened(linear_pfg("Identity")), case.log_density, case.particles)
    expected = case.gradient(case.elsewhere) @ case.covariance
    assert exact.relative_error(jax.vmap(fit.velocity)(case.elsewhere), expected) < ROUNDING


def test_hessian_metric_is_the_targets_precision(case):
    metric = exact.fit(linear_pfg("Hessian"), case.log_density, case.particles).velocity.metric
    assert exact.relative_error(metric.solve(jnp.eye(DIM)), case.target_covariance) < ROUNDING


def problem_of(name, case):
    """The objective that a fit minimises, with the fit."""
    field = linear_pfg(name)
    fit = exact.fit(field, case.log_density, case.particles)
    cloud = exact.cloud_of(case.log_density, case.particles)
    problem = Problem(
        field.functions,
        field.divergence,
        field.regulariser,
        fit.velocity.metric,
        0.0,
        cloud,
    )
    return problem, fit


def mean_square(vectors, action):
    """E|v|^2 in the metric whose product is ``action``."""
    vectors = jnp.asarray(vectors)
    return float(jnp.mean(jnp.sum(vectors * action(vectors), axis=1)))


@each_preconditioner
def test_minimum_of_the_objective_and_kl_rate(name, case):
    problem, fit = problem_of(name, case)
    energy = mean_square(case.gradient(case.particles), problem.metric.solve)
    assert energy > 0.1  # far from the target, so that the next lines say something
    loss = problem.loss(jax.random.key(0), fit.velocity.parameters)
    assert float(loss) == pytest.approx(-0.5 * energy, rel=ROUNDING)
    assert float(fit.kl_rate) == pytest.approx(-energy, rel=ROUNDING)


@each_preconditioner
def test_objective_is_half_the_squared_distance_to_the_gradient(name, case):
    """The identity in the proof, for affine f that are not the minimiser."""
    problem, _ = problem_of(name, case)
    gradient = case.gradient(case.particles)
    energy = mean_square(gradient, problem.metric.solve)
    best = problem.metric.solve(jnp.asarray(gradient))
    rng = np.random.default_rng(1)
    for _ in range(3):
        parameters = Parameters((), jnp.asarray(rng.normal(size=(DIM, DIM + 1))))
        values = problem.functions.values(parameters, problem.particles)
        gap = mean_square(values - best, problem.metric.apply)
        loss = float(problem.loss(jax.random.key(0), parameters))
        assert loss == pytest.approx(0.5 * gap - 0.5 * energy, rel=ROUNDING, abs=ROUNDING)


@each_preconditioner
def test_proposition_2_rest_only_at_the_target(name, case):
    rng = np.random.default_rng(2)
    arrived = exact.particles_with(rng, 40, case.target_mean, case.target_covariance)
    rest = exact.fit(linear_pfg(name), case.log_density, arrived)
    moving = exact.fit(linear_pfg(name), case.log_density, case.particles)
    # At rest the velocity is the rounding of scores of size 10.
    assert np.max(np.abs(rest.values)) < ROUNDING
    assert abs(rest.kl_rate) < ROUNDING
    assert np.max(np.abs(moving.values)) > 0.1
    assert moving.kl_rate < -0.1
