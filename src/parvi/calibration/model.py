"""``Model``: a prior to draw from, a simulator of data, and the log density of both together."""

from collections.abc import Callable
from typing import Any

import equinox as eqx


class Model(eqx.Module):
    """A model as simulation-based calibration needs it: three functions, written with JAX.

    ``parvi.calibrate`` also takes any object with a method ``as_model()`` that returns one of
    these.

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
        As in ``parvi.Target``; ``log_density`` is that of the constrained values.

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


def as_model(model: Any) -> Model:
    """The model, or what an object's ``as_model()`` gives; what is neither is refused in words."""
    if isinstance(model, Model):
        return model
    made = model.as_model() if hasattr(model, "as_model") else None
    if not isinstance(made, Model):
        raise ValueError(
            "model must be a parvi.Model(prior, simulate, log_density), or an object whose "
            f"as_model() returns one, got a {type(model).__name__}."
        )
    return made
