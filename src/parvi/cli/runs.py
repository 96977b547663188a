"""The commands that sample, and those that read what was sampled."""

import dataclasses
import json
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import typer
from rich.console import Console

import parvi
from parvi.cli.errors import in_one_line
from parvi.cli.files import target_of
from parvi.run.compile.cache import keep_compiled
from parvi.samplers.catalogue import READY

# Exit codes beside 0 (can be believed), 1 (bad input) and 2 (bad command line).
NOT_BELIEVED, FAILED, INTERRUPTED = 3, 4, 130

_MODEL = typer.Argument(help="model.py:name, or model.stan.", metavar="MODEL")
_DATA = typer.Option(help="CSV with a header, npz, or JSON.")
_OUT = typer.Option(help="File of the result.")
_REPORT = typer.Option(help="Also write a report to this file.")
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
        target = target_of(model, data)
        chosen = READY[sampler]()
        run = _ran(
            lambda: parvi.sample(
                target,
                key=seed,
                num_particles=particles,
                sampler=chosen,
                num_steps=steps,
                checkpoint=checkpoint,
            )
        )
        _finish(run, out, report, as_json, title=model)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of --checkpoint.")],
    model: Model,
    data: Data = None,
    sampler: Annotated[str, _SAMPLER] = "pfg",
    out: Annotated[Path | None, _OUT] = None,
    report: Annotated[Path | None, _REPORT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Go on with a run from its checkpoint."""
    keep_compiled()
    with in_one_line():
        target = target_of(model, data)
        if sampler not in READY:
            raise ValueError(f"--sampler {sampler} is unknown; there are {', '.join(READY)}.")
        run = _ran(lambda: parvi.resume(folder, target, sampler=READY[sampler]()))
        _finish(run, out, report, as_json, title=model)


def check(
    run: Annotated[Path, typer.Argument(help="A result that was saved.")],
    model: Annotated[str | None, typer.Option(help="Check it anew with this model.")] = None,
    data: Data = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Say in words whether a saved result can be believed."""
    with in_one_line():
        result = _loaded(run, model, data)
        _finish(result, None, None, as_json, title=str(run))


def report(
    run: Annotated[Path, typer.Argument(help="A result that was saved.")],
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


def _ran(run: Any) -> parvi.Result:
    """The result of a run, also if it failed; an interrupt ends the command."""
    try:
        with warnings.catch_warnings():
            # The verdict says the same.
            warnings.simplefilter("ignore", parvi.NotAtRestWarning)
            return run()
    except parvi.SamplingInterrupted as error:
        typer.echo(f"parvi: {error}", err=True)
        raise typer.Exit(INTERRUPTED) from error
    except parvi.SamplingError as error:
        typer.echo(f"parvi: {error}", err=True)
        return error.result
    except (ValueError, OSError, ImportError):
        raise
    except Exception as error:
        raise ValueError(_said_by_model(error)) from error


def _said_by_model(error: Exception) -> str:
    """What a user's function raised, and in which of its lines."""
    package = str(Path(parvi.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(package) and "site-packages" not in f[0]]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"The model raised {type(error).__name__}: {error}{place}."


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
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(verdict.headline)
    for sentence in verdict.reasons:
        console.print(f"- {sentence}")
    if verdict.advice and not verdict.believable:
        console.print("What to do:")
        for sentence in verdict.advice:
            console.print(f"- {sentence}")
    modes = result.known_modes()
    if modes is not None and len(modes.weights) > 1:
        console.print(str(modes))
    table = result.summary()
    console.print(table.head(40).to_string(float_format=lambda value: f"{value:.4g}"))
    if len(table) > 40:
        console.print(f"... and {len(table) - 40} more parameters.")
    for word, path in (("Result", out), ("Report", report)):
        if path is not None:
            console.print(f"{word}: {path}")
