"""Which separated modes the particles lie in, and how sure their weights are.

Some particles climb alone. Two of the places where they end belong to one mode if the log density
has no valley on the way between them. Each mode begins with the highest end that is left, and
takes all ends without a valley towards it. This cuts modes that bend into pieces, so pieces are
joined again where close ends of both have no valley between them. Every particle belongs to the
mode of the nearest end. (Ways between the particles themselves would not do: in many dimensions
the density is higher in the middle of a way, by more than any valley is deep.)
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from parvi.cloud import LogDensity
from parvi.geometry.peaks import DEPTH, climbed, depths
from parvi.kept import carefully
from parvi.samplers.balance import Balanced
from parvi.samplers.path import Passes

# Ways between two pieces.
_NUM_WAYS = 16
# The largest number of pieces, and of particles that climb.
_MOST_PIECES, _MOST = 64, 128
# Share of a piece, the highest in density, among which ways are sought.
_HIGH = 0.8
# Normal score up to which two modes count as equal in weight and in log density.
_EQUAL = 3.0


class Modes(NamedTuple):
    """Separated modes, the heaviest first. Print them to read them in words.

    ``weights``: their shares of the particles. ``standard_errors``: of the weights, from the passes
    of the tempered path and from bridges inside the modes; NaN if the run took no path.
    ``labels``: the mode of every particle. ``copies``: groups of modes that are equal in weight and
    in mean log density, and whose means have changed places, as they do under a change of labels.
    """

    weights: Float[np.ndarray, " k"]
    standard_errors: Float[np.ndarray, " k"]
    labels: Int[np.ndarray, " n"]
    copies: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        if len(self.weights) == 1:
            return "The particles lie in one mode."
        pairs = zip(self.weights, self.standard_errors, strict=True)
        shown = [f"{w:.3f}" + (f" ± {e:.3f}" if np.isfinite(e) else "") for w, e in pairs]
        lines = [f"The particles lie in {len(shown)} separated modes of weights {_and(shown)}."]
        if not np.isfinite(self.standard_errors).any():
            lines.append("No tempered path was taken: the weights are those of the start.")
        for group in self.copies:
            lines.append(
                f"Modes {_and([str(1 + k) for k in group])} look like copies of one mode under a "
                "change of labels: weight and log density are equal, and means change places."
            )
        return " ".join(lines)


def modes_of(
    log_density: LogDensity,
    flat: Float[np.ndarray, "n d"],
    log_densities: Float[np.ndarray, " n"],
    scores: Float[np.ndarray, "n d"],
    passes: Passes | None,
    balanced: Balanced | None = None,
) -> Modes:
    """The modes of flat and unconstrained particles."""
    rows = np.unique(np.linspace(0, len(flat) - 1, min(len(flat), _MOST)).astype(int))
    # In units of the scores' spread, every mode is about one wide.
    unit = scores.std(axis=0) + np.finfo(flat.dtype).tiny
    ends, heights = map(np.asarray, _climbed(log_density, jnp.asarray(flat[rows]), unit))
    pieces = _pieces(log_density, ends, heights)
    pieces = _joined(log_density, ends, heights, pieces, ends * unit)
    _, pieces = np.unique(pieces, return_inverse=True)
    tree = _tree(ends * unit)
    labels = pieces[tree.query(flat * unit)[1]]
    order = np.argsort(-np.bincount(labels), kind="stable")
    rank = np.argsort(order)
    labels = rank[labels]
    weights = np.bincount(labels) / len(labels)
    errors = np.full(len(weights), np.nan)
    if passes is not None:
        nearest = [rank[pieces[tree.query(end * unit)[1]]] for end in np.asarray(passes.ends)]
        errors = _standard_errors(np.asarray(passes.log_evidences, float), nearest, len(weights))
    if balanced is not None:
        own = rank[pieces[tree.query(np.asarray(balanced.places) * unit)[1]]]
        squares = np.asarray(balanced.standard_errors, float) ** 2
        errors = np.sqrt(np.bincount(own, weights=squares, minlength=len(weights)))
    copies = _copies(weights, errors, labels, flat, log_densities)
    return Modes(weights, errors, labels, copies)


_climbed = carefully(climbed)
_depths = carefully(depths)


def _pieces(log_density, points, heights) -> np.ndarray:
    """The piece to which every end belongs: the one with the shallowest valley towards it."""
    left = np.ones(len(points), bool)
    valleys: list[np.ndarray] = []
    while left.any() and len(valleys) < _MOST_PIECES:
        peak = np.argmax(np.where(left, heights, -np.inf))
        valleys.append(_valleys(log_density, points, heights, np.full(len(points), peak)))
        left &= valleys[-1] > DEPTH
        left[peak] = False
    return np.argmin(valleys, axis=0)


def _tree(points: Float[np.ndarray, "n d"]) -> Any:
    """A tree that finds nearest points."""
    # Importing it takes longer than many a run.
    from scipy.spatial import cKDTree

    return cKDTree(points)


def _joined(log_density, points, heights, pieces, scaled) -> np.ndarray:
    """The pieces, after joining those with a way between them that has no valley."""
    pieces = pieces.copy()
    high = {}
    for number in range(pieces.max() + 1):
        rows = np.flatnonzero(pieces == number)
        kept = max(1, int(np.ceil(_HIGH * len(rows))))
        high[number] = rows[np.argsort(-heights[rows])[:kept]]
    for one in high:
        for other in range(one):
            if pieces[high[one][0]] == pieces[high[other][0]]:
                continue
            tree = _tree(scaled[high[other]])
            distances, nearest = tree.query(scaled[high[one]])
            ways = np.argsort(distances)[:_NUM_WAYS]
            ends = np.arange(len(points))
            ends[high[one][ways]] = high[other][nearest[ways]]
            depths = _valleys(log_density, points, heights, ends)[high[one][ways]]
            if np.min(depths) <= DEPTH:
                pieces[pieces == pieces[high[one][0]]] = pieces[high[other][0]]
    return pieces


def _valleys(log_density, points, heights, ends) -> np.ndarray:
    """How deep the valley is between each point and another one."""
    rows = map(jnp.asarray, (points, heights, points[ends], heights[ends]))
    return np.asarray(_depths(log_density, *rows))


def _standard_errors(log_evidences, labels: list[np.ndarray], num: int) -> np.ndarray:
    """The standard errors of the weights, from their differences between passes."""
    made = np.isfinite(log_evidences)
    if made.sum() < 2:
        return np.full(num, np.nan)
    shares = np.where(made, np.exp(log_evidences - log_evidences[made].max()), 0.0)
    shares /= shares.sum()
    weights = np.stack([np.bincount(own, minlength=num) / len(own) for own in labels])
    changes = weights - shares @ weights
    return np.sqrt(shares**2 @ changes**2 * made.sum() / (made.sum() - 1))


class _Side(NamedTuple):
    """What copies of a mode have in common, with standard errors."""

    weight: tuple[float, float]
    height: tuple[float, float]
    means: tuple[np.ndarray, np.ndarray]


def _copies(weights, errors, labels, flat, log_densities) -> tuple[tuple[int, ...], ...]:
    if not np.isfinite(errors).all():
        return ()
    sampling = np.sqrt(weights * (1 - weights) / len(labels))
    sides = []
    for k in range(len(weights)):
        own, heights = flat[labels == k], log_densities[labels == k]
        root = len(own) ** 0.5
        height = (heights.mean(), heights.std() / root)
        means = (own.mean(axis=0), own.std(axis=0) / root)
        sides.append(_Side((weights[k], max(errors[k], sampling[k])), height, means))
    groups: list[list[int]] = []
    for k, side in enumerate(sides):
        home = next((g for g in groups if _are_copies(sides[g[0]], side)), None)
        groups.append([k]) if home is None else home.append(k)
    return tuple(tuple(group) for group in groups if len(group) > 1)


def _are_copies(one: _Side, other: _Side) -> bool:
    """Whether two modes are equal in weight and log density, with means that changed places."""

    def differ(a, b):
        return np.abs(a[0] - b[0]) > _EQUAL * np.hypot(a[1], b[1])

    if differ(one.weight, other.weight) or differ(one.height, other.height):
        return False
    moved = np.flatnonzero(differ(one.means, other.means))
    rows = tuple(part[moved, None] for part in one.means)
    columns = tuple(part[moved] for part in other.means)
    met = ~differ(rows, columns)
    # Logits relative to a fixed one do more than change places, so half of them are enough.
    return len(moved) >= 2 and met.any(axis=1).mean() >= 0.5


def _and(words: list[str]) -> str:
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else words[0]
