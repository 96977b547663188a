"""What is wrong with files and data is said in one line, without a traceback."""

import contextlib
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Print what is wrong in one line, and exit with 1."""
    from parvi.experiments.datasets import DataError

    try:
        yield
    except (ValueError, OSError, ImportError, DataError) as error:
        with contextlib.suppress(OSError, AttributeError):
            typer.echo(f"parvi: {error}", err=True)
        raise typer.Exit(1) from error
