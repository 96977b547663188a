"""scikit-learn's own checks of its conventions, for every estimator."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

import parvi
from parvi import estimators

# Few particles and steps of affine maps: conventions do not depend on how good the particles are,
# and compiling is most of the time. A limit on the steps ends without a warning.
_SETTINGS = {"n_particles": 16, "max_iter": 5, "sampler": parvi.pfg(num_features=0)}
MODELS = [
    estimators.BayesianLinearRegression(**_SETTINGS),
    estimators.BayesianPoissonRegression(**_SETTINGS),
    estimators.BayesianLogisticRegression(**_SETTINGS),
    estimators.BayesianMLPRegressor((8,), **_SETTINGS),
    estimators.BayesianMLPClassifier((8,), **_SETTINGS),
]
# Those that find what is most easily broken, and that fit data of few shapes.
QUICK = {
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_sample_weight_equivalence_on_dense_data",
    "check_estimators_unfitted",
}

FITS = {"check_sample_weight_equivalence_on_dense_data"}


def checks(quick):
    for model in MODELS:
        for made, check in estimator_checks_generator(model, mark=None):
            name = check.func.__name__
            # Two fits of a network take seconds.
            dear = "MLP" in type(model).__name__ and name in FITS
            if quick == (name in QUICK and not dear):
                yield pytest.param(made, check, id=f"{type(model).__name__}-{name}")


@pytest.mark.parametrize(("model", "check"), list(checks(True)))
def test_quick_checks(model, check):
    check(model)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "check"), list(checks(False)))
def test_all_other_checks(model, check):
    check(model)


def test_the_module_is_imported_when_it_is_used():
    assert "estimators" in dir(parvi)
    assert parvi.estimators is estimators
    with pytest.raises(AttributeError, match="no attribute 'estimator'"):
        _ = parvi.estimator
