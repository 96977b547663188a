"""A NumPyro model as simulation-based calibration needs it, on the unconstrained scale.

Ranks do not change under an increasing transform of a scalar, and where there is none the
unconstrained numbers are as good as any. So the parameters are the unconstrained values of the
sites.
"""

from typing import Any

import jax

from parvi.calibration.model import Model
from parvi.models.extras import TRACING


def calibrated_model(model: Any, args: tuple, kwargs: dict, sites: Any) -> Model:
    """Prior, simulator and log density of a model without discrete sites and mini-batches."""
    from numpyro import handlers
    from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn

    if sites.discrete or sites.batch is not None or sites.improper:
        what = "discrete sites" if sites.discrete else "a mini-batch"
        what = "an improper prior" if sites.improper else what
        raise ValueError(f"A NumPyro model with {what} cannot be calibrated as it is.")
    if not sites.observed:
        raise ValueError("The model has no observed site, so there are no data to draw.")
    free, seen = tuple(sites.free), tuple(sites.observed)
    unobserved = handlers.uncondition(model)

    def drawn(key, model):
        with TRACING:
            return handlers.trace(handlers.seed(model, key)).get_trace(*args, **kwargs)

    def prior(key):
        trace = drawn(key, unobserved)
        values = {name: trace[name]["value"] for name in sites.latent}
        with TRACING:
            found = unconstrain_fn(handlers.seed(model, jax.random.key(0)), args, kwargs, values)
        return {name: found[name] for name in free}

    def simulate(key, parameters):
        with TRACING:
            values = constrain_fn(handlers.seed(model, jax.random.key(0)), args, kwargs, parameters)
        trace = drawn(key, handlers.substitute(unobserved, values))
        return {name: trace[name]["value"] for name in seen}

    def log_density(parameters, data):
        known = handlers.condition(unobserved, data)
        with TRACING:
            return -potential_energy(known, args, kwargs, parameters)

    return Model(prior, simulate, log_density)
