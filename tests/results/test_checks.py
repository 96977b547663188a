"""``Result.check``: a clean bill for exact draws, words for what is wrong."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import parvi
from parvi.geometry.clumps import separated
from parvi.results import checks
from parvi.targets import zoo

# One process: its tests share compiled programs.
pytestmark = pytest.mark.xdist_group("checks")


def result_of(exact, particles):
    """As if a run had ended, converged, at these particles."""
    run = parvi.sample(exact.target, particles, num_steps=0)
    return dataclasses.replace(run, status=parvi.Status.CONVERGED)


@pytest.fixture(scope="module")
def gaussian():
    return zoo.rotated_gaussian(5, 100.0)


def draws(exact, num=512, seed=0):
    return exact.draw(np.random.default_rng(seed), num)


def test_exact_draws_get_a_clean_bill(gaussian):
    bills = [result_of(gaussian, draws(gaussian, seed=seed)).check() for seed in range(5)]
    assert sum(bill.ok for bill in bills) >= 4, [bill.findings for bill in bills]


def test_few_features_in_one_dimension_are_no_wrong_shape():
    """Each of 40 sets exceeds the bound with a chance of about 1 %; with that of 1.5, of 25 %."""
    exact = zoo.rotated_gaussian(1, 1.0)
    first = result_of(exact, draws(exact, 64))
    bills = [
        checks.checked(first.status, exact.target, jnp.asarray(flat), False, ["x"], known).findings
        for flat in (draws(exact, 64, seed).astype(np.float32) for seed in range(40))
        for known in [checks.Known(0.0, np.zeros(1), 0.0)]
    ]
    assert sum("shape is off" in str(bill) or "tails are" in str(bill) for bill in bills) <= 3


def test_a_test_of_particles_that_were_given_up_says_nothing(gaussian):
    """The run's own drift is taken, but not that of stages that were undone."""
    result = result_of(gaussian, draws(gaussian))
    history = {"drift": np.array([0.2, 5.0]), "stage": np.array(["explore", "verify again"])}
    assert dataclasses.replace(result, history=history).check().numbers["drift"] == 5.0
    history["stage"] = np.array(["explore", "verify again, undone"])
    assert dataclasses.replace(result, history=history).check().numbers["drift"] == 0.2


def test_what_is_wrong_is_said(gaussian):
    good = draws(gaussian)
    centre = good.mean(axis=0)
    wrong = {
        "narrow": centre + 0.7 * (good - centre),
        "wide": centre + 1.4 * (good - centre),
        "mean": good + 0.5 * good.std(axis=0),
    }
    for word, particles in wrong.items():
        bill = result_of(gaussian, particles).check()
        assert not bill.ok
        assert word in str(bill)


def test_a_missing_tail_is_found():
    """A funnel without its mouth and its neck, which Stein's identity alone hardly sees."""
    funnel = zoo.funnel()
    all_draws = draws(funnel, 4000)
    inside = all_draws[np.abs(all_draws[:, 0]) < 1.2][:512]
    bill = result_of(funnel, inside).check()
    assert not bill.ok
    assert "dynamics" in str(bill)


def test_an_unfinished_run_is_said(gaussian):
    result = parvi.sample(gaussian.target, draws(gaussian), num_steps=1)
    assert "MAX_STEPS" in str(result.check())


def test_a_loaded_result_needs_its_target(gaussian, tmp_path):
    result = result_of(gaussian, draws(gaussian))
    result.save(tmp_path / "run.npz")
    loaded = parvi.load(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="give it"):
        loaded.check()
    assert loaded.check(gaussian.target).numbers == pytest.approx(result.check().numbers, rel=1e-6)


@pytest.mark.slow
def test_parameters_with_constraints():
    target = parvi.Target(
        lambda p: -p["rate"], like={"rate": np.ones(())}, constraints=parvi.Positive()
    )
    bills = []
    for seed in range(3):
        rate = np.random.default_rng(seed).exponential(size=400)
        result = parvi.sample(target, {"rate": jnp.asarray(rate)}, num_steps=0)
        bills.append(dataclasses.replace(result, status=parvi.Status.CONVERGED).check())
    # Seven tests at levels of 0.1 to 1 % each: one set of three may be unlucky.
    assert sum(bool(bill) for bill in bills) >= 2, [bill.findings for bill in bills]


def test_a_tail_that_is_missing_shows_as_skew():
    """Of the log of a gamma variable, exact draws pass, and those without a tenth do not."""
    shape, rng = 0.7, np.random.default_rng(0)

    def p_of(x):
        skews = checks._skews(x[:, None], (shape - np.exp(x))[:, None])
        return 2 * scipy.special.ndtr(-skews[0])

    exact, cut = [], []
    for _ in range(300):
        x = np.log(rng.gamma(shape, size=700))
        exact.append(p_of(x[:512]))
        cut.append(p_of(x[x > np.quantile(x, 0.1)][:512]))
    assert np.mean(np.array(exact) < 0.05) < 0.1
    assert np.mean(np.array(exact) < 0.003) < 0.015
    assert np.mean(np.array(cut) < 0.003) > 0.5


def test_valleys_between_few_draws_are_no_modes():
    """Twelve exact draws have a valley in some direction, but the density between them has none."""
    draws = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    result = parvi.sample(lambda x: -0.5 * jnp.sum(x**2), draws, sampler=parvi.svgd(), num_steps=0)
    assert separated(jnp.asarray(draws), -jnp.asarray(draws))
    check = result.check()
    assert check.numbers["clumps"] == 0
    assert not any("clumps" in finding for finding in check.findings)
