"""Files that are written whole or not at all."""

import contextlib
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator
from typing import IO, Any


@contextlib.contextmanager
def replaced(path: Any) -> Iterator[IO[bytes]]:
    """A temporary file that takes the place of ``path`` at the end, unless something is raised.

    A full disk or a kill leaves the old file. Links are followed, and the file keeps the mode of
    the old one, or gets that of a new file. Anything that is not a regular file is refused.
    Temporary files that a killed process has left are removed.
    """
    path = pathlib.Path(path)
    real = pathlib.Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        kind = "folder" if real.is_dir() else "device or pipe"
        raise ValueError(f"{path} is a {kind}, not a file that can be replaced.")
    _clear(real)
    # Names have at most 255 bytes, and this one gets a few more.
    temporary = real.parent / f"{_start(real)}{os.getpid()}-{secrets.token_hex(4)}"
    # The mode of a new file, as the user's umask has it.
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            if real.exists():
                os.fchmod(handle, stat.S_IMODE(real.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, real)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _start(path: pathlib.Path) -> str:
    return f".{path.name[:100]}.parvi-"


def _clear(path: pathlib.Path) -> None:
    """Remove files that dead processes have left beside this one."""
    start = _start(path)
    for found in path.parent.iterdir():
        if not found.name.startswith(start):
            continue
        number = found.name.removeprefix(start).split("-")[0]
        if number.isdigit() and not _is_alive(int(number)):
            found.unlink(missing_ok=True)


def _is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
