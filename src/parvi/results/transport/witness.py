"""A second witness: whether particles have the means and variances of weighted draws."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from parvi.geometry.drift import BOUND
from parvi.results.transport.importance import Importance


class Witness(NamedTuple):
    """What weighted draws say of particles.

    ``excess``: the largest difference of a mean or a variance, in standard errors, minus what is
    expected by chance of so many numbers. ``changes``: the larger of both for every coordinate.
    ``share``: the share of effective draws.
    """

    excess: float
    changes: Float[np.ndarray, " d"]
    share: float

    @property
    def bound(self) -> float:
        """The difference of one coordinate above which it is not chance."""
        return BOUND + _by_chance(len(self.changes))

    @property
    def agrees(self) -> bool:
        """Whether the differences may be chance."""
        return self.excess <= BOUND


def witnessed(importance: Importance, flat: Float[np.ndarray, "n d"]) -> Witness:
    """Compare flat particles with weighted draws. Particles are taken to be as exact as draws."""
    draws, weights = importance.draws.astype(float), importance.weights
    flat = flat.astype(float)
    num, dim = flat.shape
    means = weights @ draws
    centred = draws - means
    variances = weights @ centred**2
    fourths = weights @ (centred**2 - variances) ** 2
    of_means = np.sqrt((weights**2) @ centred**2 + variances / num)
    of_variances = np.sqrt((weights**2) @ (centred**2 - variances) ** 2 + fourths / num)
    own = flat - means
    changes = np.maximum(
        np.abs(own.mean(axis=0)) / of_means,
        np.abs((own**2).mean(axis=0) - variances) / of_variances,
    )
    changes = np.where(np.isfinite(changes), changes, np.inf)
    return Witness(float(changes.max() - _by_chance(dim)), changes, importance.share)


def _by_chance(dim: int) -> float:
    """The largest of the errors of d means and d variances, by chance."""
    return math.sqrt(2 * math.log(4 * dim))
