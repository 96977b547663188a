"""``Model``: a prior to draw from, a simulator of data, and the log density of both together."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Key, PyTree

from parvi.evaluation import quickly
from parvi.targets.recognise import recognised


class Model(eqx.Module):
    """A model as simulation-based calibration needs it: three functions, written with JAX.

    ``parvi.calibrate`` also takes models of other libraries, and any object with a method
    ``as_model()`` that returns one of these.

    Parameters
    ----------
    prior
        Function ``prior(key)`` that draws the parameters, an array or any pytree of arrays.
    simulate
        Function ``simulate(key, parameters)`` that draws a data set, a pytree of arrays whose
        shapes do not depend on the parameters.
    log_density
        Function ``log_density(parameters, data)`` that returns the log of the prior's density plus
        the log likelihood, up to a constant.
    constraints
        As in ``parvi.Target``; ``log_density`` is the density of the constrained values.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, parvi
    >>> model = parvi.Model(
    ...     prior=lambda key: jax.random.normal(key, (2,)),
    ...     simulate=lambda key, x: x + jax.random.normal(key, (10, 2)),
    ...     log_density=lambda x, y: -0.5 * (jnp.sum(x**2) + jnp.sum((y - x) ** 2)),
    ... )
    """

    prior: Callable
    simulate: Callable
    log_density: Callable
    constraints: Any = None

    def drawn(self, key: Key[Array, ""], num: int) -> tuple[PyTree, PyTree]:
        """Parameters from the prior and a data set for each, with a leading axis ``num``."""
        return _simulated(self, jax.random.split(key, num))


class HostModel(eqx.Module):
    """A model of a library that draws parameters and data by itself, on the host.

    Parameters
    ----------
    draw
        Function ``draw(key, num)`` that returns ``num`` parameters and their data sets.
    log_density, constraints
        As in ``Model``.
    """

    draw: Callable
    log_density: Callable
    constraints: Any = None

    def drawn(self, key: Key[Array, ""], num: int) -> tuple[PyTree, PyTree]:
        """As in ``Model``."""
        return self.draw(key, num)


@quickly
def _simulated(model: Model, keys: Key[Array, " num"]) -> tuple[PyTree[Array], PyTree[Array]]:
    """Parameters from the prior, and a data set for each."""

    def one(key):
        key_prior, key_data = jax.random.split(key)
        truth = model.prior(key_prior)
        return truth, model.simulate(key_data, truth)

    return jax.vmap(one)(keys)


def as_model(model: Any) -> Model | HostModel:
    """The model, or what an object's ``as_model()`` gives; else a ``ValueError``."""
    if isinstance(model, (Model, HostModel)):
        return model
    known = model if hasattr(model, "as_model") else recognised(model)
    made = None if known is None else known.as_model()
    if not isinstance(made, (Model, HostModel)):
        raise ValueError(
            "model must be a parvi.Model(prior, simulate, log_density), a model of another "
            "library, or an object whose as_model() returns a parvi.Model, got a "
            f"{type(model).__name__}."
        )
    return made
