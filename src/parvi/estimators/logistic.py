"""Bayesian logistic regression, binary and multinomial, with a prior scale that is inferred.

    P(y = k | x) is proportional to exp(b_k + w_k.x),  sum over k of w_k = 0

The softmax does not see what all classes have in common, so weights are sampled in an orthonormal
basis of the contrasts between classes. Their prior N(0, tau^2) there is the projection of
independent N(0, tau^2) for every class; no class is a reference.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from parvi.estimators.base import AbstractBayesianEstimator, log_mean_exp
from parvi.estimators.linear import linear_part
from parvi.estimators.priors import linear_model

# Standard deviation of log odds in the middle of the prior: probabilities from 0.01 to 0.99.
_SIZE = 2.5
_INTERCEPT_SD = 5.0


class AbstractClassifier(ClassifierMixin, AbstractBayesianEstimator):
    """Probabilities of the predictive mixture."""

    _y_is_numeric = False

    def _encoded(self, y):
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_[0]}; a classifier needs rows of at least "
                "two classes."
            )
        return numbers.astype(np.float64)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows k"]:
        """The probability of every class at every row, averaged over the particles."""

        def averaged(outputs, _):
            probabilities = np.exp(_log_softmax(outputs)).mean(axis=0)
            return probabilities / probabilities.sum(axis=1, keepdims=True)

        return self._averaged(X, averaged)

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "rows k"]:
        """The log of ``predict_proba``, without underflow."""
        return self._averaged(X, lambda outputs, _: log_mean_exp(_log_softmax(outputs)))

    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest probability at every row."""
        rows = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[rows]

    def log_predictive(self, X: Any, y: Any) -> np.ndarray:
        """The log of the predictive probability of every row's class.

        It is minus infinity for a class that was absent when the model was fitted.
        """
        y = column_or_1d(np.asarray(y))
        check_consistent_length(X, y)
        logs = self.predict_log_proba(X)
        rows = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        chosen = np.take_along_axis(logs, rows[:, None], axis=1)[:, 0]
        return np.where(self.classes_[rows] == y, chosen, -np.inf)

    def _width(self):
        return len(self.classes_)


def _log_softmax(outputs: Float[np.ndarray, "n rows k"]) -> Float[np.ndarray, "n rows k"]:
    centred = outputs - outputs.max(axis=-1, keepdims=True)
    return centred - np.log(np.exp(centred).sum(axis=-1, keepdims=True))


class BayesianLogisticRegression(AbstractClassifier):
    """Logistic regression whose weights and prior scale are sampled together.

    Inputs are standardised first. Weights have the prior N(0, tau^2), and tau is inferred, whereas
    scikit-learn's ``LogisticRegression`` has to be given its ``C``. With more than two classes the
    model is multinomial.

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
    classes_
        The classes, sorted.
    coef_, intercept_
        Posterior means, on the scale of the data: one row for two classes, else one for each.
    result_
        The ``parvi.Result`` of the run, for standardised inputs.
    n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from parvi.estimators import BayesianLogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = BayesianLogisticRegression(random_state=0).fit(X, X[:, 0] > 0)
    >>> model.predict([[2.0, 0.0], [-2.0, 0.0]])
    array([ True, False])
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

    def decision_function(self, X: Any) -> np.ndarray:
        """The log odds of the predictive distribution; for more classes, log probabilities."""
        logs = self.predict_log_proba(X)
        return logs[:, 1] - logs[:, 0] if len(self.classes_) == 2 else logs

    def _model(self, rows, rng):
        num = len(self.classes_)
        outputs = () if num == 2 else (num - 1,)
        prior, like, init = linear_model(
            rows.x.shape[1],
            outputs,
            _SIZE,
            _INTERCEPT_SD,
            self.fit_intercept,
            self.prior_scale,
            False,
            rng,
        )
        return prior, _binary if num == 2 else _multinomial, like, init

    def _learn(self, prior, rng):
        particles = {k: part.astype(np.float64) for k, part in self.result_.particles.items()}
        weights = particles["weights"]
        num, outputs = len(weights), weights.shape[2:]
        intercepts = particles.get("intercept", np.zeros((num, *outputs)))
        if len(self.classes_) == 2:
            self._weights, self._intercepts = weights[:, None, :], intercepts[:, None]
        else:
            basis = contrasts(len(self.classes_))
            self._weights = np.einsum("ndj,kj->nkd", weights, basis)
            self._intercepts = intercepts @ basis.T
        self._scales = prior.scales(particles["weights"], rng)
        drawn = self._parameters()
        self.coef_, self.intercept_ = drawn["coef"].mean(axis=0), drawn["intercept"].mean(axis=0)

    def _outputs(self, z):
        outputs = np.einsum("nkd,rd->nrk", self._weights, z, optimize=True)
        outputs = outputs + self._intercepts[:, None, :]
        if len(self.classes_) == 2:
            outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=2)
        return outputs

    def _parameters(self):
        coef = self._weights / self._scaling.scale
        drawn = {"coef": coef, "intercept": self._intercepts - coef @ self._scaling.centre}
        return drawn | {"prior_scale": self._scales}


def contrasts(num: int) -> Float[np.ndarray, "k k-1"]:
    """Orthonormal columns that sum to zero (Helmert's)."""
    basis = np.zeros((num, num - 1))
    for j in range(1, num):
        basis[:j, j - 1], basis[j, j - 1] = 1.0, -float(j)
    return basis / np.linalg.norm(basis, axis=0)


def _binary(particle, rows):
    logits = linear_part(particle, rows.x)
    return rows.weights * (rows.y * logits - jax.nn.softplus(logits))


def _multinomial(particle, rows):
    outputs = linear_part(particle, rows.x)
    basis = jnp.asarray(contrasts(outputs.shape[-1] + 1), outputs.dtype)
    return rows.weights * label_logs(outputs @ basis.T, rows.y)


def label_logs(outputs: Any, labels: Any) -> Any:
    """The log probability of every row's class, whose number is given."""
    chosen = jnp.take_along_axis(outputs, labels.astype(jnp.int32)[:, None], axis=1)[:, 0]
    return chosen - jax.nn.logsumexp(outputs, axis=1)
