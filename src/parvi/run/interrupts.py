"""Handling of Ctrl-C where it must neither fall between two lines nor be lost."""

import contextlib
import signal
import threading
from collections.abc import Iterator


class Interrupts:
    """Whether Ctrl-C was pressed."""

    came: bool = False


@contextlib.contextmanager
def noted_interrupts() -> Iterator[Interrupts]:
    """Note a Ctrl-C instead of raising it; a second one is raised at once.

    A ``KeyboardInterrupt`` may be raised between any two lines, even where exceptions are dropped
    (a callback of the garbage collector, a destructor). This works only in the main thread, and
    replaces only Python's own handler: any other handler stays.
    """
    interrupts = Interrupts()
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not own or threading.current_thread() is not threading.main_thread():
        yield interrupts
        return

    def note(*_):
        if interrupts.came:
            raise KeyboardInterrupt
        interrupts.came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
