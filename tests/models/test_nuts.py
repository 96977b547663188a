"""Posterior means by parvi beside those of NUTS by the library that the model comes from."""

import warnings

import numpy as np
import pytest

import parvi
from models.fronts import (
    COUNTY,
    EFFECTS,
    ERRORS,
    GROUND,
    NUMPYRO,
    POINTS,
    PYMC,
    RADON,
    mixture,
    pymc_mixture,
    pymc_radon,
    pymc_schools,
    radon,
    schools,
)

pytestmark = pytest.mark.slow
ARGUMENTS = {
    "schools": (schools, (EFFECTS, ERRORS)),
    "radon": (radon, (COUNTY, GROUND, RADON)),
    "mixture": (mixture, (POINTS,)),
}
MODELS = {"schools": pymc_schools, "radon": pymc_radon, "mixture": pymc_mixture}


def by_numpyro(name):
    import jax
    from numpyro.infer import MCMC, NUTS

    model, args = ARGUMENTS[name]
    kernel = NUTS(model, target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_warmup=1000, num_samples=10_000, progress_bar=False)
    mcmc.run(jax.random.key(0), *args)
    return {site: np.asarray(draws) for site, draws in mcmc.get_samples().items()}


def by_pymc(name):
    import pymc as pm

    with MODELS[name](), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pm.sample(
            10_000, chains=1, cores=1, target_accept=0.95, random_seed=0, progressbar=False
        )
    posterior = found["posterior"]
    return {n: v.values.reshape(-1, *v.shape[2:]) for n, v in posterior.data_vars.items()}


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
@pytest.mark.parametrize(
    ("front", "nuts"), [(NUMPYRO, by_numpyro), (PYMC, by_pymc)], ids=["numpyro", "pymc"]
)
def test_means_are_those_of_nuts(front, nuts, name):
    result = parvi.sample(front[name](), num_particles=1024)
    draws = nuts(name)
    for site, particles in result.particles.items():
        mean, sd = draws[site].mean(axis=0), draws[site].std(axis=0)
        # 10 000 draws of NUTS are worth some thousands, whose means err by 0.02.
        assert np.abs((particles.mean(axis=0) - mean) / sd).max() < 0.1, site
