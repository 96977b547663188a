"""Joint distributions of TensorFlow Probability, and models of Bambi."""

import jax
import numpy as np
import pytest

import parvi
from models.fronts import BY_HAND, EFFECTS, ERRORS, agree

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def tfd():
    substrate = "tensorflow_probability.substrates.jax"
    return pytest.importorskip(substrate, reason="needs the package tfp-nightly").distributions


def schools(tfd, dtype):
    zero, one, five = (np.array(number, dtype) for number in (0, 1, 5))

    @tfd.JointDistributionCoroutineAutoBatched
    def joint():
        mu = yield tfd.Normal(zero, five, name="mu")
        tau = yield tfd.HalfCauchy(zero, five, name="tau")
        t = yield tfd.Sample(tfd.Normal(zero, one), 8, name="t")
        errors = ERRORS.astype(dtype)
        yield tfd.Independent(tfd.Normal(mu + tau * t, errors), 1, name="y")

    return joint.experimental_pin(y=EFFECTS.astype(dtype))


def test_a_joint_distribution_is_the_density_written_by_hand(tfd):
    with jax.enable_x64(True):
        target = parvi.from_tfp(schools(tfd, np.float64))
        names = target.layout.flat_names()
        order = [names.index(name) for name in ("mu", "tau", *(f"t[{i}]" for i in range(8)))]

        def ours(u):
            return target.full()(jax.numpy.zeros(10).at[np.array(order)].set(u))

        agree(ours, BY_HAND["schools"], 10)


def test_groups_of_a_joint_distribution(tfd):
    result = parvi.sample(schools(tfd, np.float32), num_particles=200, num_steps=0)
    data = result.to_arviz(num_prior=5)
    theta = (
        result.particles["mu"][:, None] + result.particles["tau"][:, None] * result.particles["t"]
    )
    expected = -0.5 * ((EFFECTS - theta) / ERRORS) ** 2 - np.log(ERRORS * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(data["log_likelihood"]["y"].values[0], expected, rtol=1e-4)
    assert data["posterior_predictive"]["y"].shape == (1, 200, 8)
    assert data["prior_predictive"]["y"].shape == (1, 5, 8)
    np.testing.assert_array_equal(data["observed_data"]["y"].values, EFFECTS)
    again = parvi.sample(result.target, result.particles, num_steps=0)
    np.testing.assert_allclose(again.flat, result.flat, atol=1e-3)


def test_what_tfp_cannot_give_is_refused_in_words(tfd):
    named = tfd.JointDistributionNamedAutoBatched
    for joint, words in [
        (named({"k": tfd.Poisson(3.0)}), "k are discrete"),
        (tfd.JointDistributionSequential([tfd.Normal(0.0, 1.0)]), "have no names"),
        (tfd.Normal(0.0, 1.0), "takes a joint distribution"),
    ]:
        with pytest.raises(ValueError, match=words):
            parvi.from_tfp(joint)
    with pytest.raises(ValueError, match="is in float32 and the run in float64"):
        parvi.sample(schools(tfd, np.float32), np.zeros((4, 10)) + np.eye(4, 10), num_steps=0)


def test_a_model_of_bambi_is_that_of_pymc():
    bambi = pytest.importorskip("bambi", reason="needs the package bambi")
    import pandas as pd

    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=50), "g": ["a", "b"] * 25})
    table["y"] = 1 + 2 * table["x"] + rng.normal(size=50)
    model = bambi.Model("y ~ x + (1|g)", table)
    result = parvi.sample(model, num_particles=64)
    assert result.status == parvi.Status.CONVERGED
    # Two standard errors of the least-squares slope, and two posterior standard deviations.
    assert abs(result.particles["x"].mean() - 2) < 0.5
    assert "1|g" in result.particles
    assert parvi.from_bambi(model).layout.paths == tuple(sorted(result.particles))
