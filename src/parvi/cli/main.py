"""The command line: parse, call, print."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import track
from rich.table import Table

import parvi
from parvi.cli import runs
from parvi.cli.errors import in_one_line
from parvi.cli.reporting import Reporting
from parvi.run.compile.cache import keep_compiled

app = typer.Typer(
    help="Particle-based variational inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (runs.sample, runs.resume):
    app.command(cls=Reporting)(command)
app.command()(runs.check)
app.command()(runs.report)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"parvi {parvi.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    """Particle-based variational inference."""


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="File of the picture.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Seed of the start and of NUTS.")] = 0,
    particles: Annotated[int, typer.Option(min=64, help="Number of particles.")] = 256,
) -> None:
    """Sample a real posterior with PFG, SVGD and NUTS, and measure how good each is."""
    from parvi.experiments import demo as demonstration

    if output.suffix.lower() not in {".png", ".pdf", ".svg"}:
        raise typer.BadParameter(f"{output} should end in .png, .pdf or .svg", param_hint="output")
    if not output.resolve().parent.is_dir():
        raise typer.BadParameter(f"the folder of {output} does not exist", param_hint="output")
    keep_compiled()
    console = Console(highlight=False)
    console.print(
        "Bayesian logistic regression, breast-cancer table: 569 rows, 31 weights, N(0, 1) prior.",
        highlight=True,
    )
    done = demonstration.demonstrate(seed, particles)
    table = Table(title="Measured in this run; NUTS draws are the truth", box=SIMPLE)
    table.add_column("", no_wrap=True)
    for column in ("mean error", "worst sd", "energy", "steps", "compile", "run"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in dict.fromkeys([*done.qualities, *done.runs]):
        cells = [f"{value:.3f}" for value in done.qualities.get(name, ())] or [""] * 3
        if name in done.runs:
            run = done.runs[name]
            seconds = run.timing.compile_seconds, run.timing.seconds - run.timing.compile_seconds
            cells += [f"{run.num_steps}", *(f"{value:.1f} s" for value in seconds)]
        table.add_row(name, *cells)
    console.print(table)
    console.print(
        "mean error: root mean square over the weights, in posterior standard deviations.\n"
        "worst sd: the ratio to the true standard deviation that is furthest from 1.\n"
        f"energy: energy distance to the truth over that expected of {particles} independent "
        "draws.\n"
    )
    demonstration.draw(done, output)
    console.print(f"Picture: {output}", soft_wrap=True)
    page = output.with_suffix(".html")
    done.runs["PFG"].report(page, title="Logistic regression on the breast-cancer table")
    console.print(f"Report: {page}", soft_wrap=True)


@app.command()
def data(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets to fetch.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Fetch all of them.")] = False,
) -> None:
    """List the paper's data sets and whether they are present, or fetch those that are named."""
    from parvi.experiments import datasets

    console = Console(highlight=False)
    failed = False
    for name in datasets.DATASETS if everything else names or []:
        try:
            for path in datasets.fetch(name, progress=console.is_terminal):
                console.print(f"{name}: {path}", soft_wrap=True)
            datasets.load(name)
        except (datasets.DataError, ValueError, ImportError) as error:
            failed = True
            console.print(f"{name}: {error}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)
    if names or everything:
        return
    header = ("name", "rows", "features", "present", "licence", "files")
    table = Table(*header, title=f"Looked for in {datasets.folder()}", box=SIMPLE)
    for dataset in datasets.DATASETS.values():
        table.add_row(
            dataset.name,
            f"{dataset.rows}",
            f"{dataset.columns}",
            "yes" if datasets.is_there(dataset.name) else "no",
            dataset.licence,
            ", ".join(file.name for file in dataset.files),
        )
    console.print(table)
    console.print(
        f"`parvi data NAME` fetches one; {datasets.ENVIRONMENT} may name a folder that has them."
    )


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks to run.")] = None,
) -> None:
    """Compare the speed with other libraries, in a clone of the repository (``make bench``)."""
    if not Path("benchmarks/__main__.py").is_file():
        raise typer.BadParameter(
            "the benchmarks are not installed with the library: run this command in a clone of the "
            "repository, which has them in benchmarks/"
        )
    done = subprocess.run([sys.executable, "-m", "benchmarks", *(names or [])], check=False)
    raise typer.Exit(done.returncode)


@app.command()
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments to run.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    quick: Annotated[bool, typer.Option(help="Tiny sizes: minutes instead of hours.")] = False,
    part: Annotated[
        str, typer.Option(help="K/M: run only the K-th of M shares of the work.")
    ] = "1/1",
    results: Annotated[Path, typer.Option(help="Folder of the cells.")] = Path(
        "results/reproduction"
    ),
    page: Annotated[Path, typer.Option(help="The page to write from the cells.")] = Path(
        "docs/reproduction.md"
    ),
) -> None:
    """Run the paper's tables and figures cell by cell and write the page, or list them."""
    from parvi.experiments import reproduce as reproduction

    keep_compiled()
    console = Console(highlight=False)
    known = reproduction.EXPERIMENTS
    unknown = [name for name in names or [] if name not in known]
    if unknown:
        raise typer.BadParameter(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    if quick:
        # A quick cell is not a result, so it must not be among the real ones.
        results, page = results / "quick", results / "quick" / "reproduction.md"
    share = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part)
    if share is None or int(share[1]) > int(share[2]):
        raise typer.BadParameter(f"--part is K/M with K from 1 to M, got {part}")
    chosen = [known[name] for name in (known if everything else names or [])]
    with in_one_line():
        _reproduced(chosen, results, page, quick, (int(share[1]), int(share[2])), console)


def _reproduced(chosen, results: Path, page: Path, quick: bool, share, console: Console) -> None:
    from parvi.experiments import cells
    from parvi.experiments import reproduce as reproduction

    if results.exists() and not results.is_dir():
        raise ValueError(f"--results must be a folder, and {results} is a file.")
    known = reproduction.EXPERIMENTS
    failed = False
    for experiment in chosen:
        missing = cells.progress(experiment, results, quick).missing
        if missing:
            failed = True
            console.print(
                f"{experiment.name}: not run, because the data sets {', '.join(missing)} are "
                f"missing; fetch them with: parvi data {' '.join(missing)}",
                soft_wrap=True,
            )
            continue
        work = cells.pending(experiment, results, quick, share)
        quiet = not console.is_terminal
        for setting in track(work, experiment.name, console=console, disable=quiet):
            cells.make(experiment, results, setting)
    if chosen:
        reproduction.report(results, page, quick)
        console.print(f"Page: {page}", soft_wrap=True)
    else:
        table = Table("name", "what", "cells", "needs", title=f"Cells in {results}", box=SIMPLE)
        for experiment in known.values():
            done, total, missing = cells.progress(experiment, results, quick)
            needs = [f"{n} (missing)" if n in missing else n for n in experiment.datasets]
            table.add_row(experiment.name, experiment.title, f"{done} of {total}", ", ".join(needs))
        console.print(table)
    if failed:
        raise typer.Exit(1)
