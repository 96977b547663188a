"""Converts particles, and what their model knows beside them, to ArviZ."""

import warnings
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from parvi.targets.dependent import AbstractModel
from parvi.targets.flatten import Labels


def groups_of(
    model: AbstractModel,
    particles: dict[str, np.ndarray],
    flat: Float[np.ndarray, "n d"],
    num_prior: int,
    key: Key[Array, ""],
    key_prior: Key[Array, ""],
) -> dict[str, dict[str, np.ndarray]]:
    """The groups that a model has beside its particles, without empty ones."""
    groups = {
        "log_likelihood": model.log_likelihood(particles, flat),
        "posterior_predictive": model.predict(key, particles, flat),
    }
    if num_prior:
        groups["prior"], groups["prior_predictive"] = model.prior(key_prior, num_prior)
    chains = {
        group: {name: np.asarray(array)[None] for name, array in content.items()}
        for group, content in groups.items()
    }
    observed = {name: np.asarray(array) for name, array in model.observed().items()}
    return {
        name: content for name, content in (chains | {"observed_data": observed}).items() if content
    }


def inference_data(
    particles: PyTree,
    log_density: np.ndarray,
    groups: dict[str, dict[str, np.ndarray]],
    labels: Labels,
    facts: dict,
) -> Any:
    """One chain of n draws, with the log density as ``lp`` in ``sample_stats``.

    r_hat and effective sample sizes mean nothing for such a chain and are not computed.
    """
    with warnings.catch_warnings():
        # ArviZ 0.23 announces version 1 at import, and works with both.
        warnings.simplefilter("ignore", FutureWarning)
        import arviz as az

    paths, _ = jax.tree_util.tree_flatten_with_path(particles)
    posterior = {
        jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf[None]
        for path, leaf in paths
    }
    attributes = {name: value for name, value in facts.items() if isinstance(value, str)}
    content = {"posterior": posterior, "sample_stats": {"lp": log_density[None]}, **groups}
    shapes = {
        name: array.shape if group == "observed_data" else array.shape[2:]
        for group, arrays in content.items()
        for name, array in arrays.items()
    }
    dims = _complete(labels, shapes)
    used = {axis for axes in dims.values() for axis in axes}
    coords = {axis: places for axis, places in labels.coords.items() if axis in used}
    # Both versions have the class, so it does not tell them apart.
    from_dict: Any = az.from_dict
    if int(az.__version__.split(".")[0]) >= 1:
        data = from_dict(content, dims=dims, coords=coords)
    else:
        data = from_dict(**content, dims=dims, coords=coords)
    data["posterior"].attrs.update(attributes, inference_library="parvi")
    return data


def _complete(labels: Labels, shapes: dict[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """A name for every axis of each array that has names for some of its axes."""
    return {
        name: [axis or f"{name}_dim_{i}" for i, axis in enumerate(axes)]
        for name, axes in labels.dims.items()
        if len(axes) == len(shapes.get(name, ()))
    }
