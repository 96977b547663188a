"""Every ready-made sampler, with its defaults, on five targets, in both precisions."""

import numpy as np
import pytest

import parvi
from parvi.models.logistic import logistic_regression
from parvi.samplers.catalogue import READY
from parvi.targets import zoo


def logistic():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(100, 10))
    labels = rng.random(100) < 1 / (1 + np.exp(-features @ rng.normal(size=10)))
    return logistic_regression(features, labels)


TARGETS = {
    "gaussian": zoo.rotated_gaussian(10, 1.0).target,
    "ill-conditioned": zoo.rotated_gaussian(10, 1e4).target,
    "banana": zoo.banana().target,
    "mixture": zoo.four_modes().target,
    "logistic": logistic(),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", READY)
def test_defaults_run(name, target, dtype):
    density = TARGETS[target]
    start = np.random.default_rng(1).normal(size=(100, density.layout.dim)).astype(dtype)
    result = parvi.sample(density, start, sampler=READY[name](), key=0)
    assert np.isfinite(result.particles).all()
    assert result.particles.dtype == dtype
    assert not result.status.failed
    assert not np.array_equal(result.particles, start)
