"""The commands that sample, and those that read what was sampled."""

import dataclasses
import json
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import typer
from rich.console import Console

import parvi
from parvi.cli.errors import in_one_line, note, of_model
from parvi.cli.files import target_of
from parvi.run.compile.cache import keep_compiled
from parvi.samplers.catalogue import READY

# Exit codes beside 0 (can be believed), 1 (bad input) and 2 (bad command line).
NOT_BELIEVED, FAILED, INTERRUPTED = 3, 4, 130
# Rows of the summary that a terminal shows; the middle of more is left out.
_MOST_ROWS = 40

_MODEL = typer.Argument(help="model.py:name, or model.stan.", metavar="MODEL")
_RUN = typer.Argument(help="A result that was saved.", metavar="RUN")
_DATA = typer.Option(help="CSV with a header, npz, or JSON.")
_OUT = typer.Option(help="File of the result.")
_REPORT = typer.Option(
    help="Also write a report to this file; by default beside --out, or report.html."
)
_JSON = typer.Option("--json", help="Print one JSON object.")
_SAMPLER = typer.Option(help=f"One of {', '.join(READY)}.")

Model = Annotated[str, _MODEL]
Data = Annotated[Path | None, _DATA]


def sample(
    model: Model,
    data: Data = None,
    particles: Annotated[int, typer.Option(min=2, help="Number of particles.")] = 512,
    sampler: Annotated[str, _SAMPLER] = "pfg",
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    steps: Annotated[int | None, typer.Option(min=0, help="Most steps.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder in which the run is saved as it goes.")
    ] = None,
    out: Annotated[Path | None, _OUT] = None,
    report: Annotated[Path | None, _REPORT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Sample a model. Exit code 0: the particles can be believed; 3: not; 4: the run failed."""
    keep_compiled()
    with in_one_line():
        if sampler not in READY:
            raise ValueError(f"--sampler {sampler} is unknown; there are {', '.join(READY)}.")
        _check_files(out, report)
        target = target_of(model, data)
        chosen = READY[sampler]()
        with of_model(model, getattr(target, "data", None)):
            run = _ran(
                lambda: parvi.sample(
                    target,
                    key=seed,
                    num_particles=particles,
                    sampler=chosen,
                    num_steps=steps,
                    checkpoint=checkpoint,
                ),
                checkpoint,
            )
        _finish(run, out, report, as_json, title=model)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of --checkpoint.", metavar="FOLDER")],
    model: Model,
    data: Data = None,
    sampler: Annotated[str, _SAMPLER] = "pfg",
    out: Annotated[Path | None, _OUT] = None,
    report: Annotated[Path | None, _REPORT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Resume a run from its checkpoint."""
    keep_compiled()
    with in_one_line():
        if sampler not in READY:
            raise ValueError(f"--sampler {sampler} is unknown; there are {', '.join(READY)}.")
        _check_files(out, report)
        target = target_of(model, data)
        with of_model(model):
            run = _ran(lambda: parvi.resume(folder, target, sampler=READY[sampler]()), folder)
        _finish(run, out, report, as_json, title=model)


def check(
    run: Annotated[Path, _RUN],
    model: Annotated[str | None, typer.Option(help="Check it again with this model.")] = None,
    data: Data = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Say in words whether a saved result can be believed."""
    with in_one_line():
        result = _loaded(run, model, data)
        _finish(result, None, None, as_json, title=str(run))


def report(
    run: Annotated[Path, _RUN],
    out: Annotated[Path | None, typer.Option(help="File of the report.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write a report of a saved result: one page that needs nothing but itself."""
    with in_one_line():
        path = run.with_suffix(".html") if out is None else out
        result = parvi.load(run)
        result.report(path, title=run.stem if title is None else title)
        typer.echo(f"Report: {path}")


def _loaded(path: Path, model: str | None, data: Path | None) -> parvi.Result:
    result = parvi.load(path)
    return result if model is None else dataclasses.replace(result, target=target_of(model, data))


def _ran(run: Any, checkpoint: Path | None) -> parvi.Result:
    """The result of a run, even if it failed; an interrupt ends the command."""
    try:
        with warnings.catch_warnings():
            # The verdict says the same.
            warnings.simplefilter("ignore", parvi.NotAtRestWarning)
            return run()
    except parvi.SamplingInterrupted as error:
        on = f"It is saved in {checkpoint}: the same command resumes it."
        if checkpoint is None:
            on = "It was not saved; with --checkpoint FOLDER, the same command would resume it."
        note(f"The run was interrupted after {error.result.num_steps} steps. {on}")
        raise typer.Exit(INTERRUPTED) from error
    except parvi.SamplingError as error:
        if error.__cause__ is not None:
            # The verdict does not have what a step raised.
            raise error.__cause__ from error
        return error.result


def _check_files(out: Path | None, report: Path | None) -> None:
    """Refuse files that could not be written after the run."""
    for option, path in (("--out", out), ("--report", report)):
        if path is None:
            continue
        folder = path.absolute().parent
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            what = "is a folder" if path.is_dir() else f"cannot be written: look at {folder}"
            raise ValueError(f"{option} {path} {what}.")
    if report is not None and find_spec("matplotlib") is None:
        raise ImportError("--report needs matplotlib: pip install 'parvi[plots]'.")


def _finish(
    result: parvi.Result, out: Path | None, report: Path | None, as_json: bool, title: str
) -> NoReturn:
    verdict = result.verdict()
    if out is not None:
        # Verdicts and modes are saved with it, so that a report can be made of the file alone.
        assert result.summary() is not None
        result.save(out)
    if report is not None:
        result.report(report, title=title)
    if as_json:
        typer.echo(json.dumps(_facts(result, verdict, out, report)))
    else:
        _print(result, verdict, out, report)
    code = 0 if verdict.believable else NOT_BELIEVED
    raise typer.Exit(FAILED if result.status.failed else code)


def _facts(result: parvi.Result, verdict: Any, out: Any, report: Any) -> dict[str, Any]:
    table = result.summary()
    rows = {
        str(name): {str(key): _plain(value) for key, value in row.items()}
        for name, row in table.iterrows()
    }
    return {
        "believable": verdict.believable,
        "headline": verdict.headline,
        "reasons": list(verdict.reasons),
        "advice": list(verdict.advice),
        "status": result.status.name,
        "particles": result.num_particles,
        "steps": result.num_steps,
        "gradients": result.num_gradients,
        "seconds": result.timing.seconds,
        "summary": rows,
        "out": None if out is None else str(out),
        "report": None if report is None else str(report),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return float(value) if np.isfinite(value) else None


def _print(result: parvi.Result, verdict: Any, out: Any, report: Any) -> None:
    # pandas is imported when there is a table.
    from parvi.results.table import Summary, parameters_first

    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(str(verdict))
    modes = result.known_modes()
    if modes is not None and len(modes.weights) > 1:
        console.print(str(modes))
    table = result.summary()
    console.print(Summary(parameters_first(table)).in_words(_MOST_ROWS))
    if len(table) > _MOST_ROWS:
        console.print(f"{len(table)} parameters; the report and --json have all of them.")
    for word, path in (("Result", out), ("Report", report)):
        if path is not None:
            console.print(f"{word}: {path}")
