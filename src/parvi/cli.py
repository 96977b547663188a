"""The command line: parse, call, print."""

import pathlib
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import parvi

app = typer.Typer(
    help="Particle-based variational inference.", no_args_is_help=True, add_completion=False
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"parvi {parvi.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and leave.")
    ] = False,
) -> None:
    """Particle-based variational inference."""


@app.command()
def demo(
    output: Annotated[pathlib.Path, typer.Option(help="Where the picture goes.")] = pathlib.Path(
        "demo.png"
    ),
    seed: Annotated[int, typer.Option(help="Of the start and of NUTS.")] = 0,
    particles: Annotated[int, typer.Option(min=64, help="How many.")] = 256,
) -> None:
    """Sample a real posterior with PFG, SVGD and NUTS, and say how good each is."""
    from parvi.experiments import demo as demonstration

    if output.suffix.lower() not in {".png", ".pdf", ".svg"}:
        raise typer.BadParameter(f"{output} should end in .png, .pdf or .svg", param_hint="output")
    if not output.resolve().parent.is_dir():
        raise typer.BadParameter(f"the folder of {output} does not exist", param_hint="output")
    console = Console()
    console.print(
        "Bayesian logistic regression, breast-cancer table: 569 rows, 31 weights, N(0, 1) prior."
    )
    done = demonstration.demonstrate(seed, particles)
    table = Table(title="Measured in this run; NUTS draws are the truth", box=SIMPLE)
    table.add_column("", no_wrap=True)
    for column in ("mean error", "worst sd", "energy", "steps", "compile", "run"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in [*done.qualities, *(name for name in done.runs if name not in done.qualities)]:
        cells = [name, *("" for _ in range(6))]
        if name in done.qualities:
            cells[1:4] = [f"{value:.3f}" for value in done.qualities[name]]
        if name in done.runs:
            run = done.runs[name]
            running = run.timing.seconds - run.timing.compile_seconds
            cells[4:] = [
                f"{run.num_steps}",
                f"{run.timing.compile_seconds:.1f} s",
                f"{running:.1f} s",
            ]
        table.add_row(*cells)
    console.print(table)
    console.print(
        "mean error: root mean square over the weights, in posterior standard deviations.\n"
        "worst sd: the ratio to the true standard deviation that is furthest from 1.\n"
        f"energy: energy distance to the truth over that expected of {particles} independent "
        "draws.\n",
        highlight=False,
    )
    demonstration.draw(done, output)
    console.print(f"Picture: {output}", highlight=False)
