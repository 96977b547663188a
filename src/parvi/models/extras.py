"""Imports of libraries that only some models need."""

import importlib
from typing import Any


def imported(name: str, extra: str) -> Any:
    """A module, or an ``ImportError`` that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
            raise
        raise ImportError(
            f"This needs the package {name}, which is not installed: pip install 'parvi[{extra}]'."
        ) from error
