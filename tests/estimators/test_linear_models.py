"""Estimators against closed forms and against scikit-learn's own."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, poisson
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import parvi
from parvi.estimators import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegression,
)
from parvi.estimators.logistic import contrasts
from parvi.estimators.priors import LinearPrior
from parvi.estimators.rows import merged, padded, rounded, scaling_of
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.status import Status
from parvi.stopping import Never

# Affine maps alone compile in a fraction of the time, and are exact on Gaussians.
AFFINE = parvi.pfg(num_features=0)


def rows(num=60, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, dim)) * [1.0, 10.0, 0.1][:dim] + [5.0, -3.0, 0.0][:dim]
    return x, rng


def test_linear_regression_is_the_conjugate_posterior():
    """With tau and sigma known it is Gaussian in closed form, and so are predictions."""
    x, rng = rows()
    y = x @ [1.0, -0.2, 3.0] + 2 + 0.7 * rng.normal(size=len(x))
    weights = rng.integers(0, 3, len(x)).astype(float)
    model = BayesianLinearRegression(
        prior_scale=0.5, noise_scale=0.7, n_particles=256, sampler=AFFINE, random_state=0
    ).fit(x, y, weights)
    # The same by hand, for standardised inputs and outcomes and an intercept of prior sd 10.
    scale_x, scale_y = scaling_of(x, weights), scaling_of(y, weights)
    design = np.column_stack([np.ones(len(x)), scale_x(x)])
    precision = (
        np.diag([0.01, 4, 4, 4])
        + design.T @ (weights[:, None] * design) / (0.7 / scale_y.scale) ** 2
    )
    cov = np.linalg.inv(precision)
    mean = cov @ design.T @ (weights * scale_y(y)) / (0.7 / scale_y.scale) ** 2
    found = np.column_stack(
        [model.result_.particles["intercept"], model.result_.particles["weights"]]
    )
    sds = np.sqrt(np.diag(cov))
    # The affine stage stops within a hundredth of a standard deviation of a Gaussian.
    np.testing.assert_allclose(found.mean(axis=0), mean, atol=0.02 * sds.min())
    np.testing.assert_allclose(np.cov(found.T), cov, atol=0.03 * sds.max() ** 2)
    at, sd = model.predict(x, return_std=True)
    exact = scale_y.centre + scale_y.scale * design @ mean
    spread = np.sqrt(0.7**2 + scale_y.scale**2 * np.sum(design @ cov * design, axis=1))
    np.testing.assert_allclose(at, exact, atol=0.01)
    np.testing.assert_allclose(sd, spread, rtol=0.01)
    np.testing.assert_allclose(model.log_predictive(x, y), norm.logpdf(y, exact, spread), atol=0.05)
    # coef_ is on the scale of the data.
    np.testing.assert_allclose(x @ model.coef_ + model.intercept_, at, atol=1e-8)


@pytest.mark.slow
def test_noise_and_prior_scale_are_inferred():
    x, rng = rows(400)
    y = x @ [1.0, -0.2, 3.0] + 2 + 0.7 * rng.normal(size=len(x))
    model = BayesianLinearRegression(random_state=0).fit(x, y)
    draws = model.sample_posterior()
    # 400 rows know the noise to 3.5 %; three times that.
    np.testing.assert_allclose(draws["noise_scale"].mean(), 0.7, rtol=0.11)
    assert 0.02 < draws["noise_scale"].std() / 0.7 < 0.06
    assert set(draws) == {"coef", "intercept", "noise_scale", "prior_scale"}
    assert model.sample_posterior(5, random_state=0)["coef"].shape == (5, 3)
    assert model.sample_posterior(1000, random_state=0)["coef"].shape == (1000, 3)
    with pytest.raises(ValueError, match="n_samples must be None or an int"):
        model.sample_posterior(0)
    # Without its scale, an outlying unit of measurement changes nothing.
    other = BayesianLinearRegression(random_state=0).fit(x * 1e6, y / 1e3)
    np.testing.assert_allclose(other.predict(x * 1e6) * 1e3, model.predict(x), rtol=1e-3)


def test_the_marginal_prior_is_the_integral_over_its_scale():
    """log p(w) + constant = log of the integral of N(w; 0, tau^2) over the prior of tau."""
    from scipy.integrate import quad
    from scipy.stats import invgamma

    prior, dim = LinearPrior(np.asarray(0.6), np.asarray(1.0), True), 3

    def integral(w):
        def at(v):
            return np.prod(norm.pdf(w, 0, np.sqrt(v))) * invgamma.pdf(v, 2, scale=2 * 0.6**2)

        return np.log(quad(at, 0, np.inf, epsabs=1e-14, limit=200)[0])

    points = np.random.default_rng(0).normal(size=(4, dim))
    ours = [float(prior({"weights": w})) for w in points]
    theirs = [integral(w) for w in points]
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-4)
    # tau given w: its mean square is (nu s^2 + |w|^2) / (nu + m - 2); 3 standard errors.
    drawn = prior.scales(np.tile(points[0], (200_000, 1)), np.random.default_rng(1))
    expected = (4 * 0.36 + points[0] @ points[0]) / (4 + dim - 2)
    np.testing.assert_allclose(np.mean(drawn**2), expected, rtol=0.02)


@pytest.mark.first_quick
@pytest.mark.parametrize(
    "classes", [pytest.param(["no", "yes"], marks=pytest.mark.slow), ["a", "b", "c"]]
)
def test_logistic_regression_predicts_as_scikit_learn_with_much_data(classes):
    x, rng = rows(1000)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    truth = rng.normal(size=(len(classes), 3))
    noise = rng.gumbel(size=(len(x), len(classes)))
    y = np.array(classes)[np.argmax(z @ truth.T + noise, axis=1)]
    model = BayesianLogisticRegression(n_particles=128, random_state=0).fit(x, y)
    peer = LogisticRegression(C=1e4).fit(z, y)
    # With 1000 rows neither prior nor averaging moves a probability by more than a hundredth.
    np.testing.assert_allclose(model.predict_proba(x), peer.predict_proba(z), atol=0.02)
    assert np.mean(model.predict(x) == peer.predict(z)) > 0.99
    np.testing.assert_allclose(np.exp(model.predict_log_proba(x)), model.predict_proba(x))
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
    assert model.coef_.shape == peer.coef_.shape
    np.testing.assert_allclose(model.coef_ * x.std(axis=0), peer.coef_, atol=0.1)
    assert np.isneginf(model.log_predictive(x[:1], ["unknown"]))[0]
    chosen = np.log(model.predict_proba(x))[np.arange(len(x)), np.searchsorted(classes, y)]
    np.testing.assert_allclose(model.log_predictive(x, y), chosen)


@pytest.mark.slow
def test_poisson_regression_predicts_as_scikit_learn_with_much_data():
    x, rng = rows(1000)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    y = rng.poisson(np.exp(1 + z @ [0.5, -0.3, 0.1]))
    model = BayesianPoissonRegression(n_particles=128, random_state=0).fit(x, y)
    peer = PoissonRegressor(alpha=1e-6).fit(z, y)
    mean, sd = model.predict(x, return_std=True)
    # Rates are known to about 3 %, and both estimates see the same data.
    np.testing.assert_allclose(mean, peer.predict(z), rtol=0.02)
    draws = model.sample_posterior()
    rates = np.exp(draws["intercept"][:, None] + draws["coef"] @ x.T)
    np.testing.assert_allclose(sd, np.sqrt(mean + rates.var(axis=0)), rtol=1e-6)
    logs = np.log(np.mean(poisson.pmf(y, rates), axis=0))
    np.testing.assert_allclose(model.log_predictive(x, y), logs, rtol=1e-6)
    with pytest.raises(ValueError, match="counts of at least 0"):
        model.fit(x, -y)


def test_in_pipelines_grid_searches_and_pickles():
    x, rng = rows(90)
    y = x[:, 0] + rng.normal(size=90) > 5
    model = BayesianLogisticRegression(n_particles=32, sampler=AFFINE, max_iter=20, random_state=0)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {"bayesianlogisticregression__prior_scale": [0.001, 1.0]},
        scoring="neg_log_loss",
        cv=3,
    ).fit(x, y)
    assert search.best_params_["bayesianlogisticregression__prior_scale"] == 1.0
    fitted = search.best_estimator_
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))
    assert again[-1].result_.status == fitted[-1].result_.status
    assert again[-1].result_.target is None
    # The same seed gives the same bits, another gives others.
    twice = [model.fit(x, y).predict_proba(x) for _ in range(2)]
    np.testing.assert_array_equal(*twice)
    assert not np.array_equal(model.set_params(random_state=1).fit(x, y).predict_proba(x), twice[0])


@pytest.mark.slow
def test_folds_of_nearly_the_same_length_share_their_programs():
    import jax

    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, _, **__: compiled.append(name) if "backend_compile" in name else None
    )
    x, rng = rows(105)
    y = x[:, 0] + rng.normal(size=105)
    model = BayesianLinearRegression(n_particles=32, sampler=AFFINE, max_iter=20, random_state=0)
    model.fit(x[:100], y[:100])
    before = len(compiled)
    for num in (97, 103, 104):
        model.fit(x[:num], y[:num])
    assert len(compiled) == before
    # Prior scales are data too.
    model.set_params(prior_scale=1.0).fit(x, y)
    before = len(compiled)
    model.set_params(prior_scale=2.0).fit(x, y)
    assert len(compiled) == before


class Restless(AbstractSampler):
    """Stays where it is, and says that it is not at rest."""

    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 5

    def init(self, key, cloud):
        return ()

    def propose(self, key, cloud, memory):
        return cloud.particles, ()

    def conclude(self, cloud, pending, arrived):
        return jnp.ones((), bool), (), Info.of(cloud, 0.0, status=Status.NOT_AT_REST)


def test_warnings_of_the_run_pass_through():
    x, rng = rows(70)
    sampler = parvi.Sequence(parvi.Stage("restless", Restless()))
    model = BayesianLinearRegression(n_particles=32, sampler=sampler, random_state=0)
    with pytest.warns(parvi.NotAtRestWarning):
        model.fit(x, rng.normal(size=70))
    assert model.result_.status == Status.NOT_AT_REST


def test_rows_are_merged_standardised_and_padded():
    x = np.array([[2.0, 1.0], [0.0, 1.0], [2.0, 1.0], [5.0, 1.0]])
    y, weights = np.array([1.0, 0.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0, 0.0])
    found = merged(x, y, weights)
    np.testing.assert_array_equal(found.x, [[0, 1], [2, 1]])
    np.testing.assert_array_equal(found.weights, [1, 3])
    scaling = scaling_of(found.x, found.weights)
    np.testing.assert_allclose(scaling.centre, [1.5, 1.0])
    # A constant column keeps its scale.
    np.testing.assert_allclose(scaling.scale, [np.sqrt(0.75), 1.0])
    filled = padded(found)
    assert len(filled.x) == 64
    assert filled.weights.sum() == 4
    assert all(num <= rounded(num) <= max(64, num * 1.125) for num in range(1, 5000))
    assert len({rounded(num) for num in range(1, 1025)}) <= 34


def test_contrasts_are_orthonormal_and_sum_to_zero():
    for num in (2, 3, 7):
        basis = contrasts(num)
        np.testing.assert_allclose(basis.T @ basis, np.eye(num - 1), atol=1e-12)
        np.testing.assert_allclose(basis.sum(axis=0), 0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"prior_scale": -1.0}, "prior_scale must be"), ({"noise_scale": 0.0}, "noise_scale must be")],
)
def test_wrong_settings_are_refused_in_words(settings, words):
    x, rng = rows(20)
    with pytest.raises(ValueError, match=words):
        BayesianLinearRegression(**settings).fit(x, rng.normal(size=20))
