"""Rank statistics that are valid for particles better than independent draws.

Parameters theta are drawn from the prior and data y from the model, so that theta is a draw of the
posterior given y (Talts et al. 2018). Given y, theta is independent of the n particles. With r of
them below it in some scalar, and V uniform on (0, 1), look at

    u = (r + V) / (n + 1).

The argument of Talts et al. that u is uniform needs exchangeable draws, and particles are not
exchangeable: their empirical distribution is closer to the posterior than that of independent
draws. But

    P(r < k | particles) = F(x_(k)),

where x_(k) is the k-th smallest particle and F the posterior's distribution function. So u's
distribution depends only on E F(x_(k)), which must be k / (n + 1). For independent draws this
holds exactly. For the best set of particles, the quantiles (k - 1/2) / n, it differs by

    |(k - 1/2) / n - k / (n + 1)| = |k - (n + 1) / 2| / (n (n + 1)) <= 1 / (2 n),

and for particles between the two by less. Tests on ``num`` data sets detect differences of about
1 / (2 sqrt num), so they hold for all such particles if num is far below n^2. All particles are
used: thinning is for chains whose neighbours are alike, and would only add noise here. The data
sets are independent of each other whatever the particles are, so counts are multinomial.

Two tests are made for each scalar: Pearson's of the histogram, and Neyman's smooth test with four
Legendre polynomials, which detects shifts, wrong widths and skews of a posterior with less data.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.polynomial import legendre
from scipy.special import chdtrc

# Polynomials of Neyman's test: one each for a shift, a width, a skew and the tails.
_ORDER = 4
# Data sets in a bin of the histogram: Pearson's approximation wants five or more.
_PER_BIN = 10
_MOST_BINS = 20
# The largest ratio of the error that particles may make, 1 / 2n, to what the tests can detect.
_NEGLIGIBLE = 0.25


class Verdict(NamedTuple):
    """p-values of every scalar, and after the correction for all of them and for both tests."""

    histogram: Float[np.ndarray, " k"]
    smooth: Float[np.ndarray, " k"]
    adjusted: Float[np.ndarray, " k"]


def uniforms(
    ranks: Int[np.ndarray, "num k"], num_particles: int, rng: np.random.Generator
) -> Float[np.ndarray, "num k"]:
    """u, which is uniform if the posteriors are right."""
    return (ranks + rng.random(ranks.shape)) / (num_particles + 1)


def judged(u: Float[np.ndarray, "num k"]) -> Verdict:
    """Both tests of every column, and Holm's correction over all of them."""
    histogram = np.array([_pearson(column) for column in u.T])
    smooth = np.array([_neyman(column) for column in u.T])
    both = np.minimum(2 * np.minimum(histogram, smooth), 1.0)
    return Verdict(histogram, smooth, holm(both))


def holm(p: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Holm's p-values, which hold however the tests depend on each other."""
    order = np.argsort(p)
    steps = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def num_bins(num: int) -> int:
    """The number of bins of a histogram of so many ranks."""
    return int(np.clip(num // _PER_BIN, 2, _MOST_BINS))


def most_data_sets(num_particles: int) -> int:
    """The number of data sets up to which the tests are valid for all particles, good or best."""
    return int((_NEGLIGIBLE * num_particles) ** 2)


def _pearson(u: Float[np.ndarray, " num"]) -> float:
    bins = num_bins(len(u))
    counts = np.histogram(u, bins, (0.0, 1.0))[0]
    expected = len(u) / bins
    return float(chdtrc(bins - 1, np.sum((counts - expected) ** 2) / expected))


def _neyman(u: Float[np.ndarray, " num"]) -> float:
    values = legendre.legvander(2 * u - 1, _ORDER)[:, 1:] * np.sqrt(
        2 * np.arange(1, _ORDER + 1) + 1
    )
    return float(chdtrc(_ORDER, np.sum(values.sum(axis=0) ** 2) / len(u)))


def shape_of(u: Float[np.ndarray, " num"]) -> str:
    """What is wrong with posteriors that have these ranks, in words."""
    slope, bowl = legendre.legvander(2 * u - 1, 2)[:, 1:].mean(axis=0) * np.sqrt([3.0, 5.0])
    if abs(slope) > abs(bowl):
        return "the particles are too low" if slope > 0 else "the particles are too high"
    return "the particles are too narrow" if bowl > 0 else "the particles are too wide"
