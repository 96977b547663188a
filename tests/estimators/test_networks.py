"""Networks: their forward pass, their prior, and that they learn what lines cannot."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import parvi
from parvi.estimators import BayesianMLPClassifier, BayesianMLPRegressor
from parvi.estimators.networks import _CLASSIFICATION, _REGRESSION, _log_prior
from parvi.estimators.rows import Rows
from parvi.samplers.descend import Descend

# Descents alone: all particles find a network that fits, without transitions.
DESCEND = parvi.Sequence(parvi.Stage("descend", Descend()))


def test_a_regressor_learns_a_bent_function_and_its_noise():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (120, 1))
    y = 10 + 5 * np.abs(x[:, 0]) + 0.5 * rng.normal(size=120)
    model = BayesianMLPRegressor((12,), n_particles=16, sampler=DESCEND, random_state=0).fit(x, y)
    at = np.linspace(-1.8, 1.8, 50)[:, None]
    mean, sd = model.predict(at, return_std=True)
    # A line is off by up to 5; the noise is known to a tenth or so.
    assert np.max(np.abs(mean - (10 + 5 * np.abs(at[:, 0])))) < 0.8
    assert 0.3 < sd.mean() < 0.8
    assert model.score(x, y) > 0.9
    # Predictions average over the particles, whose own outputs they are.
    draws = model.sample_posterior()
    assert draws["w0"].shape == (16, 1, 12)
    z = (x - x.mean()) / x.std()
    hidden = np.maximum(z[None] @ draws["w0"] + draws["b0"][:, None], 0)
    outputs = (hidden @ draws["w1"] + draws["b1"][:, None])[..., 0]
    np.testing.assert_allclose(model.predict(x), y.mean() + y.std() * outputs.mean(axis=0), 1e-5)


@pytest.mark.first_quick
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_classifier_learns_what_no_line_separates(activation):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = np.where(x[:, 0] * x[:, 1] > 0, "same", "other")
    model = BayesianMLPClassifier(
        (12,), activation, n_particles=8, sampler=DESCEND, random_state=0
    ).fit(x, y)
    assert model.score(x, y) > 0.95
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
    assert (model.predict([[2.0, 2.0], [-2.0, 2.0]]) == ["same", "other"]).all()


def test_log_densities_are_those_of_the_model():
    """With all scales at 1: weights of variance 1 / fan-in, and a noise of exp(-1) + 0.01."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (3, 4), "b0": (4,), "w1": (4, 5), "b1": (5,), "w2": (5, 2), "b2": (2,)}
    particle = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    particle |= {f"log_scale{number}": np.zeros(()) for number in range(3)}
    squares = sum(np.sum(part**2) for part in particle.values())
    np.testing.assert_allclose(_log_prior(particle), -0.5 * squares, rtol=1e-5)
    x = rng.normal(size=(6, 3))
    hidden = np.tanh(x @ particle["w0"] / 3**0.5 + particle["b0"])
    hidden = np.tanh(hidden @ particle["w1"] / 2 + particle["b1"])
    outputs = hidden @ particle["w2"] / 5**0.5 + particle["b2"]
    labels, weights = np.array([0.0, 1, 1, 0, 1, 0]), np.array([1.0, 2, 0, 1, 1, 1])
    rows = Rows(*map(jnp.asarray, (x, labels, weights)))
    found = _CLASSIFICATION["tanh"](particle, rows)
    logs = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
    expected = weights * logs[np.arange(6), labels.astype(int)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    particle["log_noise"] = np.asarray(-1.0)
    found = _REGRESSION["tanh"](particle, rows)
    expected = weights * norm.logpdf(labels, outputs[:, 0], np.exp(-1) + 0.01)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    scaled = particle | {"log_scale2": np.asarray(np.log(2.0))}
    doubled = weights * norm.logpdf(labels, 2 * outputs[:, 0], np.exp(-1) + 0.01)
    np.testing.assert_allclose(_REGRESSION["tanh"](scaled, rows), doubled, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be positive ints"),
        ({"activation": "sin"}, "activation must be one of"),
    ],
)
def test_wrong_settings_are_refused_in_words(settings, words):
    with pytest.raises(ValueError, match=words):
        BayesianMLPRegressor(**settings).fit(np.ones((4, 2)), np.arange(4.0))
