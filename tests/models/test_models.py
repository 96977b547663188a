"""The paper's models, term by term against SciPy's densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from parvi.models import hierarchical, neural_network


def tree(rng, like):
    return jax.tree.map(lambda leaf: rng.normal(size=np.shape(leaf)), like)


def differences(target, expected, particles):
    """Differences between particles, ours and expected: constants drop out."""
    with jax.enable_x64(True):
        density = target.full()
        flat = [target.layout.unconstrain(jax.tree.map(jnp.asarray, p)) for p in particles]
        ours = np.array([float(density(jnp.asarray(x))) for x in flat])
    theirs = np.array([expected(p) for p in particles])
    return ours - ours[0], theirs - theirs[0]


def test_hierarchical_logistic_regression():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(30, 4)), rng.integers(0, 2, 30)
    target = hierarchical.hierarchical_logistic_regression(features, labels)
    particles = [
        {"weights": rng.normal(size=4), "alpha": np.asarray(rng.gamma(2.0))} for _ in range(5)
    ]

    def expected(p):
        w, alpha = p["weights"], float(p["alpha"])
        likelihood = scipy.special.log_expit((2 * labels - 1) * (features @ w)).sum()
        prior = scipy.stats.norm.logpdf(w, scale=alpha**-0.5).sum()
        # On the log scale, with its Jacobian.
        return likelihood + prior + scipy.stats.gamma.logpdf(alpha, 1.0, scale=100) + np.log(alpha)

    np.testing.assert_allclose(*differences(target, expected, particles), atol=1e-8)


@pytest.mark.parametrize("jacobian", [True, False])
def test_network_regression(jacobian):
    rng = np.random.default_rng(1)
    features, targets = rng.normal(size=(20, 3)), rng.normal(size=20)
    target = neural_network.network_regression(
        features, targets, hidden=4, rate=0.3, jacobian=jacobian
    )
    particles = [tree(rng, neural_network._like(3, 4, 1, noise=True)) for _ in range(5)]

    def expected(p):
        gamma, lam = np.exp(p["log_gamma"]), np.exp(p["log_lambda"])
        hidden = np.maximum(features @ p["w1"] + p["b1"], 0)
        prediction = (hidden @ p["w2"] + p["b2"])[:, 0]
        total = scipy.stats.norm.logpdf(targets, prediction, gamma**-0.5).sum()
        for name in ("w1", "b1", "w2", "b2"):
            total += scipy.stats.norm.logpdf(p[name], scale=lam**-0.5).sum()
        total += scipy.stats.gamma.logpdf([gamma, lam], 1.0, scale=1 / 0.3).sum()
        return total + jacobian * (p["log_gamma"] + p["log_lambda"])

    np.testing.assert_allclose(*differences(target, expected, particles), atol=1e-8)


def test_network_classification():
    rng = np.random.default_rng(2)
    features, labels = rng.normal(size=(20, 3)), rng.integers(0, 4, 20)
    target = neural_network.network_classification(features, labels, 4, hidden=5, prior_sd=2.0)
    particles = [tree(rng, neural_network._like(3, 5, 4, noise=False)) for _ in range(5)]

    def expected(p):
        logits = np.maximum(features @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]
        total = scipy.special.log_softmax(logits, axis=1)[np.arange(20), labels].sum()
        return total + sum(scipy.stats.norm.logpdf(v, scale=2.0).sum() for v in p.values())

    np.testing.assert_allclose(*differences(target, expected, particles), atol=1e-8)


def test_mini_batches_are_unbiased():
    rng = np.random.default_rng(3)
    features, targets = rng.normal(size=(40, 2)), rng.normal(size=40)
    target = neural_network.network_regression(features, targets, hidden=3, batch_size=10)
    with jax.enable_x64(True):
        x = jnp.asarray(rng.normal(size=target.layout.dim))
        keys = jax.random.split(jax.random.key(0), 4000)
        values = np.asarray(jax.jit(jax.vmap(lambda key: target.at(key)(x)))(keys))
        full = float(jax.jit(lambda x: target.full()(x))(x))
    assert values.mean() == pytest.approx(full, abs=4 * values.std() / 4000**0.5)
    assert values.std() > 0


def test_regression_scores():
    """Two particles with known predictions and precisions."""
    like = neural_network._like(1, 2, 1, noise=True)
    particles = jax.tree.map(lambda leaf: np.zeros((2, *np.shape(leaf))), like)
    particles["b2"][:, 0] = [0.0, 1.0]
    particles["log_gamma"][:] = np.log([4.0, 1.0])
    x, y = np.zeros((3, 1)), np.array([10.0, 12.0, 15.0])
    rmse, mixture = neural_network.regression_scores(particles, x, y, centre=10.0, scale=2.0)
    assert rmse == pytest.approx(np.sqrt(np.mean((y - 11.0) ** 2)), rel=1e-5)
    densities = [scipy.stats.norm.pdf(y, 10, 1.0), scipy.stats.norm.pdf(y, 12, 2.0)]
    assert mixture == pytest.approx(np.log(np.mean(densities, axis=0)).mean(), rel=1e-5)
    _, single = neural_network.regression_scores(particles, x, y, 10.0, 2.0, mixture=False)
    sd = (2.5 / 4) ** -0.5
    assert single == pytest.approx(scipy.stats.norm.logpdf(y, 11.0, sd).mean(), rel=1e-5)


def test_classification_scores():
    like = neural_network._like(1, 2, 3, noise=False)
    particles = jax.tree.map(lambda leaf: np.zeros((2, *np.shape(leaf))), like)
    particles["b2"][:] = np.log([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    accuracy, nll = neural_network.classification_scores(particles, np.zeros((4, 1)), [0, 0, 2, 1])
    assert accuracy == 0.5
    assert nll == pytest.approx(-np.mean(np.log([0.4, 0.4, 0.35, 0.25])), rel=1e-5)


def test_predictive_probabilities():
    weights = np.array([[0.0, 1.0], [2.0, -1.0]])
    features = np.array([[1.0, 1.0], [0.0, 3.0]])
    expected = scipy.special.expit(features @ weights.T).mean(axis=1)
    np.testing.assert_allclose(hierarchical.logistic_predictive(weights, features), expected)


def test_initial_networks_fit_their_target():
    target = neural_network.network_regression(np.zeros((5, 3)), np.zeros(5), hidden=4)
    start = neural_network.initial_networks(jax.random.key(0), 7, 3, 4)
    shapes = {name: value.shape[1:] for name, value in start.items()}
    assert shapes == {n: np.shape(v) for n, v in neural_network._like(3, 4, 1, True).items()}
    assert target.layout.dim == 3 * 4 + 4 + 4 + 1 + 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: neural_network.network_regression(np.zeros((5, 3)), np.zeros(4)),
        lambda: neural_network.network_classification(np.zeros((5, 3)), np.full(5, 10)),
        lambda: hierarchical.hierarchical_logistic_regression(np.zeros((5, 3)), np.full(5, 2)),
    ],
)
def test_wrong_data_is_refused(make):
    with pytest.raises(ValueError, match="got"):
        make()
