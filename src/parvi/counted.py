"""Settings of the whole process, shared by runs in several threads."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class Counted:
    """A setting that the first user makes and the last user takes back.

    Parameters
    ----------
    make
        Makes the setting and returns what takes it back.
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._num = 0
        self._take_back: Callable[[], None] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._num == 0:
                self._take_back = self._make()
            self._num += 1
        try:
            yield
        finally:
            with self._lock:
                self._num -= 1
                if self._num == 0 and self._take_back is not None:
                    self._take_back()
