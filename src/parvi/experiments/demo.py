"""The demonstration: PFG and SVGD on a real posterior, with NUTS as the truth.

The posterior is Bayesian logistic regression on the breast-cancer table that scikit-learn ships:
569 rows, 30 standardised features and an intercept, N(0, 1) prior. Every number it prints is
measured in this run.
"""

import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from parvi import Result, Target, nuts, pfg, sample, svgd
from parvi.models.logistic import logistic_regression
from parvi.results.metrics import energy_distance, mean_distance

TRUTH = "NUTS (truth)"

# Number of sets of independent draws that the particles are compared with.
_NUM_SETS = 20


class Quality(NamedTuple):
    """The errors of a set of particles, in units of the truth's own spread."""

    mean_error: float
    worst_sd_ratio: float
    energy_ratio: float


class Demonstration(NamedTuple):
    """The truth, the runs and their measured qualities."""

    truth: Float[np.ndarray, "m d"]
    runs: dict[str, Result]
    qualities: dict[str, Quality]


def posterior() -> Target:
    """Logistic regression on the breast-cancer table."""
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as error:
        raise ImportError(
            "The demonstration needs scikit-learn and matplotlib: pip install 'parvi[demo]'."
        ) from error
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    return logistic_regression(np.column_stack([features, np.ones(len(features))]), labels)


def demonstrate(seed: int = 0, num_particles: int = 256, num_truth: int = 8000) -> Demonstration:
    """Run PFG, SVGD and NUTS, and measure the first two against the last."""
    target = posterior()
    assert target.layout is not None
    rng = np.random.default_rng(seed)
    init = rng.normal(size=(num_particles, target.layout.dim))
    runs = {
        "PFG": sample(target, init, key=seed, sampler=pfg()),
        "SVGD": sample(target, init, key=seed, sampler=svgd()),
    }
    chains = rng.normal(size=(num_truth, target.layout.dim))
    runs[TRUTH] = sample(target, chains, key=seed, sampler=nuts(num_draws=num_truth // 4))

    draws = rng.permutation(runs[TRUTH].matrix())
    truth, rest = draws[: len(draws) // 2], draws[len(draws) // 2 :]
    sets = [rng.choice(rest, num_particles, replace=False) for _ in range(_NUM_SETS)]
    independent = [quality(drawn, truth) for drawn in sets]
    qualities = {name: quality(runs[name].matrix(), truth) for name in ("PFG", "SVGD")}
    errors, ratios, energies = zip(*independent, strict=True)
    averages = Quality(float(np.mean(errors)), float(np.median(ratios)), float(np.mean(energies)))
    qualities[f"{num_particles} i.i.d. draws"] = averages
    return Demonstration(truth, runs, qualities)


def quality(particles: Float[np.ndarray, "n d"], truth: Float[np.ndarray, "m d"]) -> Quality:
    """Errors of a set of particles, each parameter standardised by the truth.

    ``mean_error`` is the root mean square over the parameters, in standard deviations;
    ``worst_sd_ratio`` is the ratio of standard deviations furthest from 1; ``energy_ratio`` is the
    energy distance divided by the one expected of the same number of independent draws.
    """
    centre, scale = truth.mean(axis=0), truth.std(axis=0)
    x, y = (particles - centre) / scale, (truth - centre) / scale
    ratios = x.std(axis=0)
    expected = mean_distance(y) / len(x)
    return Quality(
        mean_error=float(np.sqrt(np.mean(x.mean(axis=0) ** 2))),
        worst_sd_ratio=float(ratios[np.argmax(np.abs(np.log(ratios)))]),
        energy_ratio=energy_distance(x, y) / expected,
    )


def draw(demonstration: Demonstration, path: pathlib.Path) -> None:
    """Draw the particles over the truth in its two widest directions, and all sd ratios."""
    from matplotlib.figure import Figure

    truth = demonstration.truth
    directions = np.linalg.svd(truth - truth.mean(axis=0), full_matrices=False)[2][:2]
    projected = truth @ directions.T
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    colours = {"PFG": "tab:blue", "SVGD": "tab:orange"}
    low, high = projected.min(axis=0), projected.max(axis=0)
    for axis, name in ((left, "PFG"), (middle, "SVGD")):
        axis.hexbin(*projected.T, gridsize=40, cmap="Greys", mincnt=1, linewidths=0.2)
        particles = demonstration.runs[name].matrix() @ directions.T
        axis.scatter(*particles.T, s=10, color=colours[name], label=f"{len(particles)} particles")
        axis.set(
            title=f"{name} over the truth (grey)",
            xlabel="widest direction of the posterior",
            ylabel="second widest direction",
            xlim=(low[0], high[0]),
            ylim=(low[1], high[1]),
        )
        axis.legend(loc="upper right")
    for name, colour in colours.items():
        ratios = demonstration.runs[name].matrix().std(axis=0) / truth.std(axis=0)
        right.plot(ratios, "o", color=colour, label=name, markersize=4)
    num = len(demonstration.runs["PFG"].matrix())
    # For n independent normal draws the ratio is within 2 / sqrt(2 n) of 1, 19 times in 20.
    band = 2 / np.sqrt(2 * num)
    right.axhspan(1 - band, 1 + band, color="0.88", label=f"95 % of {num} independent draws")
    right.axhline(1, color="0.5", linewidth=1)
    right.set(title="Standard deviation over the truth's", xlabel="parameter", ylim=(0, 1.7))
    right.legend(loc="upper right")
    figure.savefig(path, dpi=120)
