"""Survey: mass where no particle is, and none where exact draws are."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

import parvi
from parvi.geometry.beyond import NUM_FIRST, NUM_MORE, Beyond, beyond, is_told
from parvi.samplers.survey import Survey
from parvi.targets import zoo

# One process: its tests share compiled programs.
pytestmark = pytest.mark.xdist_group("survey")

MEANS = np.array([[-3.0, 0.0, 0.0], [3.0, 1.0, 0.0]])


def two_modes(x):
    """Weights 0.6 and 0.4."""
    logs = jnp.log(jnp.array([0.6, 0.4]))
    return logsumexp(-0.5 * jnp.sum((x - MEANS) ** 2, axis=1) + logs)


def draws_of_two(num, seed=0):
    rng = np.random.default_rng(seed)
    return MEANS[rng.choice(2, size=num, p=[0.6, 0.4])] + rng.normal(size=(num, 3))


def looked(log_density, particles, num=NUM_FIRST, seed=0):
    """What so many looks see together."""
    look = jax.jit(lambda key, x: beyond(key, log_density, x))
    keys, x = jax.random.split(jax.random.key(seed), num), jnp.asarray(particles)
    return functools.reduce(Beyond.and_also, [look(key, x) for key in keys])


def test_a_missed_mode_is_mass_beyond():
    found = looked(two_modes, MEANS[0] + np.random.default_rng(0).normal(size=(512, 3)))
    assert found.sure
    # Its weight, up to what lies near the particles of the other mode; four standard errors.
    assert abs(found.share - 0.4) < 4 * found.error + 0.03
    # Places there lie around the missed mode.
    assert np.all(np.linalg.norm(found.places - MEANS[1], axis=1) < 5)


# The shapes of the zoo in few dimensions; all but the first are far from a Gaussian.
EXACT = {
    "gaussian": zoo.rotated_gaussian(5, 1e4),
    "banana": zoo.banana(0.3, turned=0.7),
    "funnel": zoo.funnel(5, 2.0),
    "student": zoo.student_t(5, 3.0),
    "modes": zoo.four_modes(2),
}


@pytest.mark.first_quick
@pytest.mark.parametrize("name", EXACT)
def test_exact_draws_leave_nothing_beyond(name):
    """Of 138 such sets one was beyond 3 standard errors, and the bound is 4."""
    exact = EXACT[name]
    for seed in range(3):
        particles = exact.draw(np.random.default_rng(seed), 512)
        assert not looked(exact.target.full(), particles, seed=seed).sure


@pytest.mark.slow
def test_many_draws_are_more_exact():
    particles = draws_of_two(512)
    few, many = (looked(two_modes, particles, num) for num in (NUM_FIRST, NUM_MORE))
    assert many.error < few.error
    assert abs(many.share - many.expected) < 4 * many.error


def test_the_stage_says_what_it_found():
    sampler = parvi.Sequence(parvi.Stage("survey", Survey()))
    right = parvi.sample(two_modes, draws_of_two(512), sampler=sampler)
    assert right.status == parvi.Status.CONVERGED
    assert right.history["beyond"][-1] == 0
    some = draws_of_two(2048)
    wrong = some[some[:, 0] < 0][:512]
    with pytest.warns(parvi.NotAtRestWarning):
        found = parvi.sample(two_modes, wrong, sampler=sampler)
    assert found.history["beyond"][-1] > 0.3
    np.testing.assert_array_equal(found.particles, wrong)


def test_check_looks_where_the_run_has_not():
    some = draws_of_two(2048)
    run = parvi.sample(two_modes, some[some[:, 0] < 0][:512], num_steps=0)
    check = dataclasses.replace(run, status=parvi.Status.CONVERGED).check()
    assert check.numbers["drift"] < 1
    assert "mass where no particle is" in str(check)


def test_only_in_few_dimensions_with_enough_particles():
    assert is_told((160, 8))
    assert not is_told((159, 8))
    assert not is_told((10_000, 9))


def cross(x):
    """Two narrow Gaussians across each other, of weights 0.3 and 0.7."""
    sds = np.array([[4.0, 0.2], [0.2, 4.0]])
    return logsumexp(-0.5 * jnp.sum((x / sds) ** 2, axis=1) + jnp.log(jnp.array([0.3, 0.7])))


@pytest.mark.slow
def test_the_default_finds_the_other_arm_of_a_cross():
    """No valley parts the arms, and a flow of the KL divergence contracts into one of them."""
    result = parvi.sample(cross, np.random.default_rng(0).normal(size=(512, 2)))
    assert "temper wide" in result.history["stage"]
    assert result.status == parvi.Status.CONVERGED
    assert result.check()
    variances = np.array([0.3 * 16 + 0.7 * 0.04, 0.7 * 16 + 0.3 * 0.04])
    # Kurtoses of 9 and 4.3: the variances of 512 independent draws have errors of up to 0.13.
    np.testing.assert_allclose(result.particles.var(axis=0), variances, rtol=0.4)
