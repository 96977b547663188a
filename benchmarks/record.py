"""Figures that were measured, as JSON, one file for each benchmark."""

import json
import pathlib
import platform
import subprocess
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
        "commit": _commit(),
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


def commits() -> dict[str, str]:
    """The commit on which each benchmark was run, where it is known."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    return {name: record["commit"] for name, record in found.items() if record.get("commit")}


def _commit() -> str | None:
    """The commit that is checked out, with a mark if the code was changed since."""
    asked = (["git", "rev-parse", "--short", "HEAD"], ["git", "status", "-s", "src", "benchmarks"])
    try:
        name, changed = (
            subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{name}, changed" if changed else name


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
