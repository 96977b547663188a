"""Linear PFG is exact on a Gaussian, however badly conditioned."""

import numpy as np
import pytest

import parvi
from oracle import exact
from parvi.samplers.default import affine
from parvi.stopping import exactly

DIM, NUM, CONDITION = 50, 200, 1e4

SAMPLERS = {
    "affine default": affine(),
    "newton": parvi.Flow(
        parvi.fields.PFG(
            parvi.functions.Linear(), parvi.preconditioners.Hessian(), parvi.fields.Ridge()
        ),
        parvi.steppers.Constant(0.5),
    ),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_exact_moments_within_60_steps(name):
    rng = np.random.default_rng(0)
    mean = rng.normal(size=DIM)
    variances = np.geomspace(CONDITION**-0.5, CONDITION**0.5, DIM)
    covariance = exact.covariance_of(rng, variances)
    start = rng.normal(size=(NUM, DIM))
    target = parvi.targets.gaussian(mean, covariance)
    result = parvi.sample(target, start, sampler=exactly(SAMPLERS[name], 60))
    assert result.num_steps == 60

    # In the target's own units, where every direction counts the same.
    own_mean, own_covariance = exact.moments(result.particles)
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    relative = whiten @ own_covariance @ whiten.T
    assert np.max(np.abs(np.linalg.eigvalsh(relative) - 1)) < 1e-4
    assert np.linalg.norm(whiten @ (own_mean - mean)) < 1e-4
