"""Figures that were measured, as JSON, one file for each benchmark."""

import json
import pathlib
import platform
from typing import Any

import jax

FOLDER = pathlib.Path("results/bench")


def save(name: str, figures: Any) -> None:
    """Keep the figures of a benchmark, with what they were measured on."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    record = {
        "cores": _cores(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "figures": figures,
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def load(name: str) -> Any:
    """The figures of a benchmark, or None where it was not run."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text())["figures"] if path.exists() else None


def cores() -> list[int]:
    """The numbers of cores of the machines on which the figures were measured."""
    return sorted({json.loads(path.read_text())["cores"] for path in FOLDER.glob("*.json")})


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
