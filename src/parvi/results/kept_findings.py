"""What the file of a result holds about its particles, beside the particles themselves."""

from typing import Any, NamedTuple

import numpy as np

from parvi.results.checks import Check
from parvi.results.modes import Modes
from parvi.results.sought import Sought
from parvi.results.verdicts import IN_DOUBT, Verdicts

_PREFIX = "findings/"


class Findings(NamedTuple):
    """The verdicts on parameters, the check, the modes, and where more of these were looked for.

    Each is None if it is not known.
    """

    verdicts: Verdicts | None = None
    check: Check | None = None
    modes: Modes | None = None
    sought: Sought | None = None


def as_record(findings: Findings) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the plain facts of the file."""
    arrays: dict[str, np.ndarray] = {}
    facts: dict[str, Any] = {}
    verdicts, check, modes, sought = findings
    if verdicts is not None:
        arrays |= {f"{_PREFIX}{name}": value for name, value in verdicts._asdict().items()}
    if check is not None:
        facts["check"] = [check.ok, list(check.findings), check.numbers, check.doubts]
    if modes is not None:
        facts["copies"] = [list(group) for group in modes.copies]
        named = {"weights": modes.weights, "standard_errors": modes.standard_errors}
        arrays |= {f"{_PREFIX}{name}": value for name, value in named.items()}
        arrays[f"{_PREFIX}labels"] = modes.labels
    if sought is not None:
        facts["sought"] = list(sought)
    return arrays, facts


def from_record(arrays: dict[str, np.ndarray], facts: Any, path: Any) -> Findings:
    """What a file holds; files of earlier versions hold no findings."""
    if facts is None:
        return Findings()
    try:
        found = {name.removeprefix(_PREFIX): a for name, a in arrays.items() if _PREFIX in name}
        verdicts = modes = check = sought = None
        if "drifts" in found:
            verdicts = Verdicts(found["drifts"], found["ratios"], found["errors"])
        if "check" in facts:
            # Files of earlier versions do not say which parameters a finding is about.
            ok, sentences, numbers, *more = facts["check"]
            doubts = dict(more[0]) if more else {} if ok else {"": IN_DOUBT}
            check = Check(bool(ok), tuple(map(str, sentences)), dict(numbers), doubts)
        if "labels" in found:
            copies = tuple(tuple(int(k) for k in group) for group in facts["copies"])
            modes = Modes(found["weights"], found["standard_errors"], found["labels"], copies)
        if "sought" in facts:
            least, most, name = facts["sought"]
            sought = Sought(float(least), float(most), str(name))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} was changed or cut short: reading its findings gave "
            f"{type(error).__name__}: {error}."
        ) from error
    return Findings(verdicts, check, modes, sought)
