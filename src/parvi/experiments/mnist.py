"""Figure 6: Bayesian networks on MNIST, 101 770 dimensions, 5 to 100 particles.

Networks have one hidden layer of 128 ReLU units and N(0, 1) priors on the weights; pixels range
from 0 to 1. Every method takes 500 steps of 100 rows. Step sizes come from {1e-1, .., 1e-4}: runs
of 200 steps with 10 particles on 50 000 of the training rows are compared by the NLL of the other
10 000, and every number of particles uses the best. SVGD and PFG use Adam without momentum, with
steps that fall linearly to zero. SVGD has the RBF kernel and the median bandwidth. PFG is that of
the UCI data: a network of 32 units and a scaling of each coordinate on the standardised particles,
T' = 1, SGD 1e-2 with momentum 0.9, H = (diagonal Fisher information)^0.5, base shift 1. The default
has nothing to choose, and takes at most as many steps as the others.
"""

import functools

import jax
import numpy as np

from parvi.experiments import datasets
from parvi.experiments.cells import Experiment
from parvi.experiments.figures import panels, save
from parvi.experiments.networks import falling_adam, network_pfg
from parvi.experiments.tables import chosen, footnote, markdown, mean, values
from parvi.fields.pfg.preconditioners import FisherDiagonal
from parvi.fields.svgd import SVGD
from parvi.models.neural_network import (
    classification_scores,
    initial_networks,
    network_classification,
)
from parvi.samplers.default import pfg
from parvi.sampling import sample

_STEP_SIZES = (1e-1, 1e-2, 1e-3, 1e-4)
_HIDDEN = 128
_BATCH = 100
_COUNTS = (5, 10, 50, 100)
_NUM_STEPS = 500
_TUNING = {"particles": 10, "steps": 200, "validation": 10_000}
_DEFAULT = "PFG (default)"
_METHODS = ("SVGD", "PFG", _DEFAULT)


def _sampler(name, size, steps):
    if name == _DEFAULT:
        return pfg(max_steps=steps)
    field = SVGD() if name == "SVGD" else network_pfg(FisherDiagonal(0.5))
    # The size is an array, so that a new value needs no new compilation.
    return falling_adam(field, np.float32(size), steps)


@functools.cache
def _tables():
    """The features and labels of the 60 000 training rows and of the 10 000 test rows."""
    table = datasets.load("mnist")
    features, labels = table.features.astype(np.float32), table.targets.astype(np.int32)
    num = table.num_train
    return (features[:num], labels[:num]), (features[num:], labels[num:])


def _fit(name, size, data, num, steps, seed):
    features, labels = data
    target = network_classification(features, labels, hidden=_HIDDEN, batch_size=_BATCH)
    key = jax.random.key(seed)
    start = initial_networks(key, num, features.shape[1], _HIDDEN, 10, noise=False)
    return sample(target, start, sampler=_sampler(name, size, steps), key=seed, throw=False)


def _scores(run, data):
    accuracy, nll = classification_scores(run.particles, *data)
    return accuracy, (nll if np.isfinite(nll) else float("inf"))


# This is cached for the other numbers of particles, which use the same step size.
@functools.cache
def _validated(name, seed, num, steps, rows):
    """The NLL of every step size on the last ``rows`` of the training rows."""
    features, labels = _tables()[0]
    train, held_out = (features[:-rows], labels[:-rows]), (features[-rows:], labels[-rows:])
    return {
        size: _scores(_fit(name, size, train, num, steps, seed), held_out)[1]
        for size in _STEP_SIZES
    }


def _run(setting):
    name, seed, steps = setting["method"], setting["seed"], setting["steps"]
    train, test = _tables()
    tried, size = {}, None
    if name != _DEFAULT:
        shorter = min(steps, _TUNING["steps"])
        tried = _validated(name, seed, _TUNING["particles"], shorter, _TUNING["validation"])
        size = min(tried, key=lambda s: tried[s])
    run = _fit(name, size, train, setting["particles"], steps, seed)
    accuracy, nll = _scores(run, test)
    return {
        "accuracy": accuracy,
        "nll": nll,
        "step_size": size,
        "validation_nll": {str(s): v if np.isfinite(v) else None for s, v in tried.items()},
        "steps": run.num_steps,
        "status": run.status.name,
        "seconds": run.timing.seconds,
    }


def _settings(quick):
    counts, methods, steps = ((5,), (_DEFAULT,), 2) if quick else (_COUNTS, _METHODS, _NUM_STEPS)
    return [
        {"method": method, "particles": num, "seed": 0, "steps": steps}
        for method in methods
        for num in counts
    ]


def _page(cells, folder):
    methods = list(dict.fromkeys(cell.setting["method"] for cell in cells))
    figure, axes = panels(1, 2, size=3.2)
    rows = []
    for method in methods:
        mine = chosen(cells, method=method)
        counts = sorted({cell.setting["particles"] for cell in mine})
        groups = [chosen(mine, particles=num) for num in counts]
        for ax, name in zip(axes[0], ("accuracy", "nll"), strict=True):
            ax.plot(counts, [np.mean(values(g, name)) for g in groups], "o-", label=method)
        for num, group in zip(counts, groups, strict=True):
            sizes = sorted({cell.result["step_size"] for cell in group} - {None})
            rows.append(
                [
                    method,
                    str(num),
                    mean([100 * v for v in values(group, "accuracy")], 2),
                    mean(values(group, "nll"), 3),
                    ", ".join(f"{size:g}" for size in sizes) or "none",
                    f"{np.median(values(group, 'steps')):.0f}",
                    f"{np.median(values(group, 'seconds')):.0f}",
                ]
            )
    for ax, label in zip(axes[0], ("test accuracy", "test NLL"), strict=True):
        ax.set(xscale="log", xlabel="particles", ylabel=label)
        ax.set_xticks(_COUNTS, [str(num) for num in _COUNTS])
        ax.minorticks_off()
    axes[0][0].legend(fontsize=8)
    text = (
        "The networks have 128 hidden units, and there are 60 000 training and 10 000 test rows; "
        "predictive probabilities are averaged over the particles. The step size is tuned with "
        f"{_TUNING['particles']} particles, {_TUNING['steps']} steps and {_TUNING['validation']} "
        "of the training rows held out, and used for every number of particles. The paper prints "
        "only a picture, and says that PFG is better than SVGD at every number of particles and "
        "improves with it; its SVGD did not fit into memory at 100.\n\n"
    )
    header = ["", "particles", "accuracy %", "NLL", "step size", "steps", "seconds"]
    picture = save(figure, folder, "figure-6")
    return text + markdown(header, rows) + f"\n{picture}\n" + footnote(cells)


MNIST = Experiment(
    "mnist", "Figure 6: Bayesian networks on MNIST", _settings, _run, _page, ("mnist",)
)
