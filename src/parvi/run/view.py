"""What the stages of a run see: the target in some coordinates, on some rows, and a start."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int, Key

from parvi.cloud import Place
from parvi.evaluation import evaluate
from parvi.run.checkpoint import Saved
from parvi.run.compile.programs import Context, Record
from parvi.run.coordinates import Coordinates
from parvi.run.history import with_column
from parvi.run.reading import evaluated, holds, on_device, rows_of
from parvi.run.rounds import Rounds
from parvi.run.sharding import replicate, spread_target
from parvi.run.trees import as_arrays, as_tree
from parvi.samplers.apart import Apart
from parvi.samplers.exploration import AbstractExploration
from parvi.samplers.sequence import Stage
from parvi.samplers.straighten import AbstractChange
from parvi.samplers.survey import Survey
from parvi.status import Status
from parvi.targets.minibatch import MiniBatch
from parvi.targets.target import AbstractTarget

# Number of first particles that are passed to stages.
_NUM_TOLD = 24


def rows_told(num: int) -> Int[np.ndarray, " m"]:
    """The rows of n particles that stages get as the start."""
    return np.arange(min(num, _NUM_TOLD)) * num // min(num, _NUM_TOLD)


class View:
    """A run's target and key, on its devices, and the forms in which stages meet them.

    Attributes
    ----------
    target, key
        Those of the run.
    rounds
        The subsets of rows that stages see one after another; None if they see all rows.
    start
        The particles that stages get as the start: some first ones of the run or of its present
        round, in the present coordinates.
    """

    def __init__(
        self,
        target: AbstractTarget,
        key: Key[Array, ""],
        particles: Float[Array, "n d"],
        by_rounds: bool,
        sharding: NamedSharding | None,
    ):
        # Data in NumPy arrays would be copied at every call, so they are moved once.
        if sharding is None:
            self.target, self.key = jax.tree_util.tree_map(on_device, (target, key))
        else:
            self.target = spread_target(target, sharding.mesh)
            self.key = replicate(key, sharding.mesh)
        self._sharding = sharding
        self._coordinates = Coordinates(self.target)
        self.rounds = Rounds(self.target, self.key, particles) if by_rounds else None
        self.begin(particles)

    @property
    def seen(self) -> AbstractTarget:
        """The target as the stages see it."""
        return self._coordinates.seen if self.rounds is None else self.rounds.subset

    @property
    def is_comparable(self) -> bool:
        """Whether stages may compare log densities: not on mini-batches or several processes.

        XLA's collectives between processes on CPUs may overtake each other in such stages.
        """
        return self.seen.is_fixed and (self._sharding is None or jax.process_count() == 1)

    def begin(self, particles: Float[Array, "n d"]) -> None:
        """Give stages some of these particles as the start."""
        rows = rows_told(len(particles))
        self.start: Float[Array, "m d"] = rows_of(particles, rows, self._sharding)

    def context(self, stage: Stage, reports: dict[str, Any]) -> Context:
        """Everything that does not change during a stage."""
        sampler = stage.sampler.told(self.start, reports)
        sampler = jax.tree_util.tree_map(on_device, sampler)
        if self._sharding is not None:
            sampler = replicate(sampler, self._sharding.mesh)
        return Context(self.key, sampler, self.seen, self._sharding)

    def wants(self, stage: Stage, place: Place, done: dict[str, Status]) -> bool:
        """Whether the condition of a stage holds.

        Corrected subsets of rows are right near the particles only, so a survey would tell nothing.
        """
        if self.rounds is not None and isinstance(stage.sampler, Survey):
            return False
        known = stage.when.known(place.particles.shape, done)
        return bool(holds(stage.when, place, self.seen, self.key)) if known is None else known

    def is_futile(self, stage: Stage, place: Place) -> bool:
        """Whether the stage would test a log density that is known to be wrong."""
        tests = stage.sampler.sampler if isinstance(stage.sampler, Apart) else stage.sampler
        if self.rounds is None or not isinstance(tests, AbstractExploration):
            return False
        return not self.rounds.is_precise(place.particles)

    def read(self, place: Place, held: bool) -> Place:
        """The place with or without its scores."""
        if not held:
            return Place(place.particles, None, None)
        if place.scores is not None:
            return place
        if self.seen.is_fixed and self._sharding is None:
            values, scores = evaluate(self.seen.full(), place.particles)
            return Place(place.particles, scores, values)
        return evaluated(self.seen, self.key, place.particles)

    def with_rows(self, records: Record) -> Record:
        """The records with the number of rows in each step, if the target has rows."""
        if not isinstance(self.target, MiniBatch):
            return records
        rows = self.target.batch_size if self.rounds is None else self.rounds.subset.num_rows
        return with_column(records, "rows", np.full(len(records.accepted), float(rows)))

    def original(self, particles: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The particles of the run in the target's own coordinates."""
        return self._coordinates.original(particles)

    def straighten(self, by: AbstractChange, place: Place) -> Place | None:
        """See the target in the coordinates that a stage has found; None if it found none."""
        found = self._coordinates.changed(by, place, self.start)
        if found is None:
            return None
        place, self.start = found
        return place

    def state(self) -> Saved:
        """What a checkpoint holds of the view."""
        arrays = as_arrays("start", self.start)
        more, straight = self._coordinates.state()
        arrays |= more
        facts: dict[str, Any] = {"straight": straight}
        if self.rounds is not None:
            more, facts["rounds"] = self.rounds.state()
            arrays |= more
        return Saved(arrays, facts)

    def restore(self, saved: Saved, particles: Float[Array, "n d"]) -> None:
        """Take the view of a checkpoint of particles like these."""
        arrays, facts = saved
        self.start = as_tree("start", arrays, self.start)
        if self.rounds is not None:
            self.rounds.restore(arrays, facts["rounds"])
        # Checkpoints of plain samplers from earlier versions have no such fact.
        if facts.get("straight"):
            self._coordinates.restore(arrays, particles.shape[1], particles.dtype)
