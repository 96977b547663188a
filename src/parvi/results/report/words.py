"""The verdict on a run in words, for a reader who has not read the manual."""

from typing import NamedTuple

from parvi.results.checks import Check
from parvi.results.modes import Modes
from parvi.status import Status


class Verdict(NamedTuple):
    """``believable``: True, False, or None if nobody has tested. ``headline``: one sentence.

    ``reasons``: what was found, a sentence each. ``advice``: what to do next.
    """

    believable: bool | None
    headline: str
    reasons: tuple[str, ...]
    advice: tuple[str, ...]


def verdict_of(status: Status, check: Check | None, modes: Modes | None) -> Verdict:
    """Put the status, the check and the modes of a run into words."""
    if status.failed:
        return Verdict(
            False,
            f"The run failed ({status.name}). Do not use these particles.",
            (status.message, *_found(check)),
            (
                "Start closer to the target, or give init in float64.",
                "Look at the log density there: an improper prior, or a parameter without its "
                "constraint, sends particles away.",
            ),
        )
    if status != Status.CONVERGED or (check is not None and not check):
        return Verdict(
            False,
            "Do not take these particles for a sample of the target: the tests below failed.",
            _found(check) or (f"The run ended with {status.name}: {status.message}",),
            _advice(status, modes),
        )
    if check is None:
        return Verdict(
            None,
            "The run came to its end; what is shown here was not checked further.",
            ("The file holds no check. Use result.check() before result.save().",),
            (),
        )
    return Verdict(
        True,
        "These particles can be taken for a sample of the target: no test found anything wrong.",
        (
            "Hamiltonian transitions leave means and variances where they are.",
            "Stein's identity holds for functions that the run did not use.",
        ),
        ("No test sees a mode that no particle has met: start wide if there may be more.",),
    )


def _found(check: Check | None) -> tuple[str, ...]:
    return () if check is None else check.findings


def _advice(status: Status, modes: Modes | None) -> tuple[str, ...]:
    advice = ["Use more particles: at least two for every dimension, better ten."]
    if status == Status.MAX_STEPS:
        advice = ["Leave num_steps out, so that the run ends by its own test.", *advice]
    if status == Status.NOISY:
        return ("Judge the particles by predictions on held-out rows, or use all rows.",)
    if modes is not None and len(modes.weights) > 1:
        advice.append("Start from a wide init that covers all modes.")
    advice.append("Try another parametrisation (non-centred, or on another scale).")
    advice.append("Compare with parvi.nuts() on the same target.")
    return tuple(advice)
