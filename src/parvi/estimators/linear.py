"""Bayesian linear regression: y ~ N(b + w.x, sigma^2), with priors whose scales are inferred."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_consistent_length, column_or_1d

from parvi.estimators.base import AbstractBayesianEstimator, log_mean_exp
from parvi.estimators.priors import linear_model
from parvi.estimators.rows import scaling_of

# The least noise, in standard deviations of the outcomes: without noise a posterior is a point.
FLOOR = 1e-3
_LOG_2_PI = np.log(2 * np.pi)


class AbstractRegressor(RegressorMixin, AbstractBayesianEstimator):
    """Means and standard deviations of the predictive mixture."""

    def _encoded(self, y):
        return y.astype(np.float64)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of the predictive distribution at every row.

        Parameters
        ----------
        X
            Inputs, an array of shape (rows, features).
        return_std
            Whether its standard deviation is returned too: that of the mean over the particles and
            that of the noise together.
        """
        mean, sd = self._averaged(X, lambda outputs, _: self._moments(outputs))
        return (mean, sd) if return_std else mean

    def log_predictive(self, X: Any, y: Any) -> np.ndarray:
        """The log of the predictive density at every row's outcome, averaged over the particles."""
        y = column_or_1d(np.asarray(y, np.float64))
        check_consistent_length(X, y)
        return self._averaged(X, lambda outputs, y: log_mean_exp(self._logs(outputs, y)), y)

    @abc.abstractmethod
    def _moments(self, outputs: Float[np.ndarray, "n rows"]) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the standard deviation of every row's outcome, over the particles."""

    @abc.abstractmethod
    def _logs(
        self, outputs: Float[np.ndarray, "n rows"], y: Float[np.ndarray, " rows"]
    ) -> Float[np.ndarray, "n rows"]:
        """The log density of every row's outcome, by particle."""


class AbstractGaussianRegressor(AbstractRegressor):
    """Outcomes with Gaussian noise, standardised before the run."""

    _floor = FLOOR

    def _standardised(self, rows):
        centred = getattr(self, "fit_intercept", True)
        self._y_scaling = scaling_of(rows.y, rows.weights, centred)
        return super()._standardised(rows)._replace(y=self._y_scaling(rows.y))

    def _noise(self) -> np.ndarray:
        """The noise of every particle, on the outcomes' own scale."""
        fixed = getattr(self, "noise_scale", None)
        if fixed is not None:
            return np.full(self.result_.num_particles, float(fixed))
        log_noise = self.result_.particles["log_noise"].astype(np.float64)
        return self._y_scaling.scale * (np.exp(log_noise) + self._floor)

    def _moments(self, outputs):
        variance = outputs.var(axis=0) + np.mean(self._noise() ** 2)
        return outputs.mean(axis=0), np.sqrt(variance)

    def _logs(self, outputs, y):
        noise = self._noise()[:, None]
        return -0.5 * (((y - outputs) / noise) ** 2 + _LOG_2_PI) - np.log(noise)


class BayesianLinearRegression(AbstractGaussianRegressor):
    """Linear regression whose weights, noise and prior scale are sampled together.

    Inputs and outcomes are standardised first. Weights have the prior N(0, tau^2), and tau and the
    noise are inferred, so that nothing has to be chosen.

    Parameters
    ----------
    fit_intercept
        Whether to add a constant; without it, data are not centred either.
    prior_scale
        tau, the prior standard deviation of the weights of standardised inputs and outcomes; None
        infers it.
    noise_scale
        sigma, on the outcomes' own scale; None infers it, down to a thousandth of their standard
        deviation.
    n_particles
        Number of particles; None for 256, or two per dimension if that is 257 to 512.
    batch_size
        Rows in a step if all of them are too expensive, see ``parvi.MiniBatch``; None for 1024.
    sampler
        A sampler; None for ``parvi.pfg()``.
    max_iter
        Largest number of steps; None for the sampler's own.
    random_state
        An int, a NumPy ``RandomState`` or None.
    verbose
        Whether a bar is shown on a terminal.

    Attributes
    ----------
    coef_, intercept_
        Posterior means, on the scale of the data.
    result_
        The ``parvi.Result`` of the run, for standardised data.
    n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from parvi.estimators import BayesianLinearRegression
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = X @ [1.0, -2.0] + 0.1 * np.random.default_rng(1).normal(size=100)
    >>> model = BayesianLinearRegression(random_state=0).fit(X, y)
    >>> np.round(model.coef_, 1)
    array([ 1., -2.])
    >>> mean, sd = model.predict(X, return_std=True)
    >>> bool(0.08 < sd.mean() < 0.13)
    True
    """

    def __init__(
        self,
        *,
        fit_intercept=True,
        prior_scale=None,
        noise_scale=None,
        n_particles=None,
        batch_size=None,
        sampler=None,
        max_iter=None,
        random_state=None,
        verbose=False,
    ):
        self.fit_intercept = fit_intercept
        self.prior_scale = prior_scale
        self.noise_scale = noise_scale
        self.n_particles = n_particles
        self.batch_size = batch_size
        self.sampler = sampler
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def _model(self, rows, rng):
        if self.noise_scale is not None and not self.noise_scale > 0:
            raise ValueError(f"noise_scale must be None or positive, got {self.noise_scale!r}.")
        inferred = self.noise_scale is None
        prior, like, init = linear_model(
            rows.x.shape[1],
            (),
            1.0,
            # Weakly informative beside outcomes of standard deviation 1.
            10.0,
            self.fit_intercept,
            self.prior_scale,
            inferred,
            rng,
        )
        if inferred:
            return prior, _log_likelihood, like, init
        noise = float(self.noise_scale) / float(self._y_scaling.scale)
        return prior, _FixedNoise(np.asarray(noise)), like, init

    def _learn(self, prior, rng):
        particles = {k: part.astype(np.float64) for k, part in self.result_.particles.items()}
        self._weights = particles["weights"]
        self._intercepts = particles.get("intercept", np.zeros(len(self._weights)))
        self._scales = prior.scales(particles["weights"], rng)
        drawn = self._parameters()
        self.coef_ = drawn["coef"].mean(axis=0)
        self.intercept_ = float(drawn["intercept"].mean())

    def _outputs(self, z):
        outputs = self._intercepts[:, None] + self._weights @ z.T
        return self._y_scaling.centre + self._y_scaling.scale * outputs

    def _parameters(self):
        ratio = self._y_scaling.scale / self._scaling.scale
        coef = self._weights * ratio
        intercept = self._y_scaling.centre + self._y_scaling.scale * self._intercepts
        drawn = {"coef": coef, "intercept": intercept - coef @ self._scaling.centre}
        drawn["noise_scale"] = self._noise()
        return drawn | {"prior_scale": self._scales}


def linear_part(particle: dict, x: Any) -> Any:
    """b + w.x, of one particle at every row."""
    value = x @ particle["weights"]
    return value + particle["intercept"] if "intercept" in particle else value


def gaussian_logs(outputs: Any, rows: Any, noise: Any) -> Any:
    """The weighted log likelihood of every row."""
    logs = -0.5 * (((rows.y - outputs) / noise) ** 2 + _LOG_2_PI) - jnp.log(noise)
    return rows.weights * logs


def _log_likelihood(particle, rows):
    noise = jnp.exp(particle["log_noise"]) + FLOOR
    return gaussian_logs(linear_part(particle, rows.x), rows, noise)


class _FixedNoise(eqx.Module):
    """The log likelihood with a known noise, which is an array so that it is not a constant."""

    noise: Any

    def __call__(self, particle, rows):
        return gaussian_logs(linear_part(particle, rows.x), rows, self.noise)
