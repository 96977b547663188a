"""Figure 6: Bayesian networks on MNIST, 101 770 dimensions, 5 to 100 particles.

The weights have N(0, 1) priors, and pixels range from 0 to 1. Every method takes 500 steps of 100
rows. The NLL of held-out rows chooses the step size from {1e-1, .., 1e-4}, as the page says. SVGD
and PFG use Adam without momentum, with steps that fall linearly to zero. SVGD has the RBF kernel
and the median bandwidth, and PFG is that of the UCI data. The default has nothing to choose, and
takes at most as many steps as the others.
"""

import functools

import jax
import numpy as np

from parvi import pfg, sample
from parvi.experiments import datasets, tables
from parvi.experiments.cells import Experiment
from parvi.experiments.figures import panels, save
from parvi.experiments.tuning import DEFAULT, STEP_SIZES, best, tuned_facts
from parvi.fields import SVGD
from parvi.models import neural_network
from parvi.preconditioners import FisherDiagonal
from parvi.samplers.networks import falling_adam, network_pfg

_HIDDEN = 128
_BATCH = 100
_COUNTS = (5, 10, 50, 100)
_NUM_STEPS = 500
_TUNING = {"particles": 10, "steps": 200, "validation": 10_000}
_METHODS = ("SVGD", "PFG", DEFAULT)


def _sampler(name, size, steps):
    if name == DEFAULT:
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
    target = neural_network.network_classification(features, labels, 10, _HIDDEN, _BATCH)
    key = jax.random.key(seed)
    start = neural_network.initial_networks(key, num, features.shape[1], _HIDDEN, 10, noise=False)
    return sample(target, start, sampler=_sampler(name, size, steps), key=seed, throw=False)


def _scores(run, data):
    accuracy, nll = neural_network.classification_scores(run.particles, *data)
    return accuracy, (nll if np.isfinite(nll) else float("inf"))


# This is cached for the other numbers of particles, which use the same step size.
@functools.cache
def _validated(name, seed, num, steps, rows):
    """The NLL of every step size on the last ``rows`` of the training rows."""
    features, labels = _tables()[0]
    train, held_out = (features[:-rows], labels[:-rows]), (features[-rows:], labels[-rows:])
    runs = {size: _fit(name, size, train, num, steps, seed) for size in STEP_SIZES}
    return {size: _scores(run, held_out)[1] for size, run in runs.items()}


def _run(setting):
    name, seed, steps = setting["method"], setting["seed"], setting["steps"]
    train, test = _tables()
    tried = {}
    if name != DEFAULT:
        shorter = min(steps, _TUNING["steps"])
        tried = _validated(name, seed, _TUNING["particles"], shorter, _TUNING["validation"])
    size = best(tried)
    run = _fit(name, size, train, setting["particles"], steps, seed)
    accuracy, nll = _scores(run, test)
    return {"accuracy": accuracy, "nll": nll, **tuned_facts(run, size, tried)}


def _settings(quick):
    counts, methods, steps = ((5,), (DEFAULT,), 2) if quick else (_COUNTS, _METHODS, _NUM_STEPS)
    return [
        {"method": method, "particles": num, "seed": 0, "steps": steps}
        for method in methods
        for num in counts
    ]


def _page(cells, folder):
    figure, axes = panels(1, 2, size=3.2)
    rows = []
    for method in tables.distinct(cells, "method"):
        mine = tables.chosen(cells, method=method)
        counts = sorted(tables.distinct(mine, "particles"))
        groups = [tables.chosen(mine, particles=num) for num in counts]
        for ax, name in zip(axes[0], ("accuracy", "nll"), strict=True):
            ax.plot(counts, [np.mean(tables.values(g, name)) for g in groups], "o-", label=method)
        for num, group in zip(counts, groups, strict=True):
            accuracy = tables.mean(tables.values(group, "accuracy", 100), 2)
            nll = tables.mean(tables.values(group, "nll"), 3)
            medians = [tables.median(group, name, 0) for name in ("steps", "seconds")]
            rows.append([method, str(num), accuracy, nll, tables.step_sizes(group), *medians])
    for ax, label in zip(axes[0], ("test accuracy", "test NLL"), strict=True):
        ax.set(xscale="log", xlabel="particles", ylabel=label)
        ax.set_xticks(_COUNTS, [str(num) for num in _COUNTS])
        ax.minorticks_off()
    axes[0][0].legend()
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
    return text + tables.markdown(header, rows) + f"\n{picture}\n" + tables.footnote(cells)


MNIST = Experiment(
    "mnist", "Figure 6: Bayesian networks on MNIST", _settings, _run, _page, ("mnist",)
)
