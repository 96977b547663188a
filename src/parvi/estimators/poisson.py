"""Bayesian Poisson regression: y ~ Poisson(exp(b + w.x)), with a prior scale that is inferred."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln

from parvi.estimators.linear import AbstractRegressor, linear_part
from parvi.estimators.priors import linear_model

# Larger log rates are cut to this one, whose exp is finite in float64.
_MOST = 500.0


class BayesianPoissonRegression(AbstractRegressor):
    """Poisson regression with a log link, whose weights and prior scale are sampled together.

    Inputs are standardised first, and the logarithm of the mean outcome is added to the intercept.
    Weights have the prior N(0, tau^2), and tau is inferred.

    Parameters
    ----------
    fit_intercept
        Whether to add a constant; without it, inputs are not centred either.
    prior_scale
        tau, the prior standard deviation of the weights of standardised inputs; None infers it.
    n_particles, batch_size, sampler, max_iter, random_state, verbose
        As in ``BayesianLinearRegression``.

    Attributes
    ----------
    coef_, intercept_
        Posterior means, on the scale of the data.
    result_
        The ``parvi.Result`` of the run, for standardised inputs.
    n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from parvi.estimators import BayesianPoissonRegression
    >>> X = np.random.default_rng(0).normal(size=(400, 1))
    >>> y = np.random.default_rng(1).poisson(np.exp(1 + 0.5 * X[:, 0]))
    >>> model = BayesianPoissonRegression(random_state=0).fit(X, y)
    >>> bool(abs(model.coef_[0] - 0.5) < 0.1)
    True
    """

    def __init__(
        self,
        *,
        fit_intercept=True,
        prior_scale=None,
        n_particles=None,
        batch_size=None,
        sampler=None,
        max_iter=None,
        random_state=None,
        verbose=False,
    ):
        self.fit_intercept = fit_intercept
        self.prior_scale = prior_scale
        self.n_particles = n_particles
        self.batch_size = batch_size
        self.sampler = sampler
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _encoded(self, y):
        y = super()._encoded(y)
        if (y < 0).any():
            raise ValueError(
                f"y must be counts of at least 0 for a Poisson regression, got {y.min():g}; for "
                "other outcomes take BayesianLinearRegression."
            )
        return y

    def _model(self, rows, rng):
        mean = (rows.weights @ rows.y + 0.5) / rows.weights.sum()
        self._offset = float(np.log(mean)) if self.fit_intercept else 0.0
        prior, like, init = linear_model(
            rows.x.shape[1],
            (),
            1.0,
            # Wide beside log rates of standard deviation 1 around the offset.
            3.0,
            self.fit_intercept,
            self.prior_scale,
            False,
            rng,
        )
        return prior, _LogLikelihood(np.asarray(self._offset)), like, init

    def _learn(self, prior, rng):
        particles = {k: part.astype(np.float64) for k, part in self.result_.particles.items()}
        self._weights = particles["weights"]
        self._intercepts = particles.get("intercept", np.zeros(len(self._weights))) + self._offset
        self._scales = prior.scales(particles["weights"], rng)
        drawn = self._parameters()
        self.coef_ = drawn["coef"].mean(axis=0)
        self.intercept_ = float(drawn["intercept"].mean())

    def _outputs(self, z):
        return np.minimum(self._intercepts[:, None] + self._weights @ z.T, _MOST)

    def _moments(self, outputs):
        rates = np.exp(outputs)
        mean = rates.mean(axis=0)
        return mean, np.sqrt(rates.var(axis=0) + mean)

    def _logs(self, outputs, y):
        return y * outputs - np.exp(outputs) - gammaln(y + 1)

    def _parameters(self):
        coef = self._weights / self._scaling.scale
        drawn = {"coef": coef, "intercept": self._intercepts - coef @ self._scaling.centre}
        return drawn | {"prior_scale": self._scales}


class _LogLikelihood(eqx.Module):
    """The weighted log likelihood of every row; the offset is an array, not a constant."""

    offset: Any

    def __call__(self, particle, rows):
        log_rates = jnp.minimum(self.offset + linear_part(particle, rows.x), _MOST)
        constants = jax.scipy.special.gammaln(rows.y + 1)
        return rows.weights * (rows.y * log_rates - jnp.exp(log_rates) - constants)
