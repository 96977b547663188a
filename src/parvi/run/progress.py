"""A progress bar that is silent without a terminal."""

import math
import sys
import time

from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text


class Time(progress.ProgressColumn):
    """The time left in words, or the elapsed time if the time left is not known."""

    def render(self, task: progress.Task) -> Text:
        """The text of the column."""
        return Text(task.fields["left"] or _clock(task.elapsed or 0.0))


class Bar:
    """Shows how far a run is, or nothing if it is not wanted.

    The time left is shown if the largest number of steps is known and all steps take about as
    long; otherwise only the elapsed time is shown.

    Parameters
    ----------
    total
        The largest number of steps; None if it says nothing about when the run will end.
    wanted
        Whether to show the bar; None shows it if standard error is a terminal.
    """

    def __init__(self, total: int | None, wanted: bool | None):
        self._total = total
        self._timed_steps, self._timed_seconds = 0, 0.0
        self._step, self._at = 0, time.perf_counter()
        self._progress = None
        if sys.stderr.isatty() if wanted is None else wanted:
            self._progress = progress.Progress(
                # The bar takes the part of the line that the words leave.
                progress.BarColumn(bar_width=None, table_column=Column(ratio=1)),
                progress.TextColumn("{task.description}", markup=False),
                Time(),
                console=Console(stderr=True),
                expand=True,
            )

    def __enter__(self) -> "Bar":
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("compiling", total=self._total, left="")
        return self

    def __exit__(self, *error) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, step: int, total: int | None) -> None:
        """Set the largest number of steps, and the step at which the run goes on."""
        self._step, self._at, self._total = step, time.perf_counter(), total
        if self._progress is not None:
            self._progress.update(self._task, total=total)

    def update(
        self, step: int, stage: str, gradients: int, kl_rate: float, is_typical: bool
    ) -> None:
        """Show where a run is; its last steps are typical if nothing was compiled for them."""
        of = "" if self._total is None else f"/{self._total}"
        rate = "" if math.isnan(kl_rate) else f", KL rate {kl_rate:.1e}"
        facts = f"{stage}, step {step}{of}, {short(gradients)} gradients{rate}"
        self.show(step, facts, is_typical)

    def show(self, step: int, facts: str, is_typical: bool) -> None:
        """Show how far the run is, with some words.

        The time left is estimated from the steps that are typical.
        """
        now = time.perf_counter()
        if is_typical:
            self._timed_steps += step - self._step
            self._timed_seconds += now - self._at
        self._step, self._at = step, now
        if self._progress is not None:
            self._progress.update(self._task, completed=step, description=facts, left=self._left())

    def _left(self) -> str:
        """The time left in words, empty if nothing can be said about it."""
        if self._total is None or self._timed_steps == 0:
            return ""
        seconds = (self._total - self._step) * self._timed_seconds / self._timed_steps
        return f"up to {_clock(seconds)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def short(number: int) -> str:
    """A count in at most five characters, such as 999, 61.4k, 1.2M and 1.5G.

    >>> short(999), short(61_440), short(1_234_567), short(2_000_000_000)
    ('999', '61.4k', '1.2M', '2.0G')
    """
    size, units = float(number), ["", "k", "M", "G", "T"]
    while size >= 999.95 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{number}" if units[0] == "" else f"{size:.1f}{units[0]}"
