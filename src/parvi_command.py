"""The ``parvi`` command: settings that must come before JAX, then the command line."""

import os


def main() -> None:
    """Run the command line."""
    # XLA's C++ would note, for each program found on disk, that it trusts its version.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from parvi.cli import app

    app()
