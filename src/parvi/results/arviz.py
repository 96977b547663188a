"""Converts particles to ArviZ ``InferenceData``."""

import warnings

import jax
import numpy as np
from jaxtyping import PyTree


def inference_data(particles: PyTree, log_density: np.ndarray, facts: dict):
    """One chain of n draws, with the log density as ``lp`` in ``sample_stats``.

    r_hat and effective sample sizes mean nothing for such a chain and are not computed.
    """
    with warnings.catch_warnings():
        # ArviZ announces its next major version at import, which our version range excludes.
        warnings.simplefilter("ignore", FutureWarning)
        import arviz as az

    paths, _ = jax.tree_util.tree_flatten_with_path(particles)
    posterior = {
        jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf[None]
        for path, leaf in paths
    }
    attributes = {name: value for name, value in facts.items() if isinstance(value, str)}
    data = az.from_dict(posterior=posterior, sample_stats={"lp": log_density[None]})
    data.posterior.attrs.update(attributes, inference_library="parvi")
    return data
