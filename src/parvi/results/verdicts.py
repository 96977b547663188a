"""What is known of every parameter: its drift, its Stein ratio, and a word for both.

The drift is the largest change of its mean or variance under the run's own Hamiltonian transitions,
in standard errors. The Stein ratio is -E[s (x - E x)], which is 1 for the target's own draws,
smaller where the particles are too narrow, and larger where they are too wide.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float, Int

from parvi.geometry.drift import BOUND
from parvi.targets.flatten import AbstractLayout, names_of

# Chance that some parameter of exact draws gets a word other than "ok".
_CHANCE = 0.01
# Errors of a ratio up to this are too small to matter.
_NEGLIGIBLE = 0.1
# The three words for what is wrong, in the order in which they are looked for.
DRIFTS, NARROW, WIDE = "drifts", "too narrow", "too wide"
# The word if none of them fits.
OK = "ok"
# The word for every parameter of a run that failed.
FAILED = "failed"
# The words instead of "ok" where a check has found something: separated modes whose weights nobody
# has tested; a square whose identity fails; another mean or variance of the map's draws; or what is
# wrong with all parameters together.
UNWEIGHED, SKEWED, DISPUTED, IN_DOUBT = "unweighed", "skewed", "disputed", "in doubt"


def drift_bound(dim: int) -> float:
    """The drift above which one of d parameters is in doubt: the bound of the run's own test."""
    return BOUND + math.sqrt(2 * math.log(6 * dim))


class Verdicts(NamedTuple):
    """Drift (NaN if it was not tested), Stein ratio and its error, of every number."""

    drifts: Float[np.ndarray, " d"]
    ratios: Float[np.ndarray, " d"]
    errors: Float[np.ndarray, " d"]

    @classmethod
    def of(
        cls,
        flat: Float[np.ndarray, "n d"],
        scores: Float[np.ndarray, "n d"],
        drifts: Float[np.ndarray, " d"] | None,
    ) -> "Verdicts":
        """The verdicts on particles with these scores."""
        unknown = np.full(flat.shape[1], np.nan)
        # The scores of a run that failed may overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            terms = -np.asarray(scores, float) * (flat - flat.mean(axis=0))
            return cls(
                unknown if drifts is None else np.asarray(drifts, float),
                terms.mean(axis=0),
                terms.std(axis=0) / len(flat) ** 0.5,
            )

    def words(self) -> np.ndarray:
        """A word for every number; about one in 100 runs of exact draws has a wrong one."""
        bound = float(-scipy.special.ndtri(_CHANCE / (2 * len(self.drifts))))
        margin = _NEGLIGIBLE + bound * self.errors
        found = np.where(np.isnan(self.ratios), "", OK).astype("<U10")
        found[self.ratios > 1 + margin] = WIDE
        found[self.ratios < 1 - margin] = NARROW
        # The bound of the run's own test, so that the words never contradict it.
        found[self.drifts > drift_bound(len(self.drifts))] = DRIFTS
        return found

    def per_name(self, layout: AbstractLayout) -> "Verdicts":
        """The verdicts on the user's scale.

        An array with another number of unconstrained numbers gets the worst of these, and what is
        computed from other parameters gets none.
        """
        flat_names = layout.flat_names()
        places = {name: place for place, name in enumerate(flat_names)}
        stems = np.array([name.partition("[")[0] for name in flat_names])
        chosen = []
        for path, shape in zip(layout.paths, layout.shapes, strict=True):
            rows, size = np.flatnonzero(stems == (path or "x")), math.prod(shape)
            names = names_of((path,), (shape,), layout.labels)
            if len(rows) != size:
                chosen.append(np.full(size, self._worst(rows)))
            elif {flat_names[row] for row in rows} == set(names) and len(set(names)) == size:
                # In Stan the first index runs fastest.
                chosen.append(np.array([places[name] for name in names], int))
            else:
                chosen.append(rows)
        return Verdicts(*(np.append(column, np.nan)[np.concatenate(chosen)] for column in self))

    def _worst(self, rows: Int[np.ndarray, " m"]) -> int:
        """The row that is most in doubt, or the last place, which is NaN, if there are no rows."""
        if not len(rows):
            return len(self.drifts)
        off = np.abs(np.log(np.maximum(self.ratios[rows], 1e-12))) / (
            _NEGLIGIBLE + self.errors[rows]
        )
        return int(rows[np.argmax(np.fmax(np.nan_to_num(self.drifts[rows]), off))])


def doubted(words: np.ndarray, names: list[str], doubts: dict[str, str]) -> np.ndarray:
    """The words after a check: "ok" gives way to what a finding says of the parameter.

    Findings are about unconstrained numbers. If these are not the numbers of the array themselves,
    as for a simplex, a doubt about any of them is one about the whole array.
    """
    known = set(names)
    arrays = {name.partition("[")[0]: word for name, word in doubts.items() if name not in known}
    others = doubts.get("", OK)
    said = [doubts.get(name, arrays.get(name.partition("[")[0], others)) for name in names]
    return np.where(words == OK, said, words)
