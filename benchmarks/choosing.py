"""Every sampler with its defaults on five targets: the table and the picture of docs/choosing.md.

``python -m benchmarks choosing`` measures all cells, saves each to ``results/choosing.json`` as it
finishes, and writes the table into ``docs/choosing.md`` and the picture beside it.
"""

import json
import pathlib

import jax
import numpy as np
from rich.console import Console
from rich.progress import track

import parvi
from parvi.models.logistic import logistic_regression
from parvi.results.metrics import energy_distance, mean_distance
from parvi.samplers.catalogue import READY
from parvi.stopping import exactly
from parvi.targets import zoo

NUM_PARTICLES = 200
NUM_TRUTH = 4000
ROOT = pathlib.Path(__file__).parents[1]

# The part of docs/choosing.md between these lines is made here.
BEGIN, END = "<!-- made by python -m benchmarks choosing -->", "<!-- end -->"
PICTURE = """![the final particles of every sampler on the banana and on the mixture](choosing.png)

*Final particles over exact draws (grey): above the banana, below the mixture.*
"""


def logistic() -> zoo.Exact:
    """Ten weights, 100 synthetic rows; its draws are those of a long NUTS run."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(100, 10))
    labels = rng.random(100) < 1 / (1 + np.exp(-features @ rng.normal(size=10)))
    target = logistic_regression(features, labels)
    start = rng.normal(size=(NUM_TRUTH, 10))
    truth = parvi.sample(target, start, sampler=parvi.nuts(num_draws=5000)).particles
    return zoo.Exact(target, lambda rng, n: rng.permutation(truth)[:n])


def targets() -> dict[str, zoo.Exact]:
    return {
        "Gaussian": zoo.rotated_gaussian(10, 1.0),
        "ill-conditioned": zoo.rotated_gaussian(10, 1e4),
        "banana": zoo.banana(),
        "mixture": zoo.four_modes(),
        "logistic": logistic(),
    }


def evaluations(make, target, result) -> int:
    """Evaluations of the log density in a whole run, with any derivatives."""
    if not isinstance(make(), parvi.Flow):
        return result.num_gradients
    # Every step of a flow is like the others, and its field may ask for curvature, which the
    # history does not count.
    counts = []
    for num_steps in (2, 6):
        count = [0]

        def counted(x, count=count):
            jax.debug.callback(lambda _: count.__setitem__(0, count[0] + 1), x[0])
            return target.log_density(x)

        start = np.random.default_rng(0).normal(size=(8, target.layout.dim))
        parvi.sample(counted, start, sampler=exactly(make(), num_steps), throw=False)
        jax.effects_barrier()
        counts.append(count[0])
    return round((counts[1] - counts[0]) / (4 * 8) * result.num_particles * result.num_steps)


def cell(name, exact, truth) -> dict:
    """One sampler on one target: error against i.i.d., evaluations, seconds."""
    # Compiled programs pile up until the system has no more memory maps to give.
    jax.clear_caches()
    make = READY[name]
    assert exact.target.layout is not None
    dim = exact.target.layout.dim
    start = np.random.default_rng(1).normal(size=(NUM_PARTICLES, dim))
    result = parvi.sample(exact.target, start, sampler=make(), key=0, throw=False)
    centre, scale = truth.mean(axis=0), truth.std(axis=0)
    x, y = (result.particles - centre) / scale, (truth - centre) / scale
    return {
        "energy_ratio": energy_distance(x, y) / (mean_distance(y) / NUM_PARTICLES),
        "evaluations": evaluations(make, exact.target, result),
        "seconds": result.timing.seconds - result.timing.compile_seconds,
        "compile_seconds": result.timing.compile_seconds,
        "steps": result.num_steps,
        "status": result.status.name,
        "particles": result.particles[:, :2].tolist() if dim == 2 else None,
    }


def table(cells: dict, names: list[str]) -> str:
    """Markdown: for each sampler and target, energy ratio / evaluations / seconds."""
    lines = [
        "| sampler | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for sampler, row in cells.items():
        entries = [
            f"**{c['energy_ratio']:.2g}** / {c['evaluations']:.1e} / {c['seconds']:.1f} s"
            for c in (row[name] for name in names)
        ]
        lines.append(f"| `{sampler}` | " + " | ".join(entries) + " |")
    return "\n".join(lines) + "\n"


def picture(cells: dict, truths: dict, path: pathlib.Path) -> None:
    """The final particles of every sampler on the two targets in two dimensions."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = -(-len(cells) // 2)
    figure, axes = plt.subplots(4, columns, figsize=(2.1 * columns, 8.8))
    for axis in axes.flat:
        axis.axis("off")
    for number, name in enumerate(cells):
        half, column = divmod(number, columns)
        for row, which in enumerate(("banana", "mixture")):
            axis = axes[2 * half + row, column]
            axis.axis("on")
            truth = truths[which]
            axis.plot(*truth[:2000].T, ".", color="0.85", markersize=2)
            axis.plot(*np.array(cells[name][which]["particles"]).T, ".", markersize=3)
            low, high = truth.min(axis=0), truth.max(axis=0)
            axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[])
            if row == 0:
                axis.set_title(name, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(console: Console) -> None:
    exacts = targets()
    rng = np.random.default_rng(2)
    truths = {name: exact.draw(rng, NUM_TRUTH) for name, exact in exacts.items()}
    store = ROOT / "results" / "choosing.json"
    store.parent.mkdir(exist_ok=True)
    cells: dict = json.loads(store.read_text()) if store.exists() else {}
    work = [(s, t) for s in READY for t in exacts if t not in cells.get(s, {})]
    for sampler, name in track(work, "choosing", console=console):
        cells.setdefault(sampler, {})[name] = cell(sampler, exacts[name], truths[name])
        # Cells are saved as they finish, so a run that is stopped resumes where it was.
        store.write_text(json.dumps(cells))
    cells = {name: cells[name] for name in READY}
    text = table(cells, list(exacts))
    page = ROOT / "docs" / "choosing.md"
    before, rest = page.read_text().split(BEGIN)
    made = f"{BEGIN}\n{text}\n{PICTURE}\n{END}"
    page.write_text(before + made + rest.split(END)[1])
    picture(cells, truths, ROOT / "docs" / "choosing.png")
    console.print(text)
