"""Ctrl-C and ending signals, which must neither fall between two lines nor be lost."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

# Signals by which a cluster or a closed terminal ends a process.
_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupts:
    """Whether Ctrl-C was pressed, and which ending signal came, if any."""

    came: bool = False
    ending: int | None = None


@contextlib.contextmanager
def noted_interrupts(endings: bool = False) -> Iterator[Interrupts]:
    """Note a Ctrl-C instead of raising it; a second one is raised at once.

    A ``KeyboardInterrupt`` may be raised between any two lines, even where exceptions are dropped
    (a callback of the garbage collector, a destructor). This works only in the main thread, and
    replaces only Python's own handler: any other handler stays.

    ``endings``: SIGTERM and SIGHUP are noted too, if nobody else handles them.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return

    def note(number, _):
        if number != signal.SIGINT:
            interrupts.ending = number
        elif interrupts.came:
            raise KeyboardInterrupt
        interrupts.came = True

    defaults: dict[Any, Any] = {signal.SIGINT: signal.default_int_handler}
    if endings:
        defaults |= dict.fromkeys(_ENDINGS, signal.SIG_DFL)
    own = {number: old for number, old in defaults.items() if signal.getsignal(number) == old}
    for number in own:
        signal.signal(number, note)
    try:
        yield interrupts
    finally:
        for number, old in own.items():
            signal.signal(number, old)
