"""Errors of files, data and models, which are printed in words, without a traceback."""

import contextlib
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import parvi


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Print what is wrong, and exit with 1."""
    from parvi.experiments.datasets import DataError

    try:
        yield
    except (ValueError, OSError, ImportError, DataError) as error:
        with contextlib.suppress(OSError, AttributeError):
            typer.echo(f"parvi: {_words(error)}", err=True)
        raise typer.Exit(1) from error


@contextlib.contextmanager
def of_model(place: str, data: Any = None) -> Iterator[None]:
    """Turn what a user's code raises into a ``ValueError`` that names the line.

    If the code asks for a name that is not in the data, the message lists the names that are
    there.
    """
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        line = _own_line(error)
        if line is None and isinstance(error, (ValueError, OSError, ImportError)):
            raise
        where = "" if line is None else f" ({line})"
        said = f"{type(error).__name__}: {error}".rstrip(".")
        if isinstance(error, KeyError) and isinstance(data, dict) and error.args[0] not in data:
            where = f"{where}; the data have {', '.join(data)}"
        raise ValueError(f"{place} raised {said}{where}.") from error


def note(words: str) -> None:
    """Say something on standard error that does not end the command."""
    typer.echo(f"parvi: {words}", err=True)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return str(error)


def _own_line(error: Exception) -> str | None:
    """The line of the user's own files from which an exception came, if it came from one."""
    others = (str(Path(parvi.__file__).parent), sysconfig.get_path("stdlib"), "<")
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(others) and "site-packages" not in frame.filename
    ]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else None
