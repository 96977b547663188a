"""Bayesian neural networks: every particle is a network, and predictions average over all of them.

Layer l computes tau_l (z W / sqrt(fan-in) + c) of its inputs z, with N(0, 1) priors of W and c, and
log tau_l ~ N(0, 1): the scales of the layers are inferred with the weights. If the prior were one
of the weights themselves, with tau_l as their standard deviation, the density would be highest
where tau_l and all weights vanish, and descents would run into that point.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parvi.estimators.linear import AbstractGaussianRegressor, gaussian_logs
from parvi.estimators.logistic import AbstractClassifier, label_logs
from parvi.estimators.priors import log_noise_prior

# Each network is a hill of its own, and takes about 1900 gradients.
_NUM_PARTICLES = 50
_ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    "relu": (jax.nn.relu, lambda a: np.maximum(a, 0)),
    "tanh": (jnp.tanh, np.tanh),
}
# The least noise to which a network can be fitted, in standard deviations of the outcomes.
_FLOOR = 1e-2


class _Network:
    """What both kinds of network share."""

    _dtype = np.float32
    hidden_layer_sizes: Any
    activation: Any
    result_: Any
    _networks: dict[str, np.ndarray]

    def _layers(self, num_inputs: int, num_outputs: int) -> list[int]:
        """The widths of all layers, inputs and outputs included."""
        hidden = np.atleast_1d(np.asarray(self.hidden_layer_sizes))
        if hidden.ndim != 1 or hidden.dtype.kind not in "iu" or not (hidden > 0).all():
            raise ValueError(
                "hidden_layer_sizes must be positive ints, one for each hidden layer, got "
                f"{self.hidden_layer_sizes!r}."
            )
        if self.activation not in _ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {sorted(_ACTIVATIONS)}, got {self.activation!r}."
            )
        return [num_inputs, *hidden.tolist(), num_outputs]

    def _num_particles(self, like):
        return _NUM_PARTICLES

    def _network_model(self, layers, noise, rng):
        """A particle, and ``init(num)``: weights like the prior's, small biases, scales near 1."""
        shapes: dict[str, tuple[int, ...]] = {}
        widths, middles = {}, {}
        for number, (fan_in, fan_out) in enumerate(itertools.pairwise(layers)):
            shapes[f"w{number}"], widths[f"w{number}"] = (fan_in, fan_out), 1.0
            shapes[f"b{number}"], widths[f"b{number}"] = (fan_out,), 0.3
            shapes[f"log_scale{number}"], widths[f"log_scale{number}"] = (), 0.1
        if noise:
            shapes["log_noise"], widths["log_noise"], middles["log_noise"] = (), 0.1, -1.0

        def init(num):
            return {
                name: middles.get(name, 0.0) + widths[name] * rng.normal(size=(num, *shape))
                for name, shape in shapes.items()
            }

        like = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        return like, init

    def _learn(self, prior, rng):
        particles = {k: part.astype(np.float64) for k, part in self.result_.particles.items()}
        self._networks = {}
        for number in range(_depth(particles)):
            scale, weights = np.exp(particles[f"log_scale{number}"]), particles[f"w{number}"]
            fan_in = weights.shape[1]
            self._networks[f"w{number}"] = scale[:, None, None] * weights * fan_in**-0.5
            self._networks[f"b{number}"] = scale[:, None] * particles[f"b{number}"]

    def _forward(self, z):
        """The outputs of every particle at every row, on the scale of the run."""
        activate, values = _ACTIVATIONS[self.activation][1], z
        for number in range(_depth(self._networks)):
            values = values if number == 0 else activate(values)
            weights, biases = self._networks[f"w{number}"], self._networks[f"b{number}"]
            values = values @ weights + biases[:, None, :]
        return values

    def _parameters(self):
        """Weights and biases of every layer, for standardised inputs."""
        return dict(self._networks)

    def _width(self):
        widest = max(self._networks[name].shape[-1] for name in self._networks if name[0] == "b")
        return int(widest)


class BayesianMLPRegressor(_Network, AbstractGaussianRegressor):
    """A Bayesian neural network for regression.

    Inputs and outcomes are standardised first. Every particle is a network with a noise and with
    scales of its layers' priors. With more weights than particles, as is usual, the default sends
    each network to a hill of its own and lets it make Hamiltonian transitions there. Other
    hills are never visited, and the run may end with a ``NotAtRestWarning``
    (docs/decisions/0017-networks.md).

    Parameters
    ----------
    hidden_layer_sizes
        The number of units of every hidden layer.
    activation
        "relu" or "tanh".
    n_particles
        Number of networks; None for 50.
    batch_size, sampler, max_iter, random_state, verbose
        As in ``BayesianLinearRegression``.

    Attributes
    ----------
    result_
        The ``parvi.Result`` of the run, for standardised data.
    n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn.
    """

    _floor = _FLOOR

    def __init__(
        self,
        hidden_layer_sizes=(50,),
        activation="relu",
        *,
        n_particles=None,
        batch_size=None,
        sampler=None,
        max_iter=None,
        random_state=None,
        verbose=False,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_particles = n_particles
        self.batch_size = batch_size
        self.sampler = sampler
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def _model(self, rows, rng):
        layers = self._layers(rows.x.shape[1], 1)
        like, init = self._network_model(layers, True, rng)
        return _log_prior, _REGRESSION[self.activation], like, init

    def _outputs(self, z):
        return self._y_scaling.centre + self._y_scaling.scale * self._forward(z)[:, :, 0]


class BayesianMLPClassifier(_Network, AbstractClassifier):
    """A Bayesian neural network for classification, with a softmax over its outputs.

    It is like ``BayesianMLPRegressor``, without a noise.

    Parameters
    ----------
    hidden_layer_sizes, activation, n_particles
        As in ``BayesianMLPRegressor``.
    batch_size, sampler, max_iter, random_state, verbose
        As in ``BayesianMLPRegressor``.

    Attributes
    ----------
    classes_
        The classes, sorted.
    result_
        The ``parvi.Result`` of the run, for standardised inputs.
    n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn.
    """

    def __init__(
        self,
        hidden_layer_sizes=(50,),
        activation="relu",
        *,
        n_particles=None,
        batch_size=None,
        sampler=None,
        max_iter=None,
        random_state=None,
        verbose=False,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_particles = n_particles
        self.batch_size = batch_size
        self.sampler = sampler
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def _model(self, rows, rng):
        layers = self._layers(rows.x.shape[1], len(self.classes_))
        like, init = self._network_model(layers, False, rng)
        return _log_prior, _CLASSIFICATION[self.activation], like, init

    def _outputs(self, z):
        return self._forward(z)

    def _width(self):
        return max(_Network._width(self), len(self.classes_))


def _log_prior(particle):
    squares = sum(jnp.sum(part**2) for name, part in particle.items() if name != "log_noise")
    return -0.5 * squares + log_noise_prior(particle)


def _network(particle, x, activate):
    values = x
    for number in range(_depth(particle)):
        values = values if number == 0 else activate(values)
        weights, biases = particle[f"w{number}"], particle[f"b{number}"]
        scale = jnp.exp(particle[f"log_scale{number}"])
        values = scale * (values @ weights * weights.shape[0] ** -0.5 + biases)
    return values


def _depth(particle: dict) -> int:
    return sum(name.startswith("b") for name in particle)


def _regression(activate):
    def log_likelihood(particle, rows):
        noise = jnp.exp(particle["log_noise"]) + _FLOOR
        return gaussian_logs(_network(particle, rows.x, activate)[:, 0], rows, noise)

    return log_likelihood


def _classification(activate):
    def log_likelihood(particle, rows):
        return rows.weights * label_logs(_network(particle, rows.x, activate), rows.y)

    return log_likelihood


# One function for all data sets, so that data of the same shape share their programs.
_REGRESSION = {name: _regression(pair[0]) for name, pair in _ACTIVATIONS.items()}
_CLASSIFICATION = {name: _classification(pair[0]) for name, pair in _ACTIVATIONS.items()}
