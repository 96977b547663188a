"""The same models in NumPyro, in PyMC and by hand, with their parameters in the same order."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

import parvi

_rng = np.random.default_rng(0)
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
NUM_COUNTIES, NUM_HOMES = 12, 60
COUNTY = np.concatenate([np.arange(NUM_COUNTIES), _rng.integers(NUM_COUNTIES, size=48)])
GROUND = _rng.integers(2, size=NUM_HOMES).astype(float)
_levels = 1.5 + 0.4 * _rng.normal(size=NUM_COUNTIES)
RADON = _levels[COUNTY] - 0.7 * GROUND + 0.6 * _rng.normal(size=NUM_HOMES)
POINTS = np.concatenate([_rng.normal(-2, 0.7, 30), _rng.normal(1.5, 0.7, 50)])


def schools(y, errors):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(y)):
        t = numpyro.sample("t", dist.Normal())
        theta = numpyro.deterministic("theta", mu + tau * t)
        numpyro.sample("y", dist.Normal(theta, errors), obs=y)


def radon(county, ground, y):
    mean = numpyro.sample("mean_county", dist.Normal(0, 5))
    slope = numpyro.sample("slope", dist.Normal(0, 5))
    sd_county = numpyro.sample("sd_county", dist.HalfNormal(1))
    sd_y = numpyro.sample("sd_y", dist.HalfNormal(1))
    with numpyro.plate("county", NUM_COUNTIES):
        z = numpyro.sample("z", dist.Normal())
        intercept = numpyro.deterministic("intercept", mean + sd_county * z)
    with numpyro.plate("home", len(y)):
        numpyro.sample("y", dist.Normal(intercept[county] + slope * ground, sd_y), obs=y)


def mixture(y):
    weight = numpyro.sample("weight", dist.Beta(2, 2))
    ordered = dist.ImproperUniform(dist.constraints.ordered_vector, (), (2,))
    means = numpyro.sample("means", ordered)
    numpyro.factor("prior", dist.Normal(0, 3).log_prob(means).sum())
    sd = numpyro.sample("sd", dist.HalfNormal(1))
    shares = jnp.stack([weight, 1 - weight])
    with numpyro.plate("row", len(y)):
        k = numpyro.sample("k", dist.Categorical(shares), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(means[k], sd), obs=y)


def pymc_schools():
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        t = pm.Normal("t", dims="school")
        theta = pm.Deterministic("theta", mu + tau * t, dims="school")
        pm.Normal("y", theta, ERRORS, observed=EFFECTS, dims="school")
    return model


def pymc_radon():
    with pm.Model(coords={"county": np.arange(NUM_COUNTIES), "home": np.arange(60)}) as model:
        mean = pm.Normal("mean_county", 0, 5)
        slope = pm.Normal("slope", 0, 5)
        sd_county = pm.HalfNormal("sd_county", 1)
        sd_y = pm.HalfNormal("sd_y", 1)
        z = pm.Normal("z", dims="county")
        intercept = pm.Deterministic("intercept", mean + sd_county * z, dims="county")
        pm.Normal("y", intercept[COUNTY] + slope * GROUND, sd_y, observed=RADON, dims="home")
    return model


def pymc_mixture():
    with pm.Model() as model:
        weight = pm.Beta("weight", 2, 2)
        ordered = pm.distributions.transforms.ordered
        means = pm.Normal("means", 0, 3, shape=2, transform=ordered, initval=[-1, 1])
        sd = pm.HalfNormal("sd", 1)
        shares = pm.math.stack([weight, 1 - weight])
        pm.NormalMixture("y", w=shares, mu=means, sigma=sd, observed=POINTS)
    return model


def schools_by_hand(u):
    mu, log_tau, t = u[0], u[1], u[2:]
    tau = jnp.exp(log_tau)
    prior = norm.logpdf(mu, 0, 5) - jnp.log1p((tau / 5) ** 2) + log_tau + norm.logpdf(t).sum()
    return prior + norm.logpdf(EFFECTS, mu + tau * t, ERRORS).sum()


def radon_by_hand(u):
    (mean, slope), logs, z = u[:2], u[2:4], u[4:]
    sd_county, sd_y = jnp.exp(logs)
    prior = norm.logpdf(u[:2], 0, 5).sum() + (norm.logpdf(jnp.exp(logs)) + logs).sum()
    expected = (mean + sd_county * z)[COUNTY] + slope * GROUND
    return prior + norm.logpdf(z).sum() + norm.logpdf(RADON, expected, sd_y).sum()


def mixture_by_hand(u):
    weight, sd = 1 / (1 + jnp.exp(-u[0])), jnp.exp(u[3])
    means = jnp.stack([u[1], u[1] + jnp.exp(u[2])])
    prior = 2 * jnp.log(weight) + 2 * jnp.log1p(-weight) + norm.logpdf(means, 0, 3).sum() + u[2]
    prior = prior + norm.logpdf(sd) + u[3]
    shares = jnp.log(jnp.stack([weight, 1 - weight]))
    return prior + logsumexp(norm.logpdf(POINTS[:, None], means, sd) + shares, axis=1).sum()


NUMPYRO = {
    "schools": lambda: parvi.from_numpyro(schools, EFFECTS, errors=ERRORS),
    "radon": lambda: parvi.from_numpyro(radon, COUNTY, GROUND, RADON),
    "mixture": lambda: parvi.from_numpyro(mixture, POINTS),
}
PYMC = {
    "schools": lambda: parvi.from_pymc(pymc_schools()),
    "radon": lambda: parvi.from_pymc(pymc_radon()),
    "mixture": lambda: parvi.from_pymc(pymc_mixture()),
}
BY_HAND = {"schools": schools_by_hand, "radon": radon_by_hand, "mixture": mixture_by_hand}
STAN_DATA = {
    "schools": {"J": 8, "y": EFFECTS.tolist(), "sigma": ERRORS.tolist()},
    "radon": {
        "N": NUM_HOMES,
        "C": NUM_COUNTIES,
        "county": (COUNTY + 1).tolist(),
        "ground": GROUND.tolist(),
        "y": RADON.tolist(),
    },
}


def agree(one, other, dim):
    """Log densities up to a constant and scores, at points as far out as starts are."""
    points = np.random.default_rng(1).uniform(-2, 2, size=(20, dim))
    with jax.enable_x64(True):
        found = [jax.jit(jax.vmap(jax.value_and_grad(each)))(points) for each in (one, other)]
    (values, scores), (others, other_scores) = jax.tree_util.tree_map(np.asarray, found)
    differences = values - others
    # Sums of a hundred terms of size up to 1e4 in float64: rounding is about 1e-12 of their sum.
    assert np.ptp(differences) < 1e-10 * np.abs(values).max()
    np.testing.assert_allclose(scores, other_scores, rtol=1e-9, atol=1e-8)
