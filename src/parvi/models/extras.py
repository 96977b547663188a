"""Imports of libraries that only some models need, and a lock for what they do not share."""

import importlib
import threading
from typing import Any

# Programs of later stages are traced on a second thread, and the stack of NumPyro's handlers
# belongs to the process: two traces at a time would see each other's sites.
TRACING = threading.RLock()


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
