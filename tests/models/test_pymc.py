"""What PyMC models may hold: mini-batches, missing data, shared data, and what is refused."""

import jax
import numpy as np
import pymc as pm
import pytest

import parvi

X = np.random.default_rng(0).normal(size=(40, 2))
Y = X @ np.array([1.0, -2.0]) + np.random.default_rng(1).normal(size=40)


def regression(x, y, **settings):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 3, shape=2)
        sd = pm.HalfNormal("sd", 1)
        mean = pm.Deterministic("mean", x @ beta)
        pm.Normal("y", mean, sd, observed=y, **settings)
    return model


@pytest.mark.slow
def test_a_minibatch_is_a_mini_batch():
    target = parvi.from_pymc(regression(*pm.Minibatch(X, Y, batch_size=7), total_size=40))
    whole = parvi.from_pymc(regression(X, Y))
    assert isinstance(target, parvi.MiniBatch)
    assert (target.num_rows, target.batch_size) == (40, 7)
    # It has no deterministic that depends on the batch.
    assert target.layout.paths == ("beta", "sd")
    point = np.array([0.5, 1.0, 0.3])
    with jax.enable_x64(True):
        expected = whole.full()(point)
        # 40 rows are taken in pieces of 7, the last of which is filled up.
        assert abs(target.full()(point) - expected) < 1e-9
        slope = jax.grad(target.full())(point) - jax.grad(whole.full())(point)
        assert np.abs(slope).max() < 1e-9
        each, rest = target.log_likelihood(point, np.arange(40)), target.log_prior(point)
        assert each.shape == (40,)
        key = jax.random.key(3)
        rows = np.asarray(target.drawn(key, 7))
        assert abs(target.at(key)(point) - rest - 40 / 7 * each[rows].sum()) < 1e-9


def test_missing_data_are_parameters_and_shared_data_are_those_of_the_moment():
    with pm.Model() as model:
        scale = pm.Data("scale", 2.0)
        mean = pm.Normal("mean", 0, scale)
        with pytest.warns(pm.exceptions.ImputationWarning):
            pm.Normal("y", mean, 1, observed=np.ma.masked_invalid([1.0, np.nan, 3.0]))
    target = parvi.from_pymc(model)
    assert target.layout.paths == ("mean", "y", "y_unobserved")
    result = parvi.sample(target, np.array([[0.5, 0.7], [0.1, 0.2]]), num_steps=0)
    np.testing.assert_allclose(result.particles["y"], [[1, 0.7, 3], [1, 0.2, 3]])
    with model:
        pm.set_data({"scale": 20.0})
    with jax.enable_x64(True):
        before, after = (t.full()(np.array([3.0, 0])) for t in (target, parvi.from_pymc(model)))
        expected = -0.5 * 9 / 400 - np.log(20) + 0.5 * 9 / 4 + np.log(2)
        assert abs(after - before - expected) < 1e-9


def discrete():
    with pm.Model() as model:
        pm.Normal("x")
        pm.Poisson("count", 3)
    return model


def apart():
    x, y = pm.Minibatch(X, batch_size=7), pm.Minibatch(Y, batch_size=7)
    return regression(x, y, total_size=40)


def prior_of_batch():
    x = pm.Minibatch(Y, batch_size=7)
    with pm.Model() as model:
        mean = pm.Normal("mean")
        pm.Potential("term", (x * mean).sum())
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (discrete, "count are discrete.*pymc_extras.marginalize"),
        (apart, "several mini-batches"),
        (prior_of_batch, "potential depends on pm.Minibatch"),
        (pm.Model, "no free variables"),
        (object, "takes a pymc.Model, got object"),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_words(make, words):
    with pytest.raises(ValueError, match=words):
        parvi.from_pymc(make())


def test_an_improper_prior_without_data_is_refused():
    with pm.Model() as model:
        pm.Normal("x")
        pm.HalfFlat("rate")
    with pytest.raises(ValueError, match=r"no end in rate_log__ \(1\)"):
        parvi.sample(model, num_particles=8, num_steps=0)
