"""What is said and raised when a run is over: verdicts, advice and warnings."""

import warnings

import numpy as np

from parvi.geometry.frame import tells_covariance
from parvi.results.result import Result, Settings
from parvi.run.run import Run
from parvi.samplers.exploration import Changed, Explored
from parvi.samplers.sequence import Sequence
from parvi.status import NotAtRestWarning, SamplingError, SamplingInterrupted, Status

# Rounding of a particle, in standard deviations, above which steps no longer resolve anything.
_COARSE = 0.003


def judged(run: Run, result: Result, error, interrupted: bool, throw: bool) -> Result:
    """Return the result, or raise if the run failed; warn if nothing shows that it is at rest."""
    if interrupted or error is not None:
        result = result.with_status(Status.INTERRUPTED)
    coarse = _coarse(run, result)
    if result.status == Status.MAX_STEPS and coarse:
        result = result.with_status(Status.STALLED)
    status = result.status
    where = f"The particles after {result.num_steps} steps are in the .result of this exception."
    if interrupted:
        raise SamplingInterrupted(f"{status.message} {where}", result)
    if error is not None:
        lines = str(error).strip().splitlines() or [""]
        raise SamplingError(
            f"A step raised {type(error).__name__}: {lines[0][:200]}. {where}", result
        ) from error
    if status == Status.NOT_AT_REST:
        warnings.warn(_unrest(run, result), NotAtRestWarning, stacklevel=3)
    if status == Status.NOISY:
        warnings.warn(_noise(run, result), NotAtRestWarning, stacklevel=3)
    if throw and status.failed:
        raise SamplingError(
            f"{status.name}: {status.message} It happened at step {result.num_steps}; the last "
            f"good particles and the history are in the .result of this exception. {coarse}"
            f"{_advice(result.settings)} throw=False returns the result instead of raising.",
            result,
        )
    return result


def _coarse(run: Run, result: Result) -> str:
    """Where the dtype has too few digits for the particles, in words; empty if it has enough."""
    if result.settings is None or not isinstance(result.settings.sampler, Sequence):
        return ""
    flat = np.asarray(run.gathered())
    means, sds = np.abs(flat.mean(axis=0)), flat.std(axis=0)
    row = int(np.argmax(means / np.maximum(sds, np.finfo(flat.dtype).tiny)))
    if not means[row] * np.finfo(flat.dtype).eps > _COARSE * sds[row]:
        return ""
    assert run.target.layout is not None
    return (
        f"{flat.dtype.name} has too few digits for {run.target.layout.flat_names()[row]}, whose "
        f"mean is about {means[row]:.1e} with a standard deviation of {sds[row]:.1e}: give init in "
        "float64, or shift and scale the parameter. "
    )


def _advice(settings: Settings | None) -> str:
    """What to try after a failure."""
    if settings is not None and isinstance(settings.sampler, Sequence):
        return (
            "Start closer to the target, in float64 if its scale is far from 1, and look at the "
            "log density there: an improper density, or a parameter without its constraint "
            "(parvi.Target(log_density, constraints=...)), sends particles away."
        )
    return (
        "Try a shorter step or the default sampler, start closer to the target, or look at the "
        "log density there."
    )


def _unrest(run: Run, result: Result) -> str:
    """Say what is not at rest, and what to try."""
    assert run.target.layout is not None
    names = run.target.layout.flat_names()
    report, most = run.reports[run.stage.name], ""
    # A stage of the user's own, or a scout, need not report changes.
    if isinstance(report, (Changed, Explored)):
        changes = np.asarray(report.changes)
        rows = np.argsort(-changes)[:5]
        worst = ", ".join(f"{names[i]} ({float(changes[i]):.1f})" for i in rows)
        most = f"The largest changes of a mean or variance, in standard errors, are: {worst}. "
    return (
        f"{Status.NOT_AT_REST.name}: {Status.NOT_AT_REST.message} It ended after "
        f"{result.num_steps} steps. {most}Do not take these particles for a sample. Try more "
        "particles, a start closer to the target, or another parametrisation (non-centred, or on "
        "another scale); result.check() says more."
    )


def _noise(run: Run, result: Result) -> str:
    """Say why the particles were not tested, and what to try."""
    if run.rounds is not None:
        why = run.rounds.words()
    else:
        num, dim = run.particles.shape
        few = f"{num} particles are too few to correct mini-batches in {dim} dimensions"
        why = (
            f"All {run.target.num_rows} rows of data are too many to see at every step, and "
            f"{'mini-batches are not corrected on a mesh' if tells_covariance((num, dim)) else few}"
            ". Judge the particles by their predictions on rows that were held out."
        )
    return (
        f"{Status.NOISY.name}: {Status.NOISY.message} It ended after {result.num_steps} steps. "
        f"{why}"
    )


def with_transport(result: Result) -> Result:
    """The result with its map, and a status that the map's weighted draws do not contradict."""
    try:
        witness = result.witness
    except ValueError as error:
        warnings.warn(f"No map was made. {error}", NotAtRestWarning, stacklevel=3)
        return result
    if witness.agrees or not result.importance or result.status != Status.CONVERGED:
        return result
    names = result.names_flat
    rows = np.argsort(-witness.changes)[:5]
    worst = ", ".join(f"{names[i]} ({witness.changes[i]:.1f})" for i in rows)
    warnings.warn(
        f"{Status.NOT_AT_REST.name}: Hamiltonian transitions leave the particles where they are, "
        "but the weighted draws of the map have other means or variances. The largest "
        f"differences, in standard errors, are: {worst}. Draw more particles, and compare with "
        "another sampler such as parvi.nuts().",
        NotAtRestWarning,
        stacklevel=3,
    )
    return result.with_status(Status.NOT_AT_REST)
