"""A Stan model as simulation-based calibration needs it, on the unconstrained scale.

Stan's language has no simulator for a model block, so the user gives one. Every data set has a
model of its own, made from the same compiled library. The log density takes the number of the data
set beside the particle, and finds the model by that number, so all data sets share one
compilation.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parvi.calibration.model import HostModel
from parvi.models.stan_calls import Calls


def calibrated_model(adapter: Any, simulate: Callable | None) -> HostModel:
    """The user's simulator, and the log density of the Stan model for what it drew."""
    if simulate is None:
        raise ValueError(
            "A Stan model does not say how its parameters and data are drawn. Give "
            "parvi.from_stan(..., simulate=simulate), with a function simulate(rng) that draws "
            "the parameters from the prior and the data at them, and returns two dicts."
        )
    models = _Models()
    calls = Calls(models)

    def log_density(parameters, number):
        values = [parameters[name] for name in adapter.flat_names]
        flat = jnp.stack([*values, number.astype(values[0].dtype)])
        return calls.log_density(flat)

    return HostModel(_Draws(adapter, simulate, models), log_density)


class _Models:
    """Models of many data sets; the last number of a row says which of them is called."""

    def __init__(self):
        self.each = []

    def log_density(self, row):
        return self.each[int(row[-1])].log_density(row[:-1])

    def log_density_gradient(self, row, out):
        value, _ = self.each[int(row[-1])].log_density_gradient(row[:-1], out=out[:-1])
        out[-1] = 0.0
        return value, out

    def log_density_hessian_vector_product(self, row, vector, out):
        model = self.each[int(row[-1])]
        value, _ = model.log_density_hessian_vector_product(row[:-1], vector[:-1], out=out[:-1])
        out[-1] = 0.0
        return value, out


class _Draws:
    """Unconstrained parameters from the user's simulator, and the numbers of their data sets."""

    def __init__(self, adapter, simulate, models):
        self.adapter, self.simulate, self.models = adapter, simulate, models

    def __call__(self, key, num):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
        first, rows = len(self.models.each), []
        for _ in range(num):
            parameters, data = self._drawn(rng)
            model = self._model(data)
            rows.append(self._unconstrained(model, parameters))
            self.models.each.append(model)
        columns = np.stack(rows, axis=1)
        truths = dict(zip(self.adapter.flat_names, columns, strict=True))
        return truths, np.arange(first, first + num)

    def _drawn(self, rng):
        found = self.simulate(rng)
        if not (isinstance(found, tuple) and [type(part) for part in found] == [dict, dict]):
            raise ValueError(
                "simulate(rng) must return two dicts, the parameters and the data that it drew, "
                f"got {type(found).__name__}."
            )
        wanted = self.adapter.parameters
        if set(found[0]) != set(wanted):
            raise ValueError(
                f"simulate(rng) must draw the parameters {', '.join(wanted)}, got "
                f"{', '.join(found[0]) or 'none'}."
            )
        return found

    def _model(self, data):
        """The model with these data in place of its own; those that were not drawn are kept."""
        stan = self.adapter.stan
        own = self.adapter.data()
        unknown = sorted(set(data) - set(own))
        if unknown:
            raise ValueError(
                f"simulate(rng) drew {', '.join(unknown)}, and the model's data are "
                f"{', '.join(own)}."
            )
        plain = {name: np.asarray(value).tolist() for name, value in data.items()}
        return type(stan)(stan.lib_path, json.dumps(own | plain), warn=False)

    def _unconstrained(self, model, parameters):
        numbers = np.empty(model.param_num())
        for name, shape in self.adapter.parameters.items():
            value = np.asarray(parameters[name], float)
            if value.shape != tuple(shape):
                raise ValueError(
                    f"simulate(rng) drew {name} of shape {value.shape}, and the model's has the "
                    f"shape {tuple(shape)}."
                )
            numbers[self.adapter.places[name]] = value
        try:
            return model.param_unconstrain(numbers)
        except RuntimeError as error:
            raise ValueError(
                f"simulate(rng) drew parameters outside their support: {str(error).strip()}"
            ) from error
