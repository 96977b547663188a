"""The sites of a NumPyro model. Needs NumPyro."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import init_to_uniform
from numpyro.primitives import Messenger

from parvi.models.extras import TRACING
from parvi.targets.flatten import Labels


class SubsampledPlate(NamedTuple):
    """A plate of which a step sees some rows."""

    plate: str
    num_rows: int
    batch_size: int


class Sites(NamedTuple):
    """What one trace of a model shows.

    Parameters
    ----------
    latent, free
        Shapes of the continuous latent sites, constrained and unconstrained.
    deterministic, discrete, improper
        Names of sites.
    observed
        The data of the observed sites.
    labels
        Plates are axes.
    nesting
        How deeply plates are nested.
    batch
        The plate of which a step sees some rows, if there is one.
    """

    latent: dict[str, tuple[int, ...]]
    free: dict[str, tuple[int, ...]]
    deterministic: list[str]
    discrete: list[str]
    improper: list[str]
    observed: dict[str, np.ndarray]
    labels: Labels
    nesting: int
    batch: SubsampledPlate | None


class DefaultKey(Messenger):
    """Gives a key to sites that ask for one, such as those of ``numpyro.prng_key``."""

    def process_message(self, msg):
        if msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = jax.random.key(0)


class WithRows(Messenger):
    """Tells a plate which of its rows to take."""

    def __init__(self, fn: Callable, plate: str, rows: Any):
        self.plate, self.rows = plate, rows
        super().__init__(fn)

    def process_message(self, msg):
        if msg["type"] == "plate" and msg["name"] == self.plate:
            msg["value"] = jnp.asarray(self.rows)
            msg["args"] = (msg["args"][0], len(self.rows))


def enumerated(model: Callable, nesting: int) -> Callable:
    """The model with its discrete sites summed out."""
    from numpyro.contrib.funsor import config_enumerate, enum

    return enum(config_enumerate(model), -nesting - 1)


def inspected(model: Callable, args: tuple, kwargs: dict) -> Sites:
    """The sites of a model; a ``ValueError`` says in words what cannot be sampled."""
    trace = _traced(model, args, kwargs)
    batch = _subsampled(trace)
    if batch is not None:
        trace = _traced(WithRows(model, batch.plate, np.arange(batch.num_rows)), args, kwargs)
    samples = {name: site for name, site in trace.items() if site["type"] == "sample"}
    latent = {name: site for name, site in samples.items() if not site["is_observed"]}
    discrete = [name for name, site in latent.items() if site["fn"].support.is_discrete]
    _check_discrete(latent, discrete, batch)
    continuous = {name: site for name, site in latent.items() if name not in discrete}
    for name, site in continuous.items():
        if isinstance(site["fn"], dist.Delta):
            raise ValueError(
                f"The site {name} has a delta distribution, which has no density: use "
                "numpyro.deterministic for it."
            )
    if not continuous:
        raise ValueError(
            f"The model has no continuous latent site; its sites are {sorted(trace)}. Give the "
            "model itself, with numpyro.sample for each parameter, and its arguments."
        )
    free = {name: _free_shape(site) for name, site in continuous.items()}
    observed = {
        name: np.asarray(site["value"])
        for name, site in samples.items()
        # Sites of numpyro.factor have no data.
        if site["is_observed"] and np.size(site["value"]) and not site["infer"].get("is_auxiliary")
    }
    plates = [f.dim for site in samples.values() for f in site["cond_indep_stack"]]
    return Sites(
        latent={name: np.shape(site["value"]) for name, site in continuous.items()},
        free=free,
        deterministic=[name for name, site in trace.items() if site["type"] == "deterministic"],
        discrete=discrete,
        improper=[n for n, s in continuous.items() if isinstance(s["fn"], dist.ImproperUniform)],
        observed=observed,
        labels=Labels({n: axes for n, site in trace.items() if any(axes := _axes(site))}, {}),
        nesting=-min(plates) if plates else 0,
        batch=batch,
    )


def _traced(model, args, kwargs) -> dict[str, Any]:
    # An improper prior cannot be drawn from, so values come from where NumPyro would start.
    seeded = handlers.seed(model, jax.random.key(0))
    begun = handlers.substitute(seeded, substitute_fn=init_to_uniform())
    try:
        with TRACING:
            return handlers.trace(begun).get_trace(*args, **kwargs)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise ValueError(
            f"The model cannot be called with these arguments: {error}. Give them as in "
            "parvi.from_numpyro(model, *args, **kwargs)."
        ) from error


def _free_shape(site) -> tuple[int, ...]:
    transform = biject_to(site["fn"].support)
    return jax.eval_shape(transform._inverse, site["value"]).shape


def _axes(site) -> tuple[str | None, ...]:
    """The names of the axes of a site's value: its plates, and the names that the user gave."""
    if site["type"] not in ("sample", "deterministic"):
        return ()
    shape = np.shape(site["value"])
    event = len(site["fn"].event_shape) if site["type"] == "sample" else 0
    axes: list[str | None] = [None] * len(shape)
    for frame in site["cond_indep_stack"]:
        axis = len(shape) - event + frame.dim
        if 0 <= axis < len(shape) and shape[axis] == frame.size:
            axes[axis] = frame.name
    own = site.get("infer", {}).get("event_dims", ())
    if len(own) == event:
        axes[len(shape) - event :] = list(own)
    return tuple(axes)


def _subsampled(trace) -> SubsampledPlate | None:
    """The plate of which a step sees some rows."""
    found = [
        SubsampledPlate(name, site["args"][0], site["args"][1])
        for name, site in trace.items()
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0])
    ]
    if len(found) > 1:
        raise ValueError(
            f"The plates {', '.join(one.plate for one in found)} all have a subsample_size, and "
            "mini-batches are of rows of one plate: leave it to one of them."
        )
    if not found:
        return None
    (batch,) = found
    for name, site in trace.items():
        inside = batch.plate in [frame.name for frame in site.get("cond_indep_stack", ())]
        if inside and site["type"] == "sample" and not site["is_observed"]:
            raise ValueError(
                f"The latent site {name} is inside the plate {batch.plate} with a subsample_size, "
                "so every step would have other parameters: leave subsample_size out, or "
                "sum the site out of the model."
            )
    return batch


def _check_discrete(latent, discrete, batch) -> None:
    for name in discrete:
        fn = latent[name]["fn"]
        if not fn.has_enumerate_support:
            raise ValueError(
                f"The discrete site {name} is a {type(fn).__name__}, whose values cannot be "
                "enumerated: sum it out of the model by hand."
            )
    if discrete and importlib.util.find_spec("funsor") is None:
        raise ImportError(
            f"Summing out the discrete sites {', '.join(discrete)} needs the package funsor, which "
            "is not installed: pip install 'parvi[numpyro]'."
        )
    if discrete and batch is not None:
        raise ValueError(
            f"The model has discrete sites ({', '.join(discrete)}) and a plate with a "
            "subsample_size: leave subsample_size out, or sum the sites out by hand."
        )
