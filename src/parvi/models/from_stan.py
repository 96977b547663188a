"""Models of Stan, through BridgeStan, as targets."""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parvi.models.extras import imported
from parvi.models.stan_calls import Calls, on_host
from parvi.targets.dependent import AbstractModel
from parvi.targets.flatten import Labels
from parvi.targets.target import Target


def from_stan(
    model: Any,
    data: Any = None,
    predictive: Mapping[str, str] | None = None,
    log_likelihood: Mapping[str, str] | None = None,
    dims: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    simulate: Callable | None = None,
) -> Target:
    """The target of a Stan model, which ``parvi.sample`` takes without ``init``.

    Particles are dicts of its parameters, transformed parameters and generated quantities. Starts
    are uniform on (-2, 2), unconstrained, as Stan's own. Runs are in float64, as Stan is. Log
    densities and gradients are Stan's, called row by row on the host.

    Parameters
    ----------
    model
        A ``.stan`` file, which BridgeStan compiles, a compiled library, or a
        ``bridgestan.StanModel``.
    data
        The data: a dict, a JSON file or JSON text. A ``StanModel`` has its own.
    predictive
        Which generated quantity predicts which data: ``{"y": "y_rep"}``.
    log_likelihood
        Which generated quantity is the log likelihood of which data: ``{"y": "log_lik"}``.
    dims, coords
        Names of axes, by parameter, and of the places along an axis.
    simulate
        Function ``simulate(rng)`` of a NumPy generator that draws parameters from the prior and
        data at them, two dicts. Only ``parvi.calibrate`` needs it. Data that it leaves out stay
        as they are.
    """
    bridgestan = imported("bridgestan", "stan")
    if not isinstance(model, bridgestan.StanModel):
        model = _built(bridgestan, str(model), data)
    elif data is not None:
        raise ValueError("A bridgestan.StanModel has its data already: leave data out.")
    labels = Labels({n: tuple(axes) for n, axes in (dims or {}).items()}, dict(coords or {}))
    groups = dict(predictive or {}), dict(log_likelihood or {})
    adapter = StanModel(model, *groups, labels, simulate)
    return Target(adapter.log_density, like=adapter.layout())


def _built(bridgestan: Any, path: str, data: Any) -> Any:
    """The compiled model with its data, or Stan's own words about what is wrong with them."""
    try:
        return bridgestan.StanModel(path, data)
    except RuntimeError as error:
        said = str(error)
        if "stderr:" in said:
            # The program's output is in it; the compiler's message comes last.
            said = said.split("stderr:")[-1].split("make: ***")[0].strip()
            raise ValueError(f"{path} does not compile.\n{said}") from error
        raise ValueError(
            f"Stan refuses {path} with these data. {said.rstrip()}{_absent(said, data)}"
        ) from error


def _absent(said: str, data: Any) -> str:
    """That the data lack the variable of a message; Stan says that it has other dimensions."""
    variable = re.search(r"variable name=(\w+)", said)
    if variable is None or not isinstance(data, Mapping) or variable[1] in data:
        return ""
    there = f"; they have {', '.join(data)}" if data else ""
    return f" The data have no {variable[1]}{there}."


class StanModel(AbstractModel):
    """A Stan model with its data."""

    front = "Stan"
    is_wide = True

    def __init__(self, stan, predictive, log_likelihood, labels, simulate):
        self.simulate = simulate
        self.stan, self.predictive, self.pointwise = stan, predictive, log_likelihood
        self.labels = labels
        self.calls = Calls(stan)
        self.flat_names = [_zero_based(name) for name in stan.param_unc_names()]
        if not self.flat_names:
            raise ValueError("The Stan model has no parameters: there is nothing to sample.")
        self.places = _places(stan.param_names(include_tp=True, include_gq=True))
        own = _places(stan.param_names())
        self.parameters = {name: where.shape for name, where in own.items()}
        groups = {*predictive.values(), *log_likelihood.values()}
        unknown = sorted(groups - set(self.places))
        if unknown:
            raise ValueError(
                f"The model has no {', '.join(unknown)}; predictive= and log_likelihood= map names "
                f"of data to generated quantities, and the model has {', '.join(self.places)}."
            )
        absent = sorted({*predictive, *log_likelihood} - set(self.data()))
        if absent:
            raise ValueError(
                f"The data have no {', '.join(absent)}; predictive= and log_likelihood= map names "
                f"of data to generated quantities, and the data are {', '.join(self.data())}."
            )
        for name, axes in labels.dims.items():
            shape = self.places[name].shape if name in self.places else None
            sizes = [
                len(labels.coords.get(axis, range(n)))
                for axis, n in zip(axes, shape or (), strict=False)
            ]
            if shape is None or len(axes) != len(shape) or sizes != list(shape):
                has = "is not in the model" if shape is None else f"has the shape {shape}"
                raise ValueError(
                    f"dims= gives {name} the axes {axes}, and {name} {has}: give an axis for each "
                    "dimension, with as many coords= as it has places."
                )
        self.derived = {
            name: where.shape
            for name, where in self.places.items()
            if name not in own and name not in groups and where.size
        }

    def log_density(self, flat):
        return self.calls.log_density(flat)

    def constrain(self, flat):
        num = self.stan.param_num(include_tp=True, include_gq=True)
        found = on_host(self._all, flat, (num,))
        shapes = self.parameters | self.derived
        return {name: found[self.places[name]] for name in shapes}

    def unconstrain(self, values):
        num = self.stan.param_num()
        flat = np.full((len(next(iter(values.values()))), len(self.flat_names)), np.nan)
        for i, row in enumerate(flat):
            numbers = np.empty(num)
            for name in self.parameters:
                numbers[self.places[name]] = values[name][i]
            try:
                row[:] = self.stan.param_unconstrain(numbers)
            except RuntimeError:
                # It is outside the support; the message names the first such particle.
                continue
        return flat

    def observed(self):
        data = self.data()
        return {name: np.asarray(data[name]) for name in {**self.predictive, **self.pointwise}}

    def log_likelihood(self, particles, flat):
        return self._generated(self.pointwise, flat)

    def predict(self, key, particles, flat):
        return self._generated(self.predictive, flat)

    def _generated(self, names, flat):
        if not names:
            return {}
        rows = self._all(np.asarray(flat, np.float64))
        return {own: rows[:, self.places[name]] for own, name in names.items()}

    def _all(self, rows):
        """Everything that the model computes for some flat vectors, as rows of numbers."""
        # The generator depends on the particles alone, so that a run can be repeated.
        rng = self.stan.new_rng(seed=zlib.crc32(rows.tobytes()))
        out = np.empty((len(rows), self.stan.param_num(include_tp=True, include_gq=True)))
        with self.calls.lock:
            for row, into in zip(rows, out, strict=True):
                try:
                    self.stan.param_constrain(
                        row, include_tp=True, include_gq=True, rng=rng, out=into
                    )
                except RuntimeError as error:
                    self.calls.trouble = str(error)
                    into[:] = np.nan
        return out

    def as_model(self):
        from parvi.models.stan_calibration import calibrated_model

        return calibrated_model(self, self.simulate)

    def data(self):
        """The data, by name."""
        return json.loads(self.stan.data) if self.stan.data else {}

    @property
    def trouble(self):
        return self.calls.trouble


def _split(name: str) -> tuple[str, tuple[int, ...]]:
    """The stem of a name such as ``theta.2.3``, and its indices from 0."""
    parts = name.split(".")
    first = len(parts)
    while first > 1 and parts[first - 1].isdigit():
        first -= 1
    return ".".join(parts[:first]), tuple(int(part) - 1 for part in parts[first:])


def _zero_based(name: str) -> str:
    stem, index = _split(name)
    return f"{stem}[{','.join(map(str, index))}]" if index else stem


def _places(names: list[str]) -> dict[str, np.ndarray]:
    """The places of each array's numbers in a row; in Stan the first index runs fastest."""
    indices: dict[str, dict[tuple[int, ...], int]] = {}
    for place, name in enumerate(names):
        stem, index = _split(name)
        indices.setdefault(stem, {})[index] = place
    found = {}
    for stem, own in indices.items():
        shape = tuple(max(axis) + 1 for axis in zip(*own, strict=True))
        found[stem] = np.empty(shape, int)
        for index, place in own.items():
            found[stem][index] = place
    return found
