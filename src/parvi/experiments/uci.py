"""Table 2 and its three appendix tables: Bayesian neural networks on UCI data, 100 particles.

Networks have one hidden layer of 50 ReLU units (100 for Year) and see mini-batches of 100 rows
(1000). There are ten of the standard splits, with nine tenths for training. Step sizes come from
{1e-1, .., 1e-4}: every method makes four runs on four fifths of the first split's training rows,
and the log-likelihood of the rest chooses the value for all splits. Step sizes fall linearly to
zero for every method. PFG has a network of 32 units and a scaling of each coordinate on the
standardised particles, one inner step of SGD 1e-2 with momentum 0.9, base shift 1 and
H = (diagonal Fisher information)^0.5. PFG and kernel methods use Adam without momentum.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np

from parvi.experiments import datasets
from parvi.experiments.cells import Experiment
from parvi.experiments.networks import Falling, falling_adam, network_pfg
from parvi.experiments.tables import (
    chosen,
    footnote,
    markdown,
    mean,
    ordering,
    published,
    values,
)
from parvi.fields.matrix_svgd import MatrixSVGD, SharedPreconditioner
from parvi.fields.pfg.preconditioners import FisherDiagonal, Identity, Kronecker
from parvi.fields.sliced_svgd import SlicedSVGD
from parvi.fields.svgd import SVGD
from parvi.interface import AbstractField
from parvi.models.neural_network import initial_networks, network_regression, regression_scores
from parvi.samplers.default import pfg
from parvi.samplers.psgld import psgld
from parvi.samplers.sgld import sgld
from parvi.sampling import sample
from parvi.stopping import exactly

DEFAULT = "PFG (default)"
_STEP_SIZES = (1e-1, 1e-2, 1e-3, 1e-4)
_NUM_PARTICLES = 100
_NUM_SPLITS = {"correct": 10, "paper": 3}
_NUM_STEPS = {"correct": 1000, "paper": 4000}
# A thousand steps leave every method far from its best here.
_MORE_STEPS = {"energy": 2000}
# A step of S-SVGD has d kernel matrices, and takes as long as about ten of the others.
_SLICED_SHARE = 4
_DATASETS = ("boston", "concrete", "energy", "wine-red", "wine-white", "protein")
_METHODS = ("SVGD", "SGLD", "M-SVGD", "pSGLD", "S-SVGD", "PFG w/o preconditioning", "PFG", DEFAULT)
_METHODS_OF = {"correct": _METHODS, "paper": ("SVGD", "pSGLD", "PFG", DEFAULT)}
_ALPHA = 0.5


class Problem(NamedTuple):
    """The rows to fit and the rows to score, with y = centre + scale f(x)."""

    features: np.ndarray
    targets: np.ndarray
    test_features: np.ndarray
    test_targets: np.ndarray
    centre: float
    scale: float


def _problem(table, rows, protocol) -> Problem:
    train, test = rows
    centre, scale = table.features[train].mean(axis=0), table.features[train].std(axis=0)
    features = ((table.features - centre) / np.where(scale > 0, scale, 1.0)).astype(np.float32)
    y, own_centre, own_scale = table.targets, 0.0, 1.0
    if protocol == "correct":
        own_centre, own_scale = float(y[train].mean()), float(y[train].std())
    scaled = ((y[train] - own_centre) / own_scale).astype(np.float32)
    return Problem(features[train], scaled, features[test], y[test], own_centre, own_scale)


def _split(table, number):
    if table.num_train is not None:
        rows = np.arange(len(table.targets))
        return rows[: table.num_train], rows[table.num_train :]
    return datasets.standard_splits(len(table.targets), number + 1)[number]


def _hidden(dataset):
    return 100 if dataset == "year" else 50


def _sampler(method, size, problem, hidden, steps):
    if method == DEFAULT:
        return pfg(max_steps=steps)
    return exactly(_tunable(method, size, problem, hidden, steps), steps)


def _tunable(method, size, problem, hidden, steps):
    # The size is an array, so that a new value needs no new compilation.
    size = np.float32(size)
    rows = len(problem.targets)
    if method == "SGLD":
        # The curvature grows with the rows, and SGLD has no metric to divide by it.
        return sgld(Falling(size * np.float32(3 / rows), steps))
    if method == "pSGLD":
        return psgld(Falling(size / np.float32(rows), steps), num_rows=rows)
    like = initial_networks(jax.random.key(0), 1, problem.features.shape[1], hidden)
    blocks = Kronecker.like({name: value[0] for name, value in like.items()})
    fields: dict[str, AbstractField] = {
        "SVGD": SVGD(),
        "M-SVGD": MatrixSVGD(SharedPreconditioner(blocks)),
        "S-SVGD": SlicedSVGD(),
        "PFG w/o preconditioning": network_pfg(Identity()),
        "PFG": network_pfg(FisherDiagonal(_ALPHA)),
    }
    return falling_adam(fields[method], size, steps)


def _fit(setting, size, problem):
    dataset, method = setting["dataset"], setting["method"]
    batch = 1000 if dataset == "year" else 100
    correct = setting["protocol"] == "correct"
    hidden = _hidden(dataset)
    target = network_regression(
        problem.features,
        problem.targets,
        hidden,
        batch,
        # The paper's code has Gamma(1, 10), no Jacobian, and targets as they are.
        rate=0.1 if correct else 10.0,
        jacobian=correct,
    )
    key, start_key = jax.random.split(jax.random.key(setting["split"]))
    start = initial_networks(start_key, _NUM_PARTICLES, problem.features.shape[1], hidden)
    sampler = _sampler(method, size, problem, hidden, setting["steps"])
    return sample(target, start, sampler=sampler, key=key, throw=False)


def _scores(run, problem, mixture):
    particles = {name: np.asarray(value, np.float32) for name, value in run.particles.items()}
    with np.errstate(over="ignore", invalid="ignore"):
        return regression_scores(
            particles,
            problem.test_features,
            problem.test_targets,
            problem.centre,
            problem.scale,
            mixture,
        )


@functools.lru_cache
def _tuned(protocol, dataset, method, steps) -> dict[float, float]:
    """The log-likelihood of the validation rows for each step size."""
    table = datasets.load(dataset)
    train, _ = _split(table, 0)
    cut = len(train) * 4 // 5
    problem = _problem(table, (train[:cut], train[cut:]), protocol)
    setting = {"protocol": protocol, "dataset": dataset, "method": method, "split": 0}
    tried = {}
    for size in _STEP_SIZES:
        run = _fit(setting | {"steps": steps}, size, problem)
        tried[size] = _scores(run, problem, protocol == "correct")[1]
    return tried


def _run(setting):
    table = datasets.load(setting["dataset"])
    tried, size = {}, None
    if setting["method"] != DEFAULT:
        names = ("protocol", "dataset", "method", "steps")
        tried = _tuned(*(setting[name] for name in names))
        size = max(tried, key=lambda s: tried[s] if np.isfinite(tried[s]) else -np.inf)
    problem = _problem(table, _split(table, setting["split"]), setting["protocol"])
    run = _fit(setting, size, problem)
    rmse, log_likelihood = _scores(run, problem, setting["protocol"] == "correct")
    return {
        "rmse": rmse,
        "log_likelihood": log_likelihood,
        "step_size": size,
        "validation": {str(s): v if np.isfinite(v) else None for s, v in tried.items()},
        "steps": run.num_steps,
        "status": run.status.name,
        "seconds": run.timing.seconds,
    }


def _settings(quick):
    if quick:
        return [_setting("correct", "boston", "PFG", 0, 5)]
    known = [*_DATASETS, *(["year"] if datasets.is_there("year") else [])]
    # The expensive method comes last.
    order = {False: [m for m in _METHODS if m != "S-SVGD"], True: ["S-SVGD"]}
    return [
        _setting(protocol, dataset, method, split, _steps(protocol, dataset, dear))
        for protocol, methods in _METHODS_OF.items()
        for dear, group in order.items()
        for dataset in known
        for method in group
        if method in methods
        for split in range(1 if dataset == "year" else _NUM_SPLITS[protocol])
    ]


def _steps(protocol, dataset, dear):
    most = max(_NUM_STEPS[protocol], _MORE_STEPS.get(dataset, 0))
    return most // (_SLICED_SHARE if dear else 1)


def _setting(protocol, dataset, method, split, steps):
    return {
        "protocol": protocol,
        "dataset": dataset,
        "method": method,
        "split": split,
        "steps": steps,
    }


def _table(cells):
    paper = published("uci")
    rows = []
    for dataset in dict.fromkeys(cell.setting["dataset"] for cell in cells):
        for method in _METHODS:
            mine = chosen(cells, dataset=dataset, method=method)
            if not mine:
                continue
            printed = paper.get(dataset, {}).get(method)
            sizes = {cell.result["step_size"] for cell in mine} - {None}
            rows.append(
                [
                    dataset,
                    method,
                    mean(values(mine, "rmse"), 2),
                    "" if printed is None else f"{printed[0]:.2f}",
                    mean(values(mine, "log_likelihood"), 2),
                    "" if printed is None else f"{printed[1]:.2f}",
                    ", ".join(f"{size:g}" for size in sorted(sizes)) or "none",
                    f"{np.median(values(mine, 'seconds')):.1f}",
                ]
            )
    if not chosen(cells, dataset="year"):
        for method, printed in paper["year"].items():
            numbers = ["not run here", f"{printed[0]:.2f}", "not run here", f"{printed[1]:.2f}"]
            rows.append(["year", method, *numbers, "", ""])
    header = ["data", "method", "RMSE", "paper's", "LL", "paper's", "step size", "seconds"]
    lines = [
        ordering(cells, "PFG", "rmse", larger=False),
        ordering(cells, "PFG", "log_likelihood", larger=True),
    ]
    return markdown(header, rows) + "\n" + "\n".join(lines) + "\n" + footnote(cells)


_PROTOCOLS = {
    "correct": (
        "Features and targets are standardised by the training rows, and scores are on the "
        "targets' own scale. Both precisions have Gamma(1, 0.1) priors with the Jacobian of the "
        "log scale, and the log-likelihood is that of the predictive mixture. Every method takes "
        f"{_NUM_STEPS['correct']} steps (Energy: {_MORE_STEPS['energy']}); S-SVGD takes a quarter "
        "of that, as its steps are slower, and the default takes at most as many. The paper takes "
        "20 000 and has another protocol (below), so its figures are of another experiment. The "
        "default is last: with fewer particles than dimensions it moves each coordinate by one "
        "affine map for all particles, which cannot fit networks that differ from each other, and "
        "its runs end as MAX_STEPS. Year runs only if its file is there (`parvi data year`).\n\n"
    ),
    "paper": (
        "This is the protocol of the paper's code: targets are not standardised, the Gamma(1, 10) "
        "priors lack the Jacobian, and the log-likelihood is that of the mean prediction with the "
        f"mean precision. The rest is as above, with {_NUM_STEPS['paper']} steps for every method, "
        "because the precision of the noise starts far off on targets of this size and settles "
        "late. Where PFG is below in log-likelihood, its precisions have hardly left their start "
        "(checked on Boston and Energy). The likely cause is that all particles start with the "
        "same precision and take the same first steps, so they are standardised by a spread close "
        "to zero.\n\n"
    ),
}


def _page(cells, folder):
    parts = []
    for protocol, text in _PROTOCOLS.items():
        mine = chosen(cells, protocol=protocol)
        if mine:
            parts.append(f"### The {protocol} protocol\n\n{text}{_table(mine)}")
    return "\n".join(parts)


UCI = Experiment(
    "uci",
    "Table 2 and its three appendix tables: Bayesian neural networks on UCI data",
    _settings,
    _run,
    _page,
    _DATASETS,
)
