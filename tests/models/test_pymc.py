"""What PyMC models may hold: mini-batches, missing data, shared data, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import parvi
from parvi.calibration.model import HostModel

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

        @jax.jit
        def parts(x, key):
            both = [jax.value_and_grad(each.full())(x) for each in (target, whole)]
            each = target.log_likelihood(x, jnp.arange(40))
            return both, each, target.drawn(key, 7), target.log_prior(x), target.at(key)(x)

        found = jax.tree.map(np.asarray, parts(point, jax.random.key(3)))
    ((full, slope), (expected, whole_slope)), each, rows, rest, step = found
    # 40 rows are taken in pieces of 7, the last of which is filled up.
    assert abs(full - expected) < 1e-9
    assert np.abs(slope - whole_slope).max() < 1e-9
    assert each.shape == (40,)
    assert abs(step - rest - 40 / 7 * each[rows].sum()) < 1e-9


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


def test_transformed_parameters_have_words_of_their_own():
    with pm.Model(coords={"group": ["low", "high"]}) as model:
        share = pm.Uniform("share")
        pm.Deterministic("odds", share / (1 - share))
        pm.Dirichlet("parts", np.ones(3))
        ordered = pm.distributions.transforms.ordered
        pm.Normal("mean", dims="group", transform=ordered, initval=[-1.0, 1.0])
    result = parvi.sample(model, num_particles=32, num_steps=0)
    names = ["share", "parts[0]", "parts[1]", "mean[low]", "mean[high]"]
    assert result.names_flat == names
    words = result.summary()["verdict"]
    assert set(words.index[words == ""]) == {"odds"}


def test_another_data_set_needs_another_target():
    target = parvi.from_pymc(regression(X, Y))
    with pytest.raises(ValueError, match="a PyMC model has its data in the model"):
        target.with_data({"y": Y})


def test_an_improper_prior_without_data_is_refused():
    with pm.Model() as model:
        pm.Normal("x")
        pm.HalfFlat("rate")
    with pytest.raises(ValueError, match=r"no end in rate \(1\)"):
        parvi.sample(model, num_particles=8, num_steps=0)


def normal(y):
    with pm.Model() as model:
        mean = pm.Normal("mean")
        sd = pm.HalfNormal("sd", 1)
        pm.Normal("y", mean, sd, observed=y)
    return model


def test_a_model_for_calibration_has_its_prior_its_data_and_its_density():
    model = parvi.from_pymc(normal(np.zeros(6))).as_model()
    with jax.enable_x64(True):
        truths, data = model.drawn(jax.random.key(0), 2000)
        # The prior, not the posterior of the data at hand; five standard errors.
        assert abs(np.mean(truths["mean"])) < 5 / 2000**0.5
        assert abs(np.std(truths["mean"]) - 1) < 5 / 4000**0.5
        spread = (data["y"] - truths["mean"][:, None]) / np.exp(truths["sd"])[:, None]
        assert abs(np.std(spread) - 1) < 5 / 24_000**0.5
        # The density of other data is that of a target of these data.
        other = parvi.from_pymc(normal(data["y"][0])).full()
        for mean, sd in ((0.3, -0.2), (-1.0, 0.5)):
            parameters = {"mean": np.asarray(mean), "sd": np.asarray(sd)}
            found = model.log_density(parameters, {"y": data["y"][0]})
            np.testing.assert_allclose(found, other(np.array([mean, sd])), rtol=1e-10)


def test_data_that_are_a_covariate_too_are_replaced_as_outcomes_only():
    with pm.Model() as model:
        y = pm.Data("known", [1.0, 2.0])
        slope = pm.Normal("slope")
        pm.Normal("y", slope * y, 1, observed=y)
    found = parvi.from_pymc(model).as_model()
    with jax.enable_x64(True):
        data, slope = {"y": np.array([3.0, -1.0])}, np.asarray(0.5)
        value = found.log_density({"slope": slope}, data)
        expected = -0.5 * (0.25 + 2.5**2 + 2.0**2) - 1.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_draws_outside_a_transforms_support_are_drawn_again():
    with pm.Model() as model:
        ordered = pm.distributions.transforms.ordered
        x = pm.Normal("x", 0, 1, shape=2, transform=ordered, initval=[-1, 1])
        pm.Normal("y", x, 1, observed=[0.0, 0.0])
    with jax.enable_x64(True):
        truths, data = parvi.from_pymc(model).as_model().drawn(jax.random.key(0), 1000)
    assert truths["x"].shape == data["y"].shape == (1000, 2)
    # The smaller of two standard normal numbers has the mean -1/sqrt(pi) and the sd 0.83, and so
    # has minus the larger; five standard errors.
    low, high = truths["x"][:, 0], truths["x"][:, 0] + np.exp(truths["x"][:, 1])
    assert abs(low.mean() + np.pi**-0.5) < 5 * 0.83 / 1000**0.5
    assert abs(high.mean() - np.pi**-0.5) < 5 * 0.83 / 1000**0.5
    # The data are drawn at the parameters that were kept.
    assert abs(np.std(data["y"][:, 1] - high) - 1) < 5 / 2000**0.5


@pytest.mark.slow
def test_one_compilation_calibrates_a_pymc_model():
    """By chance it fails in one of a hundred keys; this one is fixed."""
    with pm.Model() as conjugate:
        pm.Normal("y", pm.Normal("mean"), 1, observed=np.zeros(5))
    model, traces = parvi.from_pymc(conjugate).as_model(), 0

    def counted(parameters, data):
        nonlocal traces
        traces += 1
        return model.log_density(parameters, data)

    settings = {"num_particles": 64, "sampler": parvi.pfg(num_features=0)}
    found = parvi.calibrate(HostModel(model.draw, counted), 1, num=20, **settings)
    before = traces
    assert found, repr(found)
    assert found.names == ["mean", "log density"]
    assert sum(found.statuses.values()) == 20
    parvi.calibrate(HostModel(model.draw, counted), 2, num=30, **settings)
    assert traces == before > 0


def improper():
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("mean"), 1, observed=[0.0, 1.0])
    return model


def with_potential():
    with pm.Model() as model:
        mean = pm.Normal("mean")
        pm.Potential("more", -(mean**4))
        pm.Normal("y", mean, 1, observed=[0.0, 1.0])
    return model


def never_in_the_support():
    with pm.Model() as model:
        simplex = pm.distributions.transforms.simplex
        x = pm.Normal("x", 0, 1, shape=3, transform=simplex, initval=np.ones(3) / 3)
        pm.Normal("y", x, 1, observed=np.zeros(3))
    return model


def without_data():
    with pm.Model() as model:
        pm.Normal("x")
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (improper, "cannot draw from the prior.*proper priors"),
        (with_potential, "a potential, which no draw"),
        (never_in_the_support, "draws of the prior, 0 are in the support"),
        (without_data, "no observed variable"),
        (
            lambda: regression(*pm.Minibatch(X, Y, batch_size=7), total_size=40),
            "a mini-batch cannot be calibrated",
        ),
    ],
)
def test_what_cannot_be_calibrated_says_so(make, words):
    with pytest.raises(ValueError, match=words):
        parvi.calibrate(make(), num=20)
