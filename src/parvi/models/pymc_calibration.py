"""A PyMC model as simulation-based calibration needs it, on the unconstrained scale.

PyMC draws parameters and data together. The log density takes the data as an input of its graph, so
that all data sets share one compilation. A transform may admit only a part of what a distribution
draws, as ``ordered`` does for normal variables. Draws outside that part are drawn again, and the
rest have the density that PyMC gives the model.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parvi.calibration.model import HostModel

# A model is refused if less than this share of so many draws of its prior is in the support.
_LEAST_SHARE, _LEAST_TRIES = 1e-2, 1000
# Parameters that were unconstrained and constrained again are the same up to this.
_ROUNDING = 1e-6


def calibrated_model(adapter: Any) -> HostModel:
    """The simulator and the log density of a model without potentials and mini-batches."""
    model = adapter.model
    _refuse(model, adapter.batch is not None)
    return HostModel(_Draws(adapter), _density(adapter))


def _refuse(model, has_batch: bool) -> None:
    """Raise a ``ValueError`` if the model does not say how its parameters and data are drawn."""
    reasons = {
        "a mini-batch": has_batch,
        "a potential, which no draw from the prior follows,": bool(model.potentials),
    }
    for what, holds in reasons.items():
        if holds:
            raise ValueError(
                f"A PyMC model with {what} cannot be calibrated as it is: write "
                "parvi.Model(prior, simulate, log_density)."
            )
    if not model.observed_RVs:
        raise ValueError("The model has no observed variable, so there are no data to draw.")


class _Draws:
    """Draws of the unconstrained parameters, and of the data at each."""

    def __init__(self, adapter):
        self.adapter = adapter
        self.variables = [*adapter.model.free_RVs, *adapter.model.observed_RVs]

    def __call__(self, key, num):
        names = list(self.adapter.parameters)
        kept: list[tuple] = []
        found = tried = 0
        while found < num:
            # PyMC compiles its draws at every call, so a second call is for all the draws that are
            # left.
            size = num if tried == 0 else max(num, _LEAST_TRIES)
            arrays = self._once(jax.random.fold_in(key, tried), size)
            values = dict(zip(names, arrays, strict=False))
            flat, inside = self._unconstrained(values)
            kept.append((flat[inside], [array[inside] for array in arrays[len(names) :]]))
            found, tried = found + int(inside.sum()), tried + size
            if tried >= _LEAST_TRIES and found < _LEAST_SHARE * tried:
                raise ValueError(
                    f"Of {tried} draws of the prior, {found} are in the support that the model's "
                    "transforms have, so it cannot be drawn from: write "
                    "parvi.Model(prior, simulate, log_density)."
                )
        flat = np.concatenate([rows for rows, _ in kept])[:num]
        data = [np.concatenate(parts)[:num] for parts in zip(*(d for _, d in kept), strict=True)]
        observed = [v.name for v in self.adapter.model.observed_RVs]
        return _by_name(self.adapter, flat), dict(zip(observed, data, strict=True))

    def _once(self, key, num):
        import pymc

        from parvi.models.from_pymc import quietly, seed_of

        try:
            with quietly():
                return pymc.draw(self.variables, draws=num, random_seed=seed_of(key))
        except NotImplementedError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"PyMC cannot draw from the prior of the model ({reason}): give its variables "
                "proper priors that PyMC can draw from."
            ) from error

    def _unconstrained(self, values):
        """The flat vectors, and whether they give back the parameters of which they were made."""
        with np.errstate(invalid="ignore", divide="ignore"):
            flat = self.adapter.unconstrain(values)
        again = jax.jit(jax.vmap(self.adapter.constrain))(jnp.asarray(flat))
        inside = np.isfinite(flat).all(axis=1)
        for name, given in values.items():
            same = np.isclose(np.asarray(again[name]), given, rtol=_ROUNDING, atol=_ROUNDING)
            inside &= same.reshape(len(given), -1).all(axis=1)
        return flat, inside


def _by_name(adapter, flat):
    """The columns of unconstrained numbers under the names of the model's variables."""
    rows = jax.vmap(adapter.unpacked)(flat)
    return dict(zip(adapter.parameters, map(np.asarray, rows), strict=True))


def _density(adapter):
    """The log density of the unconstrained parameters and of data."""
    import pytensor.tensor as pt
    from pymc.logprob import transformed_conditional_logp

    from parvi.models.pymc_graphs import jaxified

    model = adapter.model
    given = {v: model.rvs_to_values[v].type() for v in model.observed_RVs}
    terms = transformed_conditional_logp(
        [*model.free_RVs, *model.observed_RVs],
        rvs_to_values=model.rvs_to_values | given,
        rvs_to_transforms=model.rvs_to_transforms,
    )
    total = pt.sum([pt.sum(term) for term in terms])
    function = jaxified([*model.value_vars, *given.values()], [total])
    free, seen = list(adapter.parameters), [v.name for v in model.observed_RVs]

    def log_density(parameters, data):
        values = [parameters[name] for name in free]
        return function(*values, *(data[name] for name in seen))[0]

    return log_density
