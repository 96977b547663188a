"""Bayesian neural networks with one hidden ReLU layer, mini-batched.

Regression has y ~ N(f(x), 1/gamma) and weights ~ N(0, 1/lambda); both precisions have Gamma priors
and are sampled on the log scale (Hernandez-Lobato and Adams 2015; Liu and Wang 2016).
Classification has labels ~ softmax(f(x)) and weights ~ N(0, sd^2).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Key, PyTree

from parvi.targets.minibatch import MiniBatch

_WEIGHTS = ("w1", "b1", "w2", "b2")


def network(particle: PyTree[Array], features: Float[Array, "rows d"]) -> Float[Array, "rows out"]:
    """f(x) of one particle at every row."""
    hidden = jax.nn.relu(features @ particle["w1"] + particle["b1"])
    return hidden @ particle["w2"] + particle["b2"]


def initial_networks(
    key: Key[Array, ""], num: int, dim: int, hidden: int, outputs: int = 1, noise: bool = True
) -> PyTree[Array]:
    """Particles to start from: weights of variance 1 / fan-in, biases 0, precisions 1."""
    first, second = jax.random.split(key)
    particles = {
        "w1": jax.random.normal(first, (num, dim, hidden)) * (dim + 1) ** -0.5,
        "b1": jnp.zeros((num, hidden)),
        "w2": jax.random.normal(second, (num, hidden, outputs)) * (hidden + 1) ** -0.5,
        "b2": jnp.zeros((num, outputs)),
    }
    if noise:
        particles |= {"log_gamma": jnp.zeros(num), "log_lambda": jnp.zeros(num)}
    return particles


def network_regression(
    features: Float[np.ndarray, "rows d"],
    targets: Float[np.ndarray, " rows"],
    hidden: int = 50,
    batch_size: int = 100,
    shape: float = 1.0,
    rate: float = 0.1,
    jacobian: bool = True,
) -> MiniBatch:
    """The posterior of a network for regression, with its two log precisions.

    Parameters
    ----------
    features, targets
        The data; standardise both, unless you have a reason not to.
    hidden
        Number of units in the hidden layer.
    batch_size
        Number of rows per step; at most all of them are used.
    shape, rate
        Shape and rate of the Gamma priors of gamma and lambda.
    jacobian
        False leaves out the Jacobian of the log scale, as the PFG paper's code does. The prior is
        then that of Gamma(shape - 1, rate).
    """
    features, targets = np.asarray(features), np.asarray(targets)
    if features.ndim != 2 or targets.shape != features.shape[:1]:
        raise ValueError(
            f"Expected features of shape (rows, d) and targets of shape (rows,), got "
            f"{features.shape} and {targets.shape}."
        )
    return MiniBatch(
        _regression_prior(shape if jacobian else shape - 1, rate),
        _regression_likelihood,
        (features, targets),
        min(batch_size, len(features)),
        like=_like(features.shape[1], hidden, 1, noise=True),
    )


@functools.lru_cache
def _regression_prior(power, rate):
    """One function for all data sets, so that they share their programs."""

    def log_gamma_prior(log_precision):
        return power * log_precision - rate * jnp.exp(log_precision)

    def log_prior(particle):
        squares, count = _size(particle)
        spread = 0.5 * count * particle["log_lambda"]
        spread = spread - 0.5 * jnp.exp(particle["log_lambda"]) * squares
        priors = log_gamma_prior(particle["log_gamma"]) + log_gamma_prior(particle["log_lambda"])
        return spread + priors

    return log_prior


def _regression_likelihood(particle, rows):
    x, y = (part.astype(particle["w1"].dtype) for part in rows)
    residuals = y - network(particle, x)[:, 0]
    log_gamma = particle["log_gamma"]
    return 0.5 * (log_gamma - jnp.log(2 * jnp.pi) - jnp.exp(log_gamma) * residuals**2)


def network_classification(
    features: Float[np.ndarray, "rows d"],
    labels: Int[np.ndarray, " rows"],
    num_classes: int = 10,
    hidden: int = 128,
    batch_size: int = 100,
    prior_sd: float = 1.0,
) -> MiniBatch:
    """The posterior of a network for classification; labels are 0 to ``num_classes`` - 1."""
    features, labels = np.asarray(features), np.asarray(labels)
    known = (labels == labels.astype(np.int32)) & (labels >= 0) & (labels < num_classes)
    if features.ndim != 2 or labels.shape != features.shape[:1] or not known.all():
        raise ValueError(
            f"Expected features of shape (rows, d) and labels 0 to {num_classes - 1} of shape "
            f"(rows,), got {features.shape} and {labels.shape}, from {labels.min()} to "
            f"{labels.max()}."
        )
    return MiniBatch(
        _classification_prior(prior_sd),
        _classification_likelihood,
        (features, labels.astype(np.int32)),
        min(batch_size, len(features)),
        like=_like(features.shape[1], hidden, num_classes, noise=False),
    )


@functools.lru_cache
def _classification_prior(prior_sd):
    return lambda particle: -0.5 * _size(particle)[0] / prior_sd**2


def _classification_likelihood(particle, rows):
    x, y = rows
    logits = network(particle, x.astype(particle["w1"].dtype))
    return jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)[:, 0]


def regression_scores(
    particles: PyTree[ArrayLike],
    features: Float[ArrayLike, "rows d"],
    targets: Float[ArrayLike, " rows"],
    centre: float = 0.0,
    scale: float = 1.0,
    mixture: bool = True,
) -> tuple[float, float]:
    """RMSE and mean log-likelihood on the targets' own scale: y = centre + scale f(x).

    With ``mixture=False`` the log-likelihood is that of the mean prediction with the mean
    precision, as in the PFG paper's code, instead of that of the predictive mixture.
    """
    predictions = centre + scale * _outputs(particles, features)[:, :, 0]
    targets = np.asarray(targets)
    precisions = np.exp(np.asarray(particles["log_gamma"])) / scale**2
    mean = predictions.mean(axis=0)
    rmse = float(np.sqrt(np.mean((targets - mean) ** 2)))
    if not mixture:
        precision = precisions.mean()
        logs = 0.5 * (np.log(precision / (2 * np.pi)) - precision * (targets - mean) ** 2)
        return rmse, float(logs.mean())
    squares = precisions[:, None] * (targets - predictions) ** 2
    logs = 0.5 * (np.log(precisions / (2 * np.pi))[:, None] - squares)
    return rmse, float(np.mean(_log_mean_exp(logs)))


def classification_scores(
    particles: PyTree[ArrayLike],
    features: Float[ArrayLike, "rows d"],
    labels: Int[ArrayLike, " rows"],
) -> tuple[float, float]:
    """Accuracy and mean negative log-likelihood of the predictive mixture."""
    labels = np.asarray(labels).astype(int)
    logits = _outputs(particles, features)
    top = logits.max(axis=-1, keepdims=True)
    log_sums = top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    logs = _log_mean_exp(logits - log_sums)
    chosen = np.take_along_axis(logs, labels[:, None], axis=1)
    return float(np.mean(logs.argmax(axis=1) == labels)), float(-np.mean(chosen))


def _outputs(particles, features) -> np.ndarray:
    """(particles, rows, outputs), one particle at a time so that the hidden layer fits."""
    features = jnp.asarray(features, jnp.asarray(particles["w1"]).dtype)
    weights = {name: jnp.asarray(particles[name]) for name in _WEIGHTS}
    return np.asarray(jax.lax.map(lambda particle: network(particle, features), weights))


def _log_mean_exp(logs):
    """The log of the mean over the particles, the first axis."""
    top = logs.max(axis=0)
    return top + np.log(np.mean(np.exp(logs - top), axis=0))


def _size(particle):
    squares = sum(jnp.sum(particle[name] ** 2) for name in _WEIGHTS)
    return squares, sum(particle[name].size for name in _WEIGHTS)


def _like(dim, hidden, outputs, noise):
    shapes = {"w1": (dim, hidden), "b1": hidden, "w2": (hidden, outputs), "b2": outputs}
    if noise:
        shapes |= {"log_gamma": (), "log_lambda": ()}
    return {name: np.zeros(shape) for name, shape in shapes.items()}
