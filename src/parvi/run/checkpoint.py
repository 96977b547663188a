"""Checkpoints: a run is saved as it goes, and resumes as if it had never been interrupted.

One file in the folder has the whole state, and is replaced atomically. The file says which run it
belongs to: the same call resumes it, and any other is refused with what differs.
"""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from parvi.cloud import Place
from parvi.run.files import replaced

_FORMAT = "parvi-checkpoint-1"
_NAME = "checkpoint.npz"
# Seconds between two saves, and how many times as long as a save these must be.
_EVERY, _TIMES = 10.0, 20.0


class Saved(NamedTuple):
    """What a checkpoint holds: arrays under names, and facts."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


def identity_of(place: Place, sampler: Any, key: Any, num_steps: int | None, mesh: Any) -> dict:
    """What has to be equal for two runs to be the same, in words that can be compared."""
    digest = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves((place.particles, place.log_densities)):
        digest.update(np.ascontiguousarray(np.asarray(leaf)).tobytes())
    num, dim = place.particles.shape
    return {
        "version of parvi": importlib.metadata.version("parvi"),
        "version of jax": jax.__version__,
        "particles": f"{num} of {dim} numbers in {place.particles.dtype}",
        "start and its log density": digest.hexdigest()[:16],
        "sampler": named(sampler),
        "key": np.asarray(jax.random.key_data(key)).tobytes().hex(),
        "num_steps": str(num_steps),
        "mesh": "None" if mesh is None else str(dict(mesh.shape)),
    }


def named(sampler: Any) -> str:
    """The sampler as text, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(sampler))


class Checkpoint:
    """A folder with the state of one run.

    Parameters
    ----------
    folder
        Made if it does not exist.
    identity
        Which run it is.
    call
        What else is needed to resume without the call that began the run.
    """

    def __init__(self, folder: Any, identity: dict[str, str], call: dict[str, Any] | None = None):
        self.path = pathlib.Path(folder) / _NAME
        self._identity, self._call = identity, {} if call is None else call
        self._last, self._took = time.monotonic(), 0.0

    def read(self) -> Saved | None:
        """The state of this run, if the folder holds one; another run's is refused."""
        saved = read(self.path)
        if saved is None:
            return None
        theirs = saved.facts["identity"]
        differing = [name for name in self._identity if theirs.get(name) != self._identity[name]]
        if differing:
            lines = "; ".join(
                f"{name} is {_short(self._identity[name])} here and {_short(theirs.get(name))} "
                "there"
                for name in differing
            )
            raise ValueError(
                f"The checkpoint in {self.path.parent} is of another run: {lines}. Give another "
                "folder, or remove this one to begin anew."
            )
        return saved

    @property
    def is_due(self) -> bool:
        """Whether it is time to save again."""
        return time.monotonic() - self._last >= max(_EVERY, _TIMES * self._took)

    def write(self, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
        """Replace the state."""
        before = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        record = facts | {"format": _FORMAT, "identity": self._identity, "call": self._call}
        text = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
        with replaced(self.path) as file:
            np.savez(file, record=text, allow_pickle=False, **arrays)
        self._last = time.monotonic()
        self._took = self._last - before


def found(folder: Any) -> Saved:
    """The checkpoint in a folder; ``ValueError`` if there is none."""
    saved = read(pathlib.Path(folder) / _NAME)
    if saved is None:
        raise ValueError(f"There is no checkpoint in {folder}.")
    return saved


def read(path: Any) -> Saved | None:
    """What a file holds; None without a file, and ``ValueError`` if it is not a checkpoint."""
    path = pathlib.Path(path)
    if not path.exists():
        if path.parent.exists() and not path.parent.is_dir():
            raise ValueError(f"checkpoint must be a folder, and {path.parent} is a file.")
        return None
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(arrays.pop("record").tobytes())
        if facts["format"] != _FORMAT or not isinstance(facts["identity"], dict):
            raise ValueError(f"its format is {facts['format']!r}, and {_FORMAT!r} was expected")
    except Exception as error:
        raise ValueError(
            f"{path} is not a checkpoint that this version of parvi can read "
            f"({type(error).__name__}: {error}). Give another folder, or remove this one to begin "
            "anew."
        ) from error
    return Saved(arrays, facts)


def _short(text: Any) -> str:
    text = str(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_writable(folder: Any) -> None:
    """Raise a ``ValueError`` before the run if the folder cannot be written."""
    if jax.process_count() > 1:
        raise ValueError(
            f"checkpoint= saves runs of one process, and this one has {jax.process_count()}: each "
            "has only its own particles. Leave checkpoint= out, or save each process's result."
        )
    try:
        path = pathlib.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, TypeError) as error:
        raise ValueError(f"checkpoint must be a folder: {error}.") from error
    if not os.access(path, os.W_OK):
        raise ValueError(f"The folder {path} for checkpoints cannot be written.")
