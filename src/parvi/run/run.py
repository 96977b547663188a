"""``Run``: a run that can be advanced and inspected.

It is the only loop: ``sample``, the experiments and the benchmarks all call it.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Key, PyTree

from parvi.cloud import Place
from parvi.geometry.frame import tells_covariance
from parvi.interface import AbstractSampler
from parvi.run.checkpoint import Saved
from parvi.run.compile.ahead import Ahead
from parvi.run.compile.policy import Plan
from parvi.run.compile.programs import Stepper, begin, memory_like
from parvi.run.foresight import Foresight
from parvi.run.history import Block
from parvi.run.initial import as_key, as_target
from parvi.run.passage import Passage
from parvi.run.rounds import Rounds
from parvi.run.rows import compares, with_rows
from parvi.run.sharding import gathered, spread
from parvi.run.trees import as_arrays, as_tree
from parvi.run.view import View
from parvi.samplers.sequence import Sequence, Stage, as_sequence
from parvi.samplers.straighten import AbstractChange
from parvi.status import Status
from parvi.targets.minibatch import MiniBatch
from parvi.targets.target import AbstractTarget

# Particles of this many bytes (32 MB) or more are moved in place, and their scores are not held if
# the sampler does not need them.
_LARGE = 1 << 25


class Run:
    """A target, a sampler, a key, and the current state of the particles.

    Attributes
    ----------
    target, sampler, key
        The arguments of the run; the sampler is a ``Sequence``.
    beginning
        Some first particles.
    carry
        The state of the loop.
    status
        ``RUNNING`` until the last stage is done or one has failed.
    compile_seconds
        Seconds that this process spent in calls that compiled.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, parvi
    >>> from parvi.run.run import Run
    >>> start = np.random.default_rng(0).normal(size=(64, 2))
    >>> run = Run.begin(lambda x: -0.5 * jnp.sum((x - 3) ** 2), start, parvi.svgd(), key=0)
    >>> run.advance(10)
    >>> run.num_steps, run.stage.name
    (10, 'flow')
    """

    def __init__(
        self,
        target: AbstractTarget,
        sampler: AbstractSampler | Sequence,
        key: Key[Array, ""],
        place: Place,
        sharding: NamedSharding | None = None,
        plan: Plan | None = None,
        ahead: Ahead | None = None,
    ):
        num, dim = place.particles.shape
        noisy = isinstance(target, MiniBatch) and not target.is_fixed and compares(sampler)
        by_rounds = noisy and sharding is None and tells_covariance((num, dim))
        self.sampler = as_sequence(sampler)
        # Without rounds, stages that compare log densities are left out.
        on_batches = self.sampler.for_batches if noisy and not by_rounds else None
        self._on_batches = on_batches is not None
        self.sampler = self.sampler if on_batches is None else on_batches
        # The caller decides how many steps a plain sampler makes.
        self._is_staged = isinstance(sampler, Sequence)
        self._sharding = sharding
        self._plan = plan
        self._ahead = ahead
        self._view = View(target, key, place.particles, by_rounds, sharding)
        self.target, self.key = self._view.target, self._view.key
        self.carry: Any = None
        self.status = Status.RUNNING
        self.compile_seconds = 0.0
        self._number = self._first = -1
        self._stepper: Any = None
        self._compiles = True
        self._passage = Passage()
        self.beginning = self._view.start
        if by_rounds:
            place = Place(place.particles, None, None)
        self._is_large = num * dim * place.particles.dtype.itemsize >= _LARGE
        self._enter(place, 0)

    @classmethod
    def begin(
        cls,
        target: AbstractTarget | Any,
        particles: Float[Array, "n d"],
        sampler: AbstractSampler | Sequence,
        key: Any = 0,
        sharding: NamedSharding | None = None,
        plan: Plan | None = None,
    ) -> "Run":
        """Begin a run from flat, unconstrained particles, and evaluate the log density there.

        Call it and ``advance`` inside the precision of the particles (``parvi.targets.precision``),
        as ``parvi.sample`` does. For measurements, ``plan`` determines how the stages are compiled;
        None decides by their cost.
        """
        # A copy, because large arrays are donated and these belong to the caller.
        particles = jnp.array(particles)
        target = as_target(target)
        if target.layout is None:
            target = target.laid_out(jax.ShapeDtypeStruct(particles.shape[1:], particles.dtype))
        if sharding is not None:
            particles = spread(particles, sharding)
        num, dim = particles.shape
        target = with_rows(target, sampler, (num, dim), np.dtype(particles.dtype))
        return cls(target, sampler, as_key(key), Place(particles, None, None), sharding, plan)

    @property
    def rounds(self) -> Rounds | None:
        """The subsets of rows that the run sees one after another; None if it sees all rows."""
        return self._view.rounds

    @property
    def stage(self) -> Stage:
        """The current stage."""
        return self.sampler.stages[self._number]

    @property
    def particles(self) -> Float[Array, "n d"]:
        """The current particles, flat and unconstrained, in the target's own coordinates."""
        return self._view.original(self.carry.place.particles)

    @property
    def memory(self) -> PyTree[Array]:
        """The memory of the stage's sampler."""
        return self.carry.memory

    @property
    def num_steps(self) -> int:
        """The number of steps made in all stages."""
        return int(self.carry.step)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.status != Status.RUNNING

    @property
    def history(self) -> list[Block]:
        """The records of all steps, in blocks, with the names of their stages."""
        return self._passage.history

    @property
    def reports(self) -> dict[str, Any]:
        """What each finished stage has reported."""
        return self._passage.reports

    @property
    def kl_rate(self) -> float:
        """The KL rate of the last step."""
        return float(self.history[-1][1].info.kl_rate[-1]) if self.history else float("nan")

    @property
    def num_gradients(self) -> int:
        """The number of gradients evaluated in all stages, including those at the start."""
        return len(self.carry.place.particles) + self._passage.gradients

    def last_step(self, limit: int) -> int | None:
        """The last step that the run can make, or None if its steps are of several kinds.

        A run of several stages mostly ends long before its limit, and a step of one stage takes
        longer than one of another, so the limit says nothing about the time that is left.
        """
        if not self._is_staged:
            return limit
        if len(self.sampler.stages) > 1 or self.rounds is not None:
            return None
        return min(limit, self.sampler.max_steps, self.stage.sampler.max_steps)

    def gathered(self) -> Any:
        """All particles on this process."""
        return gathered(self.particles, self._sharding)

    def advance(self, num_steps: int) -> None:
        """Make up to ``num_steps`` steps, across stages; fewer if the run is done before."""
        until = self.num_steps + num_steps
        while not self.is_done and self.num_steps < until:
            self._advance_stage(until)

    def state(self) -> Saved:
        """All that is needed to go on with this run in another process, bit for bit."""
        arrays = as_arrays("carry", self.carry) | as_arrays("beginning", self.beginning)
        facts: dict[str, Any] = {}
        for more, others in (self._passage.state(), self._view.state()):
            arrays |= more
            facts |= others
        facts |= {
            "number": self._number,
            "first": self._first,
            "status": int(self.status),
            "held": self.carry.place.scores is not None,
        }
        return Saved(arrays, facts)

    def restore(self, saved: Saved) -> None:
        """Go on from the state of another run of the same target, sampler and key.

        Raises a ``ValueError`` if the state is of another structure.
        """
        arrays, facts = saved
        place = self.carry.place
        # Checkpoints from before this was saved are resumed too.
        if "beginning/0" in arrays:
            self.beginning = as_tree("beginning", arrays, self.beginning)
        self._view.restore(saved, place.particles)
        reports = self._reports_in(saved)
        self._number, self._first = facts["number"], facts["first"]
        held = self._view.read(place, facts["held"])
        context = self._view.context(self.stage, reports)
        careful = self._is_large or self._sharding is not None
        self.carry = begin(context, self._number, held, self._first, careful)
        self.carry = as_tree("carry", arrays, self.carry)
        self._stepper = Stepper(context, self.carry, self._plan)
        self._compiles = True
        self._passage.restore(arrays, facts, reports, held)
        self.status = Status(facts["status"])

    def _reports_in(self, saved: Saved) -> dict[str, Any]:
        """What the finished stages reported, in the order of the stages."""
        place = self.carry.place
        reports: dict[str, Any] = {}
        for stage in self.sampler.stages:
            if stage.name not in saved.facts["done"]:
                continue
            if isinstance(stage.sampler, AbstractChange):
                reports[stage.name] = None
                continue
            context = self._view.context(stage, reports)
            unread = self._is_large and context.sampler.asks_means_only
            like = memory_like(context, Place(place.particles, None, None) if unread else place)
            like = jax.eval_shape(stage.sampler.report, like)
            reports[stage.name] = as_tree(f"reports/{stage.name}", saved.arrays, like)
        return reports

    def _advance_stage(self, until: int) -> None:
        last = self._first + self.stage.sampler.max_steps if self._is_staged else until
        done = self.num_steps
        # The first call of a stage compiles, and so does the first of its careful program, so their
        # times say nothing about a step's.
        self._compiles |= done == self._first + self._stepper.plan.quick_steps
        before = time.perf_counter()
        # Large arrays are donated, so no reference to the old ones may be kept.
        carry, self.carry = self.carry, None
        try:
            new, records = self._stepper.advance(
                carry, min(until, last), self._first, self._is_large
            )
            new = jax.block_until_ready(new)
        except BaseException:
            self.carry = carry
            raise
        self.carry = new
        steps = self.num_steps - done
        if self._compiles:
            self.compile_seconds += time.perf_counter() - before
            self._compiles = False
        columns = jax.tree_util.tree_map(lambda column: np.asarray(column)[:steps], records)
        self._passage.add(self.stage.name, self._view.with_rows(columns))
        ended = Status(int(self.carry.status))
        if ended == Status.RUNNING and self._is_staged and self.num_steps >= last:
            ended = Status.MAX_STEPS
        if ended != Status.RUNNING:
            self._leave(ended)

    def _leave(self, ended: Status) -> None:
        """End a stage: enter the next one, go back, or end the run."""
        stage = self.stage
        self._passage.leave(stage.name, ended, stage.sampler.report(self.carry.memory))
        unfinished = ended in (Status.MAX_STEPS, Status.NOT_AT_REST)
        back_to = next((name for name in stage.back_to if name in self._passage.done), None)
        if unfinished and back_to is not None:
            self._undo(back_to)
            ended = Status.CONVERGED
        if ended in (Status.CONVERGED, Status.NOT_AT_REST):
            self._enter(self.carry.place, self.num_steps, ended)
        elif self._on_batches and ended == Status.MAX_STEPS:
            # There were as many steps as were meant, but nothing has tested the particles.
            self.status = Status.NOISY
        else:
            self.status = ended

    def _undo(self, name: str) -> None:
        """Go back to the particles before a stage, and mark its steps and those after it."""
        names = [stage.name for stage in self.sampler.stages]
        place = self._passage.undo(name, names[names.index(name) : self._number + 1])
        self.carry = self.carry._replace(place=place)

    def _enter(self, place: Place, first: int, ended: Status = Status.CONVERGED) -> None:
        """Enter the next stage whose condition holds, or end the run as the last stage ended."""
        before = time.perf_counter()
        stages = self.sampler.stages
        for number in range(self._number + 1, len(stages)):
            stage = stages[number]
            comparable = self._view.is_comparable
            if self._is_staged and stage.sampler.compares_densities and not comparable:
                continue
            self._wait_for(stage)
            if not self._view.wants(stage, place, self._passage.done):
                continue
            if isinstance(stage.sampler, AbstractChange):
                place = self._straightened(stage.name, stage.sampler, place)
                continue
            if self._view.is_futile(stage, place):
                break
            self._number, self._first = number, first
            if any(stage.name in later.back_to for later in stages):
                # This is a copy, because the arrays themselves may be donated.
                self._passage.keep(stage.name, jax.tree_util.tree_map(jnp.copy, place))
            context = self._view.context(stage, self.reports)
            means_only = context.sampler.asks_means_only
            place = self._view.read(place, held=not (self._is_large and means_only))
            careful = self._is_large or self._sharding is not None
            self.carry = begin(context, number, place, first, careful)
            self._stepper = Stepper(context, self.carry, self._plan)
            self._compiles = True
            self._look_ahead(place)
            self.compile_seconds += time.perf_counter() - before
            return
        if not self._passage.done:
            names = [stage.name for stage in stages]
            raise ValueError(
                f"No stage can begin: the conditions of {names} do not hold for the first "
                "particles; give the first stage the condition Always()."
            )
        self._end(place, first, ended)

    def _straightened(self, name: str, by: AbstractChange, place: Place) -> Place:
        """The place in the coordinates that the stage has found; it has run if it found any."""
        if self.rounds is not None or self._sharding is not None or self._is_large:
            return place
        place = self._view.read(place, held=True)
        found = self._view.straighten(by, place)
        if found is None:
            return place
        self._passage.leave(name, Status.CONVERGED, None)
        if self._ahead is not None:
            # Programs that were asked for in the old coordinates are not needed any more.
            self._ahead.drop()
        return found

    def _wait_for(self, stage: Stage) -> None:
        if self._ahead is not None:
            self._ahead.wait(stage.name)

    def _look_ahead(self, place: Place) -> None:
        """Have later programs compiled: from the first stage on, and again in new coordinates."""
        if self._ahead is None or self._is_large or self.rounds is not None:
            return
        if self._passage.done and self._view.seen is self.target:
            return
        foresight = Foresight(
            self._ahead,
            self.sampler,
            self._view.seen,
            self.key,
            self._plan,
            self._view.context,
            self._view.is_comparable,
        )
        foresight.look(self._number, place, self._passage.done, self.reports)

    def _end(self, place: Place, first: int, ended: Status) -> None:
        """End the run, or begin the next round."""
        if self.rounds is None:
            self.status = ended
            return
        status = self.rounds.judged(place.particles, ended)
        errors = np.full(len(self.history[-1][1].accepted), np.nan)
        errors[-1] = np.nan if self.rounds.error is None else self.rounds.error
        self._passage.add_column("row_error", errors)
        if status != Status.RUNNING:
            self.status = status
            return
        self._passage.new_round()
        self._number = -1
        self._view.begin(place.particles)
        self._enter(Place(place.particles, None, None), first)
