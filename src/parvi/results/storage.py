"""Stores a result in one npz with a JSON record, without pickle, written whole or not at all."""

import json
import os
import pathlib
import tempfile
import zipfile
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

_FORMAT = "parvi-result-1"
_CUSTOM = "custom"


def write(path: Any, particles: PyTree, arrays: dict[str, np.ndarray], facts: dict) -> None:
    """Write a temporary file and move it into place, so that a full disk keeps the old file."""
    path = pathlib.Path(path)
    leaves = jax.tree_util.tree_leaves(particles)
    content = {f"particles/{i}": leaf for i, leaf in enumerate(leaves)} | arrays
    record = facts | {"format": _FORMAT, "structure": _structure(particles)}
    text = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, record=text, allow_pickle=False, **content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Any, like: PyTree | None) -> tuple[PyTree, dict[str, np.ndarray], dict]:
    """Read the particles, the other arrays and the record."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        record = json.loads(arrays.pop("record").tobytes())
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a result of parvi, or it was cut short: expected a file that "
            f"Result.save wrote, and reading it gave {type(error).__name__}: {error}. Check the "
            "path, or save the result again."
        ) from error
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        found = record.get("format") if isinstance(record, dict) else None
        raise ValueError(
            f"{path} has the format {found!r}, and this version of parvi reads {_FORMAT!r}; use "
            "the version of parvi that wrote it, or read the arrays with numpy.load."
        )
    num = sum(name.startswith("particles/") for name in arrays)
    leaves = [arrays.pop(f"particles/{i}") for i in range(num)]
    return _rebuild(record["structure"], leaves, like), arrays, record


def _structure(tree: PyTree) -> Any:
    """Describe dicts, lists and tuples as JSON, and any other node by the names of its leaves."""
    if isinstance(tree, np.ndarray):
        return "leaf"
    if tree is None:
        return "none"
    if type(tree) is dict and all(isinstance(name, str) for name in tree):
        return {"dict": [[name, _structure(tree[name])] for name in sorted(tree)]}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_structure(node) for node in tree]}
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    return {_CUSTOM: names}


def _rebuild(structure: Any, leaves: list[np.ndarray], like: PyTree | None) -> PyTree:
    if like is not None:
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves)
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
        built = [build(sub) for sub in content]
        return tuple(built) if kind == "tuple" else built

    return build(structure)
