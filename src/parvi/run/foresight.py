"""Foresees which programs a run will need, so that they are compiled while its first stages run."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Key

from parvi.cloud import Place
from parvi.counting import separated
from parvi.run.compile.ahead import Ahead, is_new
from parvi.run.compile.policy import Plan
from parvi.run.compile.programs import Context, filled, lowered, memory_like
from parvi.run.reading import holds
from parvi.samplers.sequence import Sequence, Stage
from parvi.samplers.straighten import AbstractChange
from parvi.status import Status
from parvi.targets.target import AbstractTarget


class Foresight(NamedTuple):
    """What the programs of later stages depend on.

    ``target``: the target as the stages see it. ``context``: the context of a stage, given the
    reports of those before it. ``comparable``: whether stages may compare log densities.
    """

    ahead: Ahead
    sampler: Sequence
    target: AbstractTarget
    key: Key[Array, ""]
    plan: Plan | None
    context: Callable[[Stage, dict[str, Any]], Context]
    comparable: bool

    def look(
        self, number: int, place: Place, done: dict[str, Status], reports: dict[str, Any]
    ) -> None:
        """Have the programs after stage ``number`` compiled, as if all stages came to rest."""
        static, shape = separated((self.sampler, self.target))[0], place.particles.shape
        if not is_new((static, shape, place.particles.dtype)):
            return
        stage, *later = self.sampler.stages[number:]
        done, reports = done | {stage.name: Status.CONVERGED}, dict(reports)
        self.ahead.add(stage.name, self._reported, stage, place, reports)
        for stage in later:
            if stage.sampler.compares_densities and not self.comparable:
                continue
            if isinstance(stage.sampler, AbstractChange):
                continue
            wanted = stage.when.known(shape, done)
            if wanted is None:
                self.ahead.add(stage.name, self._condition, stage, place)
            elif wanted:
                self.ahead.add(stage.name, self._programs, stage, place, reports)
                done[stage.name] = Status.CONVERGED

    def _condition(self, stage: Stage, place: Place) -> Iterator[Any]:
        yield holds.lower(stage.when, place, self.target, self.key)

    def _programs(self, stage: Stage, place: Place, reports: dict[str, Any]) -> Iterator[Any]:
        yield from lowered(self.context(stage, reports), place, self.plan)
        yield from self._reported(stage, place, reports)

    def _reported(self, stage: Stage, place: Place, reports: dict[str, Any]) -> Iterator[Any]:
        """Add a report of the right shapes, which later stages may ask for; no programs."""
        memory = memory_like(self.context(stage, reports), place)
        reports[stage.name] = filled(jax.eval_shape(stage.sampler.report, memory))
        yield from ()
