"""Stores a result in one npz with a JSON record, without pickle, written whole or not at all."""

import json
import os
import zipfile
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from parvi.run.files import replaced
from parvi.targets.flatten import Labels

_FORMAT = "parvi-result-1"
_CUSTOM = "custom"
# A file may unpack to at most so many times its size.
_MOST_TIMES = 4
# What every record holds.
_FACTS: dict[str, Any] = {
    "status": str,
    "sampler": str,
    "key": str,
    "seconds": (int, float),
    "compile_seconds": (int, float),
    "num_moved": int,
    "names": list,
}


def write(path: Any, particles: PyTree, arrays: dict[str, np.ndarray], facts: dict) -> None:
    """Write a temporary file and move it into place, so that a full disk keeps the old file."""
    leaves = jax.tree_util.tree_leaves(particles)
    content = {f"particles/{i}": leaf for i, leaf in enumerate(leaves)} | arrays
    record = facts | {"format": _FORMAT, "structure": structure_of(particles)}
    text = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    with replaced(path) as file:
        np.savez(file, record=text, allow_pickle=False, **content)


def read(path: Any, like: PyTree | None) -> tuple[PyTree, dict[str, np.ndarray], dict]:
    """Read the particles, the other arrays and the record.

    Anything that is wrong with the file raises one ``ValueError`` that names it.
    """
    try:
        arrays = _unpacked(path)
        record = json.loads(arrays.pop("record").tobytes())
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:
        raise _broken(path, f"reading it gave {type(error).__name__}: {error}") from error
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        found = record.get("format") if isinstance(record, dict) else None
        raise ValueError(
            f"{path} has the format {found!r}, and this version of parvi reads {_FORMAT!r}; use "
            "the version of parvi that wrote it, or read the arrays with numpy.load."
        )
    num = sum(name.startswith("particles/") for name in arrays)
    try:
        leaves = [arrays.pop(f"particles/{i}") for i in range(num)]
        particles = rebuilt(record["structure"], leaves, like)
        _check(leaves, arrays, record)
    except Exception as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from error
    return particles, arrays, record


def _broken(path: Any, why: str) -> ValueError:
    return ValueError(
        f"{path} is not a result of parvi, or it was cut short or changed: expected a file that "
        f"Result.save wrote, and {why[:300]}. Check the path, or save the result again."
    )


def _unpacked(path: Any) -> dict[str, np.ndarray]:
    """The arrays of the file, none of which may be larger than the file says or memory allows."""
    with open(path, "rb") as raw:
        if not zipfile.is_zipfile(raw):
            raise ValueError("it is no npz file")
        with zipfile.ZipFile(raw) as members:
            size = sum(member.file_size for member in members.infolist())
            packed = max(1, os.fstat(raw.fileno()).st_size)
        # Results are saved without compression, so a file that unpacks to much more is not a
        # result.
        if size > _MOST_TIMES * packed + 2**20:
            raise ValueError(f"it would unpack to {size} bytes")
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def _check(leaves: list[np.ndarray], arrays: dict[str, np.ndarray], record: dict) -> None:
    """Raise a ``ValueError`` if what was read does not fit together."""
    if not leaves or any(leaf.ndim < 1 or not len(leaf) for leaf in leaves):
        raise ValueError("it has no particles")
    if any(leaf.dtype not in (np.float32, np.float64) for leaf in leaves):
        raise ValueError("its particles are not floating-point numbers")
    own = [arrays["log_density"], *(arrays[name] for name in ("flat",) if name in arrays)]
    lengths = {len(leaf) for leaf in [*leaves, *own]}
    if len(lengths) != 1:
        raise ValueError(f"its arrays have different numbers of particles, {sorted(lengths)}")
    steps = {len(column) for name, column in arrays.items() if name.startswith("history/")}
    if len(steps) > 1:
        raise ValueError(f"the columns of its history have different lengths, {sorted(steps)}")
    for name, kind in _FACTS.items():
        if not isinstance(record.get(name), kind) or isinstance(record[name], bool):
            raise ValueError(f"its record has {name} = {record.get(name)!r}")


def described(labels: Labels) -> dict[str, Any]:
    """Labels as JSON has them: dates and the like become text."""
    coords = {
        name: [place if isinstance(place, (int, float, str)) else str(place) for place in places]
        for name, places in ((n, np.asarray(c).tolist()) for n, c in labels.coords.items())
    }
    return {"dims": {name: list(axes) for name, axes in labels.dims.items()}, "coords": coords}


def labels_of(record: dict) -> Labels | None:
    """The labels of a record, if it has any."""
    found = record.get("labels")
    if found is None:
        return None
    dims = {name: tuple(axes) for name, axes in found["dims"].items()}
    return Labels(dims, {name: list(places) for name, places in found["coords"].items()})


def structure_of(tree: PyTree) -> Any:
    """Describe dicts, lists and tuples as JSON, and any other node by the names of its leaves."""
    if isinstance(tree, np.ndarray):
        return "leaf"
    if tree is None:
        return "none"
    if type(tree) is dict and all(isinstance(name, str) for name in tree):
        return {"dict": [[name, structure_of(tree[name])] for name in sorted(tree)]}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [structure_of(node) for node in tree]}
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    return {_CUSTOM: names}


def rebuilt(structure: Any, leaves: list[np.ndarray], like: PyTree | None) -> PyTree:
    """The tree with the structure that was described, or with that of ``like``."""
    if like is not None:
        treedef: Any = jax.tree_util.tree_structure(like)
        if treedef.num_leaves != len(leaves):
            raise ValueError(f"like has {treedef.num_leaves} arrays, and the file {len(leaves)}")
        return jax.tree_util.tree_unflatten(treedef, leaves)
    rest = iter(leaves)

    def build(node):
        if node == "leaf":
            return next(rest)
        if node == "none":
            return None
        ((kind, content),) = node.items()
        if kind == "dict":
            return {name: build(sub) for name, sub in content}
        if kind == _CUSTOM:
            return {name: next(rest) for name in content}
        if kind not in ("tuple", "list"):
            raise ValueError(f"its structure has a node of the unknown kind {kind!r}")
        built = [build(sub) for sub in content]
        return tuple(built) if kind == "tuple" else built

    built = build(structure)
    if len(jax.tree_util.tree_leaves(built)) != len(leaves):
        raise ValueError("its structure has another number of arrays than it holds")
    return built
