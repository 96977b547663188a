"""A progress bar that is silent without a terminal."""

import sys

from rich import progress
from rich.console import Console


class Bar:
    """Shows steps, stage, KL rate and steps per second, or nothing if it is not wanted."""

    def __init__(self, num_steps: int, wanted: bool | None, description: str = "sampling"):
        self._num_steps = num_steps
        self._description = description
        self._progress = None
        if sys.stderr.isatty() if wanted is None else wanted:
            self._progress = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[facts]}"),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
            )

    def __enter__(self) -> "Bar":
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task(
                self._description, total=self._num_steps, facts="compiling"
            )
        return self

    def __exit__(self, *error) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, step: int, stage: str, kl_rate: float, steps_per_second: float) -> None:
        """Show how far the run is."""
        self.show(step, f"{stage}  KL rate {kl_rate:.2e}  {steps_per_second:,.0f} steps/s")

    def show(self, step: int, facts: str) -> None:
        """Show how far the run is, with some words."""
        if self._progress is not None:
            self._progress.update(self._task, completed=step, facts=facts)
