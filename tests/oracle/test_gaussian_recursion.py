"""The discrete Gaussian case and Theorem 1 (Dong et al. 2023, appendix "Analysis of Discrete
Gaussian Case").

Linear PFG keeps a Gaussian Gaussian, and the particles' moments are exact: means, variances and
KL divergences of the particles are those of the theory, step by step.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from oracle import exact
from parvi.cloud import Cloud
from parvi.fields.framed import Whitened
from parvi.fields.pfg.closed_form import Ridge
from parvi.fields.pfg.field import PFG
from parvi.fields.pfg.functions import Linear
from parvi.fields.pfg.preconditioners import FisherDiagonal, Hessian, Identity, RegressedHessian
from parvi.fields.svgd import SVGD
from parvi.kernels import LinearKernel
from parvi.run.step import step
from parvi.samplers.flow import Flow
from parvi.steppers import Constant

# Per step 1e-16 times a condition number of 1e2, over tens of steps, with a margin.
ROUNDING = 1e-11
# Standard deviations of the target: at most 1, the start's (the appendix's assumption).
SIGMA = np.array([1.0, 0.7, 0.4, 0.2])
TARGET_MEAN = np.array([1.0, -2.0, 0.5, 3.0])
DIM = len(SIGMA)

METRICS = {
    "plain": (Identity(), np.ones(DIM)),
    "newton": (Hessian(), SIGMA**-2),
}

each_metric = pytest.mark.parametrize("name", METRICS)


def linear_pfg(name, ridge=0.0):
    return PFG(Linear(), METRICS[name][0], Ridge(ridge))


def log_density():
    return exact.gaussian(TARGET_MEAN, np.diag(SIGMA**2))


def start(num=30):
    """Exactly N(0, I)."""
    return exact.particles_with(np.random.default_rng(0), num, np.zeros(DIM), np.eye(DIM))


def kl(particles):
    return parvi.metrics.gaussian_kl(*exact.moments(particles), TARGET_MEAN, np.diag(SIGMA**2))


def run(name, step_size, num_steps):
    """The particles before each step and after the last, and the KL rate at each."""
    sampler = Flow(linear_pfg(name), Constant(step_size))
    move = eqx.filter_jit(step)
    cloud = Cloud.at(log_density(), jnp.asarray(start()))
    memory = sampler.init(jax.random.key(0), cloud)
    particles, rates = [cloud.particles], []
    for _ in range(num_steps):
        cloud, memory, info, _ = move(jax.random.key(0), cloud, memory, sampler)
        particles.append(cloud.particles)
        rates.append(float(info.kl_rate))
    return [np.asarray(p) for p in particles], np.array(rates)


@each_metric
def test_recursion_of_mean_and_variance(name):
    h = METRICS[name][1]
    eta = 0.5 * np.min(h * SIGMA**2)
    mean, variance = np.zeros(DIM), np.ones(DIM)
    for particles in run(name, eta, 15)[0]:
        own_mean, own_covariance = exact.moments(particles)
        assert exact.relative_error(own_covariance, np.diag(variance)) < ROUNDING
        assert np.max(np.abs(own_mean - mean)) < ROUNDING
        share = eta / (h * SIGMA**2)
        mean = (1 - share) * mean + share * TARGET_MEAN
        gap = 1 / variance - 1 / SIGMA**2
        variance = variance + 2 * eta * variance / h * gap + eta**2 * variance / h**2 * gap**2


def test_recursion_of_a_rotated_gaussian():
    """The matrix form, where neither covariance is diagonal and they do not commute."""
    rng = np.random.default_rng(1)
    target_covariance = exact.covariance_of(rng, SIGMA**2)
    mean, covariance = rng.normal(size=DIM), exact.covariance_of(rng, [0.5, 1.0, 1.5, 2.0])
    particles = exact.particles_with(rng, 30, mean, covariance)
    precision, eta = np.linalg.inv(target_covariance), 0.3
    density = exact.gaussian(TARGET_MEAN, target_covariance)
    for _ in range(4):
        inverse_metric = target_covariance
        gap = np.linalg.inv(covariance) - precision
        moved = inverse_metric @ gap @ covariance
        covariance = covariance + eta * (moved + moved.T) + eta**2 * moved @ gap @ inverse_metric
        mean = mean + eta * inverse_metric @ precision @ (TARGET_MEAN - mean)
        particles = particles + eta * exact.fit(linear_pfg("newton"), density, particles).values
        own_mean, own_covariance = exact.moments(particles)
        assert exact.relative_error(own_mean, mean) < ROUNDING
        assert exact.relative_error(own_covariance, covariance) < ROUNDING


def initial_constant():
    """C_0 of the appendix."""
    square = np.sum((TARGET_MEAN / SIGMA) ** 2)
    return 0.5 * (square + 0.5 * np.sum(((1 - SIGMA**2) / SIGMA**2) ** 2))


@pytest.mark.parametrize(
    ("name", "eta", "contraction"),
    [
        ("newton", 0.5, 1 / 4),
        ("plain", SIGMA[-1] ** 2 / 2, (1 - SIGMA[-1] ** 2 / (2 * SIGMA[0] ** 2)) ** 2),
    ],
    ids=["newton", "plain"],
)
def test_discrete_bound(name, eta, contraction):
    """KL(t) <= max_i (1 - eta / (h_i sigma_i^2))^2t C_0: 4^-t C_0 in the Newton metric."""
    particles, _ = run(name, eta, 15)
    divergences = np.array([kl(p) for p in particles])
    bound = initial_constant() * contraction ** np.arange(16.0)
    # The last bounds are 1e-7 and the KL is a difference of numbers of order one: to 1e-14.
    assert np.all(divergences <= bound)
    assert np.all(np.diff(divergences) < 0)
    # The bound is about tight for the mean, which contracts at exactly this rate.
    assert divergences[-1] > 1e-3 * bound[-1]


# Theorem 1, in continuous time: small steps. For a Gaussian mu = 1 / max sigma^2.


@each_metric
def test_theorem_1(name):
    h = METRICS[name][1]
    step_size, num_steps = 0.002, 300
    particles, rates = run(name, step_size, num_steps)
    divergences = np.array([kl(p) for p in particles])
    rate = (1 / np.max(SIGMA) ** 2) / np.max(h)
    bound = np.exp(-rate * step_size * np.arange(num_steps + 1)) * divergences[0]
    # Proved with a factor 2 to spare in the rate, so that Euler's error is far within it.
    assert np.all(divergences[1:] < bound[1:])
    # And log-Sobolev with the same factor 2: KL <= (max h / 2 mu) E|grad log p/p*|^2_{H^-1},
    # where the latter is minus the rate of the KL.
    assert np.all(divergences[:-1] <= -rates / (2 * rate) * (1 + ROUNDING))


@each_metric
@pytest.mark.parametrize("ridge", [0.0, 0.3, 3.0])
def test_kl_decreases_by_half_of_the_fisher_divergence(name, ridge):
    """dKL/dt <= -(1 - eps)/2 E|grad log p/p*|^2_{H^-1}; a ridge makes eps positive.

    [A3] of the paper has p/p* where p*/p is meant: its f approximates the velocity.
    """
    fit = exact.fit(linear_pfg(name, ridge), log_density(), start())
    gradient = exact.log_ratio_gradient(
        start(), np.zeros(DIM), np.eye(DIM), TARGET_MEAN, np.diag(SIGMA**2)
    )
    h = METRICS[name][1]
    fisher = np.mean(np.sum(gradient**2 / h, axis=1))
    gap = np.asarray(fit.values) - gradient / h
    eps = np.mean(np.sum(h * gap**2, axis=1)) / fisher
    assert eps < 1
    assert (eps > 1e-3) == (ridge > 0)
    assert fit.kl_rate <= -(1 - eps) / 2 * fisher
    if ridge == 0:
        assert float(fit.kl_rate) == pytest.approx(-fisher, rel=ROUNDING)


@pytest.mark.parametrize(
    "field",
    [
        linear_pfg("plain"),
        linear_pfg("newton"),
        linear_pfg("plain", ridge=0.3),
        Whitened(PFG(Linear(), RegressedHessian(), Ridge(1e-3))),
        PFG(Linear(), FisherDiagonal(), Ridge(0.0), base_shift=0.2),
        SVGD(LinearKernel()),
    ],
    ids=["plain", "newton", "ridge", "whitened", "base_shift", "svgd_linear"],
)
def test_kl_rate_is_the_derivative_of_the_kl(field):
    """Affine velocities: the moved particles are Gaussian still, and their KL is known."""
    rng = np.random.default_rng(3)
    particles = exact.particles_with(
        rng, 30, rng.normal(size=DIM), exact.covariance_of(rng, [0.5, 1.0, 1.5, 2.0])
    )
    # The base shift's rate has random probes, exact here: the target's Hessian is diagonal.
    fit = exact.fit(field, log_density(), particles)
    values = np.asarray(fit.values)
    small = 1e-5 / np.max(np.abs(values))
    difference = (kl(particles + small * values) - kl(particles - small * values)) / (2 * small)
    assert fit.kl_rate < -0.1
    # Central difference: truncation of order 1e-10, rounding of 1e-16 KL / 1e-5.
    assert float(fit.kl_rate) == pytest.approx(difference, rel=1e-7)


def test_kl_rate_of_the_cloud_after_a_move():
    """The same velocity at the moved particles: what the line search asks for."""
    particles = start()
    fit = exact.fit(linear_pfg("newton"), log_density(), particles)
    values = np.asarray(fit.values)
    after = Cloud.at(log_density(), jnp.asarray(particles + 0.3 * values))
    velocity = fit.velocity
    rate = -np.mean(np.sum(velocity.on(after) * after.scores, axis=1) + velocity.divergences(after))
    along = np.asarray(velocity.on(after))
    moved, small = np.asarray(after.particles), 1e-5 / np.max(np.abs(along))
    difference = (kl(moved + small * along) - kl(moved - small * along)) / (2 * small)
    assert rate == pytest.approx(difference, rel=1e-7)
