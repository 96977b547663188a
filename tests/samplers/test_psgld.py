"""pSGLD: the frozen preconditioner's closed form, the correction against autodiff, the limits.

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
from parvi.samplers.psgld import PSGLD, ExactCorrection, NoCorrection, ProbedCorrection
from parvi.samplers.sgld import PolynomialDecay


def constant(step_size):
    return PolynomialDecay(step_size, 1.0, 0.0)


def test_frozen_preconditioner_has_the_closed_form_on_an_ill_conditioned_gaussian():
    num, eta = 4000, 0.01
    scales = np.array([0.1, 0.01])
    start = (np.random.default_rng(0).normal(size=(num, 2)) * scales).astype(np.float32)
    sampler = PSGLD(constant(eta), decay=1 - 1e-6)
    result = parvi.sample(
        lambda x: -0.5 * jnp.sum((x / scales) ** 2), start, sampler=sampler, num_steps=100
    )
    # With such a decay 100 steps change V by 1e-4: each coordinate is Langevin with the step
    # eta G, and G is one over the root mean square score of the start.
    precision = scales**-2
    rates = eta * precision / np.sqrt(np.mean((start * precision) ** 2, axis=0))
    # 0.1 and 1: without the preconditioner they would differ by 100 and not by 10.
    np.testing.assert_allclose(rates, [0.1, 1.0], rtol=0.1)
    variance = 1 / (precision * (1 - rates / 2))
    bound = 4.5 * np.sqrt(2 / num)
    # 0.9^200 of the start's variance is left.
    np.testing.assert_allclose(result.particles.var(axis=0), variance, rtol=bound)
    assert np.abs(result.particles.mean(axis=0) / np.sqrt(variance)).max() < 4.5 / np.sqrt(num)


@pytest.mark.slow
def test_scales_four_orders_of_variance_apart_from_a_common_start():
    num = 1000
    scales = np.array([1.0, 0.1, 0.01])
    start = np.random.default_rng(0).normal(size=(num, 3)).astype(np.float32) + 1
    sampler = parvi.psgld(0.03, offset=1.0, power=0.25, decay=0.99)
    result = parvi.sample(
        lambda x: -0.5 * jnp.sum((x / scales) ** 2), start, sampler=sampler, num_steps=3000
    )
    # The last step is 0.004. By AR(1) with eta G the variances are 1, 1.02 and 1.25 times the
    # target's; a moving average of 100 steps, shorter than the chain's memory of 250 in the widest
    # coordinate, adds up to a doubling there. SGLD would need 1e4 times the steps.
    ratios = result.particles.var(axis=0) / scales**2
    bound = 4.5 * np.sqrt(2 / num)
    assert np.all(ratios > 1 - bound)
    assert np.all(ratios < np.array([2.0, 1.4, 1.4]) * (1 + bound))
    assert np.abs(result.particles.mean(axis=0) / scales).max() < 4.5 * np.sqrt(2 / num)


@pytest.mark.slow
def test_a_short_memory_doubles_the_variance():
    # An average over 10 steps follows a chain that remembers 50: G nears 1 / |s| and the density
    # p |x|, whose second moment is E|x|^3 / E|x| = 2. One over 1000 steps hardly moves; what is
    # left, with the 1 % of the closed form, is below 5 %.
    num = 2000
    start = np.random.default_rng(0).normal(size=(num, 1)).astype(np.float32)

    def variance(decay):
        sampler = PSGLD(constant(0.02), decay=decay)
        result = parvi.sample(lambda x: -0.5 * jnp.sum(x**2), start, sampler=sampler, num_steps=600)
        return result.particles.var()

    assert variance(0.9) > 1.4
    assert variance(0.999) == pytest.approx(1.0, abs=4.5 * np.sqrt(2 / num) + 0.05)


def coupled(x):
    return -0.25 * jnp.sum(x**4) - 0.3 * x[0] * x[1] - 0.5 * jnp.sum(x**2)


def gammas(correction, particles, num_rows=1, num_keys=1):
    """What a correction adds to a step, over eta: the noise of the same key cancels."""

    @jax.jit
    @jax.vmap
    def added(key):
        cloud = Cloud.at(coupled, particles)
        moved = []
        for which in (correction, NoCorrection()):
            sampler = PSGLD(constant(1.0), 0.9, 0.1, num_rows, which)
            memory = sampler.init(key, cloud)
            moved.append(step(key, cloud, memory, sampler).cloud.particles)
        return moved[0] - moved[1]

    return np.asarray(added(jax.random.split(jax.random.key(0), num_keys)))


@pytest.mark.slow
@pytest.mark.first_quick
@pytest.mark.parametrize("num_rows", [1, 7])
def test_correction_is_the_derivative_of_the_preconditioner(num_rows):
    with jax.enable_x64(True):
        particles = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
        scores = jax.vmap(jax.grad(coupled))(particles) / num_rows
        held = jnp.mean(scores**2, axis=0)

        def preconditioner(x):
            square = 0.9 * held + 0.1 * (jax.grad(coupled)(x) / num_rows) ** 2
            return 1 / (0.1 + jnp.sqrt(square))

        expected = jax.vmap(lambda x: jnp.diagonal(jax.jacfwd(preconditioner)(x)))(particles)
        found = gammas(ExactCorrection(), particles, num_rows)[0]
        # float64, and a difference of two positions of order 1.
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
        assert np.abs(expected).max() > 0.01


@pytest.mark.slow
def test_probed_correction_is_unbiased():
    with jax.enable_x64(True):
        particles = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
        exact = gammas(ExactCorrection(), particles)[0]
        probed = gammas(ProbedCorrection(), particles, num_keys=400)
        error = probed.mean(axis=0) - exact
        # The third coordinate is coupled to none: its probe is exact.
        np.testing.assert_allclose(probed[:, :, 2], np.tile(exact[:, 2], (400, 1)), atol=1e-12)
        standard_error = probed.std(axis=0, ddof=1) / np.sqrt(400)
        assert standard_error[:, :2].min() > 0
        assert np.all(np.abs(error) <= 4.5 * standard_error + 1e-12)


@pytest.mark.parametrize("num", [1, 3])
def test_one_particle_and_duplicates_stay_finite_also_at_a_mode(num):
    sampler = parvi.psgld(correction=ExactCorrection())
    cloud = Cloud.at(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros((num, 2)))
    memory = sampler.init(jax.random.key(0), cloud)
    move = eqx.filter_jit(step)
    for number in range(3):
        cloud, memory, info, _ = move(jax.random.key(number), cloud, memory, sampler)
        assert np.isfinite(cloud.particles).all()
        # The run's own, and two Hessian-vector products for each particle, of two gradients each.
        assert info.gradients == 5 * num
    assert not np.allclose(cloud.particles, 0)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="decay must be"):
        parvi.psgld(decay=1.0)
    with pytest.raises(ValueError, match="regulariser must be positive"):
        parvi.psgld(regulariser=0.0)
    with pytest.raises(ValueError, match="num_rows must be at least 1"):
        parvi.psgld(num_rows=0)
