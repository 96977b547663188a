"""The ``parvi`` command: settings that must come before JAX, then the command line."""

import os


def main() -> None:
    """Run the command line."""
    # XLA would note, for each program found on disk, that it trusts its version; on some machines,
    # as an error, that they lack a feature that only steers the compiler.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from parvi.cli import app

    app()
