"""The cost of a model of another library, warm, compared with the density written by hand.

``python -m benchmarks fronts`` runs every cell (model, library) that is not yet in
``results/fronts/`` and writes ``docs/benchmarks/fronts.md``. Both runs start from the same
particles, which the library's run draws by itself, and take turns. So does a third run, of the
library's own function for the density: the adapter does not cost what that function takes longer
than the density by hand. Stan is compared with as many calls of BridgeStan from a Python loop; it
needs a folder of BridgeStan, named by ``BRIDGESTAN``. It takes about five minutes on two cores. Run
it on a machine without other work.
"""

import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from tests.models import fronts
from tests.models.fronts import BY_HAND, NUMPYRO, PYMC, STAN_DATA

import parvi
from parvi.models.extras import TRACING

ROOT = pathlib.Path(__file__).parents[1]
STORE, PAGE = ROOT / "results" / "fronts", ROOT / "docs" / "benchmarks" / "fronts.md"
FILES = ROOT / "tests" / "models" / "stan"
STAN_FILES = {"schools": "eight_schools", "radon": "radon"}
REPEATS = 15
# Raw calls of BridgeStan that are timed at once.
NUM_CALLS = 20_000
BARS = {"numpyro": 1.1, "pymc": 1.1, "stan": 3.0}
LIBRARIES = {"numpyro": NUMPYRO, "pymc": PYMC}
NUMPYRO_MODELS = {
    "schools": (fronts.schools, (fronts.EFFECTS, fronts.ERRORS)),
    "radon": (fronts.radon, (fronts.COUNTY, fronts.GROUND, fronts.RADON)),
    "mixture": (fronts.mixture, (fronts.POINTS,)),
}


def of_numpyro(model: str) -> Callable:
    """NumPyro's own potential of flat vectors, with its sign turned."""
    from numpyro.infer.util import initialize_model

    function, arguments = NUMPYRO_MODELS[model]
    with jax.enable_x64(True):
        info = initialize_model(
            jax.random.key(0), function, model_args=arguments, validate_grad=False
        )
    like, potential = info.param_info.z, info.potential_fn

    def log_density(x):
        values, first = {}, 0
        for name, value in like.items():
            values[name] = x[first : first + value.size].reshape(value.shape)
            first += value.size
        # NumPyro's stack of handlers is global, and programs are traced on several threads.
        with TRACING:
            return -potential(values)

    return log_density


def of_pymc(model: str) -> Callable:
    """PyMC's own log density of flat vectors."""
    from pymc.sampling.jax import get_jaxified_graph

    made = getattr(fronts, f"pymc_{model}")()
    function = get_jaxified_graph(made.value_vars, [made.logp()])
    shapes = [made.initial_point(0)[variable.name].shape for variable in made.value_vars]

    def log_density(x):
        values, first = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            values.append(x[first : first + size].reshape(shape))
            first += size
        return function(*values)[0]

    return log_density


OWN = {"numpyro": of_numpyro, "pymc": of_pymc}


def beside_hand(model: str, library: str) -> dict[str, Any]:
    """Warm runs of a model and of its density by hand, in turn, from the same starts."""
    target = LIBRARIES[library][model]()
    first = parvi.sample(target, num_steps=0)
    start = first.flat
    hand = parvi.Target(BY_HAND[model], like=start[0])
    bare = parvi.Target(OWN[library](model), like=start[0])
    runs: list[Callable] = [lambda: parvi.sample(target)]
    runs += [lambda t=t: parvi.sample(t, start) for t in (hand, bare)]
    results = [_untimed(run) for run in runs]
    seconds = np.array([[_timed(run) for run in runs] for _ in range(REPEATS)])
    return {
        "dtype": start.dtype.name,
        "steps": [result.num_steps for result in results],
        "status": [result.status.name for result in results],
        "seconds": float(np.median(seconds[:, 0])),
        "seconds_by_hand": float(np.median(seconds[:, 1])),
        "ratio": statistics.median((seconds[:, 0] / seconds[:, 1]).tolist()),
        "ratio_to_own": statistics.median((seconds[:, 0] / seconds[:, 2]).tolist()),
    }


def beside_calls(model: str) -> dict[str, Any]:
    """Warm runs of a Stan model, and as many gradients by BridgeStan alone."""
    import bridgestan

    with tempfile.TemporaryDirectory() as folder:
        file = shutil.copy(FILES / f"{STAN_FILES[model]}.stan", folder)
        stan = bridgestan.StanModel(file, STAN_DATA[model])
    target = parvi.from_stan(stan)
    result = _untimed(lambda: parvi.sample(target))
    rows = np.ascontiguousarray(result.flat)

    def calls():
        for i in range(NUM_CALLS):
            stan.log_density_gradient(rows[i % len(rows)])

    pairs = [(_timed(lambda: parvi.sample(target)), _timed(calls)) for _ in range(REPEATS // 3)]
    each = [run / result.num_gradients for run, _ in pairs]
    raw = [called / NUM_CALLS for _, called in pairs]
    return {
        "steps": [result.num_steps],
        "status": [result.status.name],
        "gradients": result.num_gradients,
        "seconds": statistics.median(run for run, _ in pairs),
        "seconds_of_calls": statistics.median(raw) * result.num_gradients,
        "ratio": statistics.median(a / b for a, b in zip(each, raw, strict=True)),
    }


def _untimed(run: Callable) -> parvi.Result:
    # The second run compiles what the first one found to be worth compiling.
    run()
    return run()


def _timed(run: Callable) -> float:
    before = time.perf_counter()
    run()
    return time.perf_counter() - before


def cell(model: str, library: str) -> dict[str, Any]:
    jax.clear_caches()
    return beside_calls(model) if library == "stan" else beside_hand(model, library)


def main(console: Console) -> None:
    STORE.mkdir(parents=True, exist_ok=True)
    work = [(model, library) for model in BY_HAND for library in LIBRARIES]
    if "BRIDGESTAN" in os.environ:
        work += [(model, "stan") for model in STAN_FILES]
    else:
        console.print("Stan is left out: BRIDGESTAN names no folder.")
    work = [pair for pair in work if not _path(*pair).exists()]
    for model, library in track(work, "fronts", console=console):
        _path(model, library).write_text(json.dumps(cell(model, library), indent=1))
    PAGE.write_text(page())
    console.print(f"Page: {PAGE.relative_to(ROOT)}")


def _path(model: str, library: str) -> pathlib.Path:
    return STORE / f"{model}.{library}.json"


def page() -> str:
    """Seconds of warm runs, and their ratios."""
    lines = [
        "# Models of other libraries",
        "",
        "Made by `python -m benchmarks fronts` from the cells in `results/fronts/`: warm runs of",
        "`parvi.sample(model)` with the default sampler and 512 particles, beside the same density",
        "written by hand from the same starts (NumPyro, PyMC), and beside as many gradients by",
        "BridgeStan from a Python loop (Stan). Ratios are medians over runs that take turns. Those",
        "to the density by hand have the cost of the adapter and that of the library's own way to",
        "compute a density: NumPyro's mixture sums out its labels by enumeration. *Adapter*: the",
        "ratio to a run of the library's own density function, which is what the adapter costs.",
        "",
        "| model | library | seconds | beside | ratio | adapter | bar |",
        "|---|---|---|---|---|---|---|",
    ]
    for model in BY_HAND:
        for library, bar in BARS.items():
            path = _path(model, library)
            if not path.exists():
                continue
            row = json.loads(path.read_text())
            beside = row.get("seconds_by_hand", row.get("seconds_of_calls"))
            own = f"{row['ratio_to_own']:.2f}" if "ratio_to_own" in row else "-"
            lines.append(
                f"| {model} | {library} | {row['seconds']:.3f} | {beside:.3f} | "
                f"{row['ratio']:.2f} | {own} | {bar:g} |"
            )
    return "\n".join([*lines, ""])
