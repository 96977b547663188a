"""What has happened in a run so far: its history, and what finished stages have left behind."""

from typing import Any

import numpy as np

from parvi.cloud import Place
from parvi.run.compile.programs import Record
from parvi.run.history import Block, joined, record_of, with_column
from parvi.run.trees import as_arrays, as_tree
from parvi.status import Status


class Passage:
    """The finished stages, what they reported, and the records of all steps.

    Attributes
    ----------
    history
        The records of all steps, in blocks, with the names of their stages.
    done
        How each stage of this round ended.
    reports
        What each stage of this round reported.
    gradients
        How many gradients all steps have evaluated.
    """

    def __init__(self) -> None:
        self.history: list[Block] = []
        self.done: dict[str, Status] = {}
        self.reports: dict[str, Any] = {}
        self.gradients = 0
        self._kept: dict[str, Place] = {}
        self._round_began = 0

    def add(self, stage: str, records: Record) -> None:
        """The steps that a stage has just made."""
        self.history.append((stage, records))
        self.gradients += _gradients_of(records)

    def add_column(self, name: str, column: np.ndarray) -> None:
        """A column of the last block that was not known before its steps were over."""
        stage, records = self.history[-1]
        self.history[-1] = stage, with_column(records, name, column)

    def leave(self, stage: str, ended: Status, report: Any) -> None:
        """A stage is over."""
        self.done[stage], self.reports[stage] = ended, report

    def keep(self, stage: str, place: Place) -> None:
        """The place before a stage to which a later one may go back."""
        self._kept[stage] = place

    def undo(self, stage: str, names: list[str]) -> Place:
        """The place before a stage; steps of the stages of these names are marked as undone."""
        self.history[self._round_began :] = [
            (f"{name}, undone" if name in names else name, records)
            for name, records in self.history[self._round_began :]
        ]
        return self._kept[stage]

    def new_round(self) -> None:
        """Begin with the first stage again, and keep the history."""
        self.done, self.reports, self._kept = {}, {}, {}
        self._round_began = len(self.history)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and facts for a checkpoint."""
        arrays: dict[str, np.ndarray] = {}
        for name, place in self._kept.items():
            arrays |= as_arrays(f"kept/{name}", place)
        for name, report in self.reports.items():
            arrays |= as_arrays(f"reports/{name}", report)
        early, late = self.history[: self._round_began], self.history[self._round_began :]
        early, late = joined(early), joined(late)
        self.history, self._round_began = early + late, len(early)
        for number, (_, records) in enumerate(self.history):
            arrays |= as_arrays(f"history/{number}", records)
        return arrays, {
            "done": {name: int(status) for name, status in self.done.items()},
            "kept": list(self._kept),
            "history": [[name, list(records.info.extra)] for name, records in self.history],
            "round_began": self._round_began,
        }

    def restore(
        self,
        arrays: dict[str, np.ndarray],
        facts: dict[str, Any],
        reports: dict[str, Any],
        like: Place,
    ) -> None:
        """Take the passage of a checkpoint, with the reports as they were read from it."""
        self.done = {name: Status(value) for name, value in facts["done"].items()}
        self.reports = reports
        self._kept = {name: as_tree(f"kept/{name}", arrays, like) for name in facts["kept"]}
        self.history = [
            (name, record_of(arrays, number, extra))
            for number, (name, extra) in enumerate(facts["history"])
        ]
        self.gradients = sum(_gradients_of(records) for _, records in self.history)
        self._round_began = facts["round_began"]


def _gradients_of(records: Record) -> int:
    return int(records.info.gradients.sum(dtype=np.int64))
