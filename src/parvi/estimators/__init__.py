"""Bayesian regressors and classifiers with scikit-learn's conventions; they need scikit-learn."""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "parvi.estimators needs scikit-learn: pip install 'parvi[estimators]'."
    ) from error

from parvi.estimators.linear import BayesianLinearRegression as BayesianLinearRegression
from parvi.estimators.logistic import BayesianLogisticRegression as BayesianLogisticRegression
from parvi.estimators.networks import BayesianMLPClassifier as BayesianMLPClassifier
from parvi.estimators.networks import BayesianMLPRegressor as BayesianMLPRegressor
from parvi.estimators.poisson import BayesianPoissonRegression as BayesianPoissonRegression
