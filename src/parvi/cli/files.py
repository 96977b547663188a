"""Models and data as the command line names them."""

import csv
import importlib.util
import inspect
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import parvi
from parvi.cli.errors import note, of_model
from parvi.run.initial import as_target
from parvi.targets.target import AbstractTarget

# Names that are looked for in a file if none is given.
_NAMES = ("target", "model", "log_density")

_LIKE = "like = (one particle, for instance np.zeros(3)) beside it"


def target_of(place: str, data: pathlib.Path | None) -> AbstractTarget:
    """The target of ``model.py:name`` or ``model.stan``, with its data.

    The name in a Python file is a target, a function of a particle (and of the data, if it takes
    two arguments) beside ``like`` and perhaps ``constraints``, a NumPyro model, whose arguments are
    the data's names, a model of another library, or a function of the data that returns one.
    """
    path, _, name = place.partition(":") if not _is_file(place) else (place, "", "")
    if not _is_file(path):
        raise ValueError(f"There is no file {path}; give model.py:name or model.stan.")
    values = None if data is None else read_data(data)
    if path.endswith(".stan"):
        with of_model(path):
            return parvi.from_stan(path, {} if values is None else values)
    if not path.endswith(".py"):
        raise ValueError(f"{path} should end in .py or .stan.")
    module = _module(pathlib.Path(path))
    return _as_target(_named(module, name, path), module, values, place)


def _is_file(path: str) -> bool:
    return pathlib.Path(path).is_file()


def _module(path: pathlib.Path) -> Any:
    # Files beside it can be imported, as if Python had been given the file.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with of_model(str(path)):
        spec.loader.exec_module(module)
    return module


def _named(module: Any, name: str, path: str) -> Any:
    names = [name] if name else [known for known in _NAMES if hasattr(module, known)]
    if not names or not hasattr(module, names[0]):
        wanted = name or " or ".join(_NAMES)
        raise ValueError(f"{path} has no {wanted}; say which name to use, as in {path}:name.")
    return getattr(module, names[0])


def _as_target(found: Any, module: Any, data: dict[str, Any] | None, place: str) -> AbstractTarget:
    if isinstance(found, AbstractTarget):
        return found if data is None else _with_data(found, data)
    like, constraints = getattr(module, "like", None), getattr(module, "constraints", None)
    if callable(found) and like is None:
        return _made(found, data, place)
    if not callable(found) or len(_required(found)) == 1:
        if data is not None:
            raise ValueError(
                f"{place} takes no data: leave --data out, take the data as the second argument of "
                "a log density, or write a function of the data that returns the model."
            )
        return parvi.Target(found, like, constraints) if callable(found) else as_target(found)
    if data is None:
        raise ValueError(f"{place} takes data as its second argument: give --data.")
    return parvi.Target(found, like, constraints, data=data)


def _made(found: Callable, data: dict[str, Any] | None, place: str) -> AbstractTarget:
    """The target of a NumPyro model, or of a function of the data that returns a model."""
    given, required = data or {}, _required(found)
    # A function of the data takes all data as one argument, under a name that no column has.
    whole = len(required) == 1 and data is not None and required[0] not in data
    if "numpyro" in sys.modules and not whole:
        missing = [name for name in required if name not in given]
        if missing:
            there = (
                f"the data have {', '.join(given)}" if given else "there are no data: give --data"
            )
            raise ValueError(
                f"{place} takes {', '.join(required)}, and {there}. If it is a log density, define "
                f"{_LIKE}."
            )
        own = _accepted(found, given)
        with of_model(place):
            if _has_sites(found, own):
                unused = [name for name in given if name not in own]
                if unused:
                    note(f"{place} takes no argument of these names: {', '.join(unused)}.")
                return parvi.from_numpyro(found, **own)
    if len(required) != (data is not None):
        raise ValueError(
            f"{place} takes {', '.join(required) or 'no argument'}. If it is a log density, define "
            f"{_LIKE}; if it makes a model, let it take the data, and give --data."
        )
    with of_model(place):
        made = found() if data is None else found(data)
    if callable(made) and not isinstance(made, AbstractTarget):
        raise ValueError(
            f"{place} should return a target or a model; if it is a log density, define {_LIKE}."
        )
    return as_target(made)


def _with_data(target: Any, data: dict[str, Any]) -> AbstractTarget:
    if getattr(target, "data", None) is None:
        raise ValueError("The target has no data to replace: leave --data out.")
    return target.with_data(data)


def _has_sites(function: Callable, data: dict[str, Any]) -> bool:
    """Whether the function has sample sites of NumPyro's when it is called with the data."""
    from numpyro import handlers

    sites = handlers.trace(handlers.seed(function, 0)).get_trace(**data)
    return any(site["type"] == "sample" for site in sites.values())


def _required(function: Callable) -> list[str]:
    """The names of the arguments without a default."""
    parameters = inspect.signature(function).parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in several and p.default is p.empty]


def _accepted(function: Callable, data: dict[str, Any]) -> dict[str, Any]:
    """The data for which a function has an argument."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return data
    return {name: value for name, value in data.items() if name in parameters}


def read_data(path: pathlib.Path) -> dict[str, Any]:
    """The columns of a CSV file with a header, the arrays of an npz, or the values of a JSON."""
    readers = {".csv": _csv, ".npz": _npz, ".json": _json}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path} should end in .csv, .npz or .json.")
    data = readers[path.suffix.lower()](path)
    bad = [name for name, value in data.items() if not _is_finite(value)]
    if bad:
        note(
            f"{path} has NaN or infinite values in {', '.join(bad)}, and a log density of these is "
            "seldom finite: leave such rows out, or let the model do so."
        )
    return data


def _is_finite(value: Any) -> bool:
    # Words and nested objects are for the model to judge.
    array = np.asarray(value)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _csv(path: pathlib.Path) -> dict[str, np.ndarray]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if len(rows) < 2:
        raise ValueError(f"{path} should have a header and at least one row.")
    header, body = [name.strip() for name in rows[0]], rows[1:]
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise ValueError(
            f"{path} has one column, {header[0]!r}: separate columns by commas, and write decimals "
            "with a point."
        )
    ragged = next((i for i, row in enumerate(body) if len(row) != len(header)), None)
    if ragged is not None:
        raise ValueError(
            f"{path} has {len(body[ragged])} values in row {ragged + 2}, and {len(header)} columns."
        )
    columns = {name: [row[i] for row in body] for i, name in enumerate(header)}
    # Names of rows and the like; a column with some numbers is meant to be read.
    words = [name for name, column in columns.items() if not any(map(_is_number, column))]
    if len(words) == len(columns):
        raise ValueError(f"{path} has no column of numbers.")
    if words:
        note(
            f"{path} has words instead of numbers in these columns, and the model does not get "
            f"them: {', '.join(words)}."
        )
    return {name: _column(path, name, own) for name, own in columns.items() if name not in words}


def _column(path: pathlib.Path, name: str, words: list[str]) -> np.ndarray:
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError:
        row, word = next((i, w) for i, w in enumerate(words) if not _is_number(w))
        raise ValueError(
            f"{path} has {word!r} in column {name!r} of row {row + 2}, which is not a number: give "
            "every category a number, and leave no value empty."
        ) from None
    whole = np.all(np.isfinite(numbers)) and np.all(numbers == np.round(numbers))
    plain = whole and not any(set(word) & set(".eE") for word in words)
    return numbers.astype(np.int64) if plain else numbers


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} should hold an object of names and values.")
    return {
        name: _listed(path, name, value) if isinstance(value, list) else value
        for name, value in found.items()
    }


def _listed(path: pathlib.Path, name: str, value: list) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{path} has lists of different lengths in {name}.") from None
    if array.dtype == object and any(each is None for each in array.ravel()):
        raise ValueError(
            f"{path} has a value in {name} that is no number: leave no value empty (null)."
        )
    return array
