"""Rounds: a sequence is run on one subset of the rows after another, until their noise is small.

In the first round a subset stands for all rows by itself. Its posterior has the right shape, but
its mean is wrong by about sqrt(N / B) standard deviations; this round finds modes and a centre for
the next, and tests nothing. In later rounds the subset is corrected to second order around the
particles' mean (``targets.subset``). If the error that is left is small, the particles are tested,
and the run ends as the test did. If not, the next round has the new mean as its centre, and more
rows if the particles see too large an error there too.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from parvi.run.rows import affordable_rows
from parvi.run.trees import as_arrays, as_tree
from parvi.status import Status
from parvi.targets.minibatch import MiniBatch
from parvi.targets.subset import NUM_PARTS, Subset, Taylor, drawn, error, taylor

# The largest error: no mean is off by more than this many standard deviations.
_TOLERATED = 0.05
# The error that a new subset has at the particles from which its round begins.
_WANTED = 0.025
# Rows per dimension in the first subset, which has to determine a posterior by itself.
_PER_DIMENSION = 32
# A subset may grow to this many times the first, however expensive that is.
_ALWAYS = 16
_MOST_ROUNDS = 8


class Rounds:
    """The subsets of a run, one after another.

    Attributes
    ----------
    subset
        The present target.
    number
        The number of the round, from 0.
    error
        The error of the last subset that was judged; None before.
    """

    def __init__(self, whole: MiniBatch, key: Key[Array, ""], particles: Float[Array, "n d"]):
        num, dim = particles.shape
        self._whole, self._key = whole, key
        first = max(whole.batch_size, _PER_DIMENSION * dim)
        affordable = affordable_rows(whole, (num, dim), np.dtype(particles.dtype))
        self._most = _whole_parts(max(min(affordable, whole.num_rows), _ALWAYS * first))
        self.number = 0
        self.error: float | None = None
        self.subset = self._subset(_whole_parts(first), jnp.mean(particles, axis=0), None)

    def is_precise(self, particles: Float[Array, "n d"]) -> bool:
        """Whether the subset is good enough at these particles for a test to mean something."""
        if self.number == 0:
            return False
        self.error = float(error(self.subset, particles))
        return self.error <= _TOLERATED

    def judged(self, particles: Float[Array, "n d"], ended: Status) -> Status:
        """How a run ends after a round with this end; ``RUNNING`` if there is a new subset.

        ``NOISY`` means that the error is too large and there are no more rows or rounds.
        """
        if self.is_precise(particles):
            return ended
        if self.number >= _MOST_ROUNDS:
            return Status.NOISY
        self.number += 1
        centre = jnp.mean(particles, axis=0)
        of_all = taylor(self._whole, centre)
        rows = self.subset.num_rows
        while True:
            self.subset = self._subset(rows, centre, of_all)
            found = float(error(self.subset, particles))
            if found <= _WANTED:
                return Status.RUNNING
            if rows >= self._most:
                self.error = found
                return Status.NOISY
            rows = min(2 * rows, self._most)

    def state(self) -> tuple[dict[str, np.ndarray], dict]:
        """What a checkpoint has to hold: arrays and facts."""
        facts = {"number": self.number, "error": self.error, "rows": self.subset.num_rows}
        return as_arrays("rounds", eqx.filter(self.subset, eqx.is_array)), facts

    def restore(self, arrays: dict[str, np.ndarray], facts: dict) -> None:
        """Go on from that state."""
        self.number, self.error = facts["number"], facts["error"]
        like = self._subset(facts["rows"], self.subset.centre, None)
        numbers, rest = eqx.partition(like, eqx.is_array)
        self.subset = eqx.combine(as_tree("rounds", arrays, numbers), rest)

    def words(self) -> str:
        """What is wrong with a run that ended as ``NOISY``."""
        rows, every = self.subset.num_rows, self._whole.num_rows
        return (
            f"The log density of {rows} rows differs from that of all {every} rows by "
            f"{self.error:.2g} (standard deviation over the particles; {_TOLERATED} is tolerated), "
            "so means may be off by as many standard deviations. Give a larger batch_size, or "
            "batch_size=len(data) to use all rows."
        )

    def _subset(self, num: int, centre: Float[Array, " d"], of_all: Taylor | None) -> Subset:
        # Steps are folded in by their number from 0 on, so rounds take numbers from the other end.
        key = jax.random.fold_in(self._key, jnp.iinfo(jnp.uint32).max - 2 - self.number)
        return drawn(key, self._whole, num, centre, of_all)


def _whole_parts(rows: float) -> int:
    """The next multiple of the number of parts of a subset."""
    return NUM_PARTS * max(1, -(-int(rows) // NUM_PARTS))
