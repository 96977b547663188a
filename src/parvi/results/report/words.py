"""The verdict on a run in words, for a reader who has not read the manual."""

from typing import NamedTuple

import numpy as np

from parvi.geometry.frame import tells_covariance
from parvi.results.checks import Check
from parvi.results.modes import Modes
from parvi.results.sought import Sought
from parvi.status import Status

# With fewer particles a Stein ratio of 0.25, that of a Gaussian that is half as wide as the target,
# is within the four standard errors, 4 / n**0.5, and the tenth that the check allows.
_FEWEST = 38
# If all parameters were searched less far than this, in standard deviations, only one's own mode
# was. Of a start as wide as the particles, the farthest of 24 scouts comes from about 8.
_NEAR = 6.0


class Call(NamedTuple):
    """What advice has to know of the call: its sampler, as text, and whether it had ``num_steps``.

    ``limited`` is None if nobody knows, as in a result from a file.
    """

    sampler: str = "Sequence("
    limited: bool | None = None

    @property
    def tests_itself(self) -> bool:
        """Whether the sampler is a sequence such as the default, which ends by its own test."""
        return self.sampler.startswith("Sequence(")


class Verdict(NamedTuple):
    """``believable``: True, False, or None if nobody has tested. ``headline``: one sentence.

    ``reasons``: what was found, a sentence each. ``advice``: what to do next.
    """

    believable: bool | None
    headline: str
    reasons: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def heading(self) -> str:
        """What to write over the advice."""
        return "Keep in mind" if self.believable else "What to do"

    def __str__(self) -> str:
        lines = [self.headline, *(f"- {sentence}" for sentence in self.reasons)]
        if self.advice:
            lines += [f"{self.heading}:", *(f"- {sentence}" for sentence in self.advice)]
        return "\n".join(lines)


def verdict_of(
    status: Status,
    check: Check | None,
    modes: Modes | None,
    shape: tuple[int, int],
    sought: Sought | None = None,
    call: Call = Call(),
) -> Verdict:
    """Put the status, the check and the modes of (n, d) particles into words.

    ``sought`` says how far from them the run has looked for modes, and ``call`` how it was asked
    for.
    """
    if status.failed:
        return Verdict(
            False,
            f"The run failed ({status.name}). Do not use these particles.",
            (status.message, *_found(check)),
            (
                "Start closer to the target, or give init in float64.",
                "Look at the log density there: an improper prior, or a bound that is not declared "
                "(constraints=, such as parvi.Positive()), sends particles away.",
            ),
        )
    if status != Status.CONVERGED or (check is not None and not check):
        return Verdict(
            False,
            "Do not take these particles for a sample of the target: "
            f"{_main_reason(status, check, modes, shape)}.",
            _found(check) or (f"The run ended with {status.name}: {status.message}",),
            _advice(status, modes, shape, call),
        )
    if check is None:
        return Verdict(
            None,
            "The run came to its end; what is shown here was not checked further.",
            ("The file holds no check. Use result.check() before result.save().",),
            (),
        )
    num, dim = shape
    if num < _FEWEST:
        return Verdict(
            None,
            f"Nobody can tell whether these {num} particles are a sample of the target: there are "
            "too few of them.",
            (
                "No test found anything wrong, but none would notice if so few particles were half "
                "as wide as the target.",
            ),
            (_more_particles(shape),),
        )
    tested: tuple[str, ...] = (
        "Hamiltonian transitions leave means and variances where they are.",
        "Stein's identity holds for functions that the run did not use.",
    )
    if "beyond" in check.numbers:
        tested = (*tested, "Weighted draws from all around find no mass where no particle is.")
    if not tells_covariance(shape):
        return Verdict(
            True,
            "Use the means and variances of these particles, but not their correlations: there are "
            f"too few of them, {num} for {dim} parameters.",
            tested,
            (_more_particles(shape), _unseen(sought)),
        )
    if sought is not None and sought.most < _NEAR:
        return Verdict(
            True,
            "These particles can be taken for a sample of the target near the start: no test found "
            f"anything wrong, but no modes farther than {_deviations(sought.most)} away were "
            "looked for.",
            tested,
            (_unseen(sought),),
        )
    return Verdict(
        True,
        "These particles can be taken for a sample of the target: no test found anything wrong.",
        tested,
        (_unseen(sought),),
    )


def _unseen(sought: Sought | None) -> str:
    """What no test sees."""
    if sought is None:
        return (
            "No modes were looked for but those in which particles lie, and no test sees another: "
            "start wide if there may be more."
        )
    where = f"That is {_deviations(sought.least)} from the mean of these particles"
    if sought.most > 1.5 * sought.least:
        where = f"{where} for {sought.name}, and more for others"
    return (
        "Modes were looked for from the first particles and from four times farther out. "
        f"{where}. No test sees a mode beyond: start wider if there may be one."
    )


def _deviations(number: float) -> str:
    words = f"{number:.2g}" if number < 100 else f"{number:.0f}"
    return f"{words} standard deviation{'' if words == '1' else 's'}"


def _more_particles(shape: tuple[int, int]) -> str:
    num, dim = shape
    least, better = max(_FEWEST, 2 * dim), max(256, 10 * dim)
    if num < least:
        return f"Use at least {least} particles, better {better}."
    return f"Use more particles, better {better}." if num < better else "Use more particles."


def _found(check: Check | None) -> tuple[str, ...]:
    return () if check is None else check.findings


def _main_reason(
    status: Status, check: Check | None, modes: Modes | None, shape: tuple[int, int]
) -> str:
    """Half a sentence for the first line."""
    num, dim = shape
    if modes is not None and np.isnan(modes.standard_errors[1:]).any():
        number = len(modes.weights)
        return f"they lie in {number} separated modes, whose weights are those of the start"
    if num < _FEWEST or not tells_covariance(shape):
        return f"there are too few of them, {num} for {dim} parameters"
    if status == Status.MAX_STEPS:
        return "all steps were made before the run was done"
    return "the tests below failed"


def _advice(
    status: Status, modes: Modes | None, shape: tuple[int, int], call: Call
) -> tuple[str, ...]:
    advice = [_more_particles(shape)]
    if status == Status.MAX_STEPS:
        advice = [*_more_steps(call), *advice]
    if status == Status.NOISY:
        return ("Judge the particles by predictions on held-out rows, or use all rows.",)
    if modes is not None and len(modes.weights) > 1:
        advice.insert(
            0,
            "Start from a wide init that covers all modes, with the default sampler, which weighs "
            "them.",
        )
    advice.append("Try another parametrisation (non-centred, or on another scale).")
    if not call.sampler.startswith("NUTS("):
        advice.append("Compare with parvi.nuts() on the same target.")
    return tuple(advice)


def _more_steps(call: Call) -> list[str]:
    """What to do when all steps were made."""
    if not call.tests_itself:
        return [
            "Make more steps (num_steps, --steps), or take the default sampler, which ends by its "
            "own test."
        ]
    asked = "Leave num_steps (--steps) out, so that the run ends by its own test."
    spread = "Give every parameter a proper prior: without one, particles spread without end."
    if call.limited is None:
        asked = "Leave num_steps (--steps) out if it was given: the run then ends by its own test."
    return {True: [asked], False: [spread], None: [asked, spread]}[call.limited]
