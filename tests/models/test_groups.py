"""What ``to_arviz`` hands over, on either major version of ArviZ."""

import warnings

import matplotlib
import numpy as np
import pytest
import scipy.stats

import parvi
from models.fronts import EFFECTS, ERRORS, NUMPYRO, PYMC, schools

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz as az

matplotlib.use("agg")


def pooled(y, errors):
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 5))
    with numpyro.plate("school", len(y)):
        numpyro.sample("y", dist.Normal(mu, errors), obs=y)


def exact(model, num=400):
    """Particles that are nearly a sample, by importance resampling of prior draws."""
    rng = np.random.default_rng(0)
    mu = rng.normal(0, 5, size=40_000)
    tau = np.abs(5 * rng.standard_cauchy(40_000)) if model is schools else np.zeros(40_000)
    t = rng.normal(size=(40_000, 8))
    theta = mu[:, None] + tau[:, None] * t
    weights = np.exp(scipy.stats.norm.logpdf(EFFECTS, theta, ERRORS).sum(axis=1))
    rows = rng.choice(40_000, num, p=weights / weights.sum())
    every = {"mu": mu[rows], "tau": tau[rows], "t": t[rows]}
    return every if model is schools else {"mu": mu[rows]}


@pytest.fixture(scope="module")
def numpyro():
    start = exact(schools)
    result = parvi.sample(NUMPYRO["schools"](), start, num_steps=0)
    return result.to_arviz(20, dims={"t": ["town"]}, coords={"town": list("ABCDEFGH")})


@pytest.fixture(scope="module")
def pymc():
    start = exact(schools)
    return parvi.sample(PYMC["schools"](), start, num_steps=0).to_arviz(num_prior=20)


@pytest.mark.first_quick
@pytest.mark.parametrize("front", ["numpyro", "pymc"])
def test_all_groups_have_the_models_axes(front, request):
    data = request.getfixturevalue(front)
    for group, names in {
        "posterior": {"mu", "tau", "t", "theta"},
        "prior": {"mu", "tau", "t", "theta"},
        "posterior_predictive": {"y"},
        "prior_predictive": {"y"},
        "log_likelihood": {"y"},
    }.items():
        assert set(data[group].data_vars) == names
        last = "y" if "y" in names else "theta"
        assert list(data[group][last].dims) == ["chain", "draw", "school"]
        num = 20 if group.startswith("prior") else 400
        assert data[group][last].shape == (1, num, 8)
    assert list(data["observed_data"]["y"].dims) == ["school"]
    np.testing.assert_array_equal(data["observed_data"]["y"].values, EFFECTS)
    assert data["posterior"].attrs["inference_library"] == "parvi"


@pytest.mark.parametrize("front", ["numpyro", "pymc"])
def test_log_likelihood_and_predictions_are_those_of_the_particles(front, request):
    data = request.getfixturevalue(front)
    theta = data["posterior"]["theta"].values[0]
    expected = scipy.stats.norm.logpdf(EFFECTS, theta, ERRORS)
    np.testing.assert_allclose(data["log_likelihood"]["y"].values[0], expected, rtol=1e-5)
    errors = (data["posterior_predictive"]["y"].values[0] - theta) / ERRORS
    # 3200 standard normal numbers: five standard errors, and one run in a million fails.
    assert abs(errors.mean()) < 5 / np.sqrt(3200)
    assert abs(errors.std() - 1) < 5 / np.sqrt(2 * 3200)


@pytest.mark.slow
def test_arviz_compares_and_plots(numpyro, pymc):
    start = exact(pooled)
    target = parvi.from_numpyro(pooled, EFFECTS, ERRORS)
    other = parvi.sample(target, start, num_steps=0).to_arviz()
    with warnings.catch_warnings():
        # One school is influential, and ArviZ says so; its plots speak of their dependencies.
        warnings.simplefilter("ignore")
        loo = az.loo(numpyro)
        table = az.compare({"schools": numpyro, "pymc": pymc, "pooled": other})
        (az.plot_ppc if hasattr(az, "plot_ppc") else az.plot_ppc_dist)(numpyro)
    # Vehtari, Gelman & Gabry (2017) have -30.8 for this model.
    assert abs((loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd) + 30.8) < 0.5
    assert set(table.index) == {"schools", "pymc", "pooled"}


def test_names_of_axes_can_be_given(numpyro):
    assert list(numpyro["posterior"]["town"].values) == list("ABCDEFGH")
    assert list(numpyro["posterior"]["t"].dims) == ["chain", "draw", "town"]


def test_a_plain_density_has_no_prior():
    result = parvi.sample(parvi.targets.gaussian(np.zeros(2), np.eye(2)), num_steps=0)
    assert set(result.to_arviz()["posterior"].data_vars) == {"x"}
    with pytest.raises(ValueError, match="draw from its prior"):
        result.to_arviz(num_prior=5)
