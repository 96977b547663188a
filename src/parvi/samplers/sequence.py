"""Samplers one after another: a stage is compiled, and takes memory, only if its turn comes."""

import abc
import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from parvi.cloud import BLOCK, Cloud, View
from parvi.geometry.beyond import is_told
from parvi.geometry.frame import InFrame, own_frame
from parvi.interface import AbstractSampler
from parvi.samplers.bend import Bend
from parvi.status import Status


class AbstractCondition(eqx.Module):
    """Whether a stage runs; evaluated when the stages before it are done."""

    def known(self, shape: tuple[int, ...], done: dict[str, Status]) -> bool | None:
        """The answer if it does not depend on the particles, else None.

        ``done`` has the stages that have run, and how each ended.
        """
        return None

    @abc.abstractmethod
    def holds(self, cloud: Cloud) -> Bool[Array, ""]:
        """The answer for these particles; called only if ``known`` returns None."""


class AbstractKnownCondition(AbstractCondition):
    """A condition that does not depend on the particles."""

    def holds(self, cloud):
        raise TypeError(f"{type(self).__name__} does not depend on the particles.")


class Always(AbstractKnownCondition):
    """The stage always runs."""

    def known(self, shape, done):
        return True


class After(AbstractKnownCondition):
    """The stage runs if the stage called ``name`` has run, and ended as ``ended`` if given."""

    name: str
    ended: Status | None = None

    def known(self, shape, done):
        return self.name in done and self.ended in (None, done[self.name])


class RestsAfter(AbstractKnownCondition):
    """The stage runs if, of the stages called ``names``, the last that has run came to rest."""

    names: tuple[str, ...]

    def known(self, shape, done):
        ended = [status for name, status in done.items() if name in self.names]
        return bool(ended) and ended[-1] == Status.CONVERGED


class AtRest(AbstractKnownCondition):
    """The stage runs if the last stage that has run came to rest.

    Those called ``undone`` count too, whatever they found: the run has gone back to particles at
    rest.
    """

    undone: tuple[str, ...] = ()

    def known(self, shape, done):
        name, ended = list(done.items())[-1] if done else ("", Status.NOT_AT_REST)
        return ended == Status.CONVERGED or name in self.undone


class FewDimensions(AbstractKnownCondition):
    """The stage runs in so few dimensions that weighted draws tell what lies beyond."""

    def known(self, shape, done):
        return is_told(shape)


class EnoughToBend(AbstractKnownCondition):
    """The stage runs if there are enough particles to fit functions that bend."""

    bend: Bend

    def known(self, shape, done):
        return self.bend.num_features_for(shape) > 0


class TooFewToBend(AbstractKnownCondition):
    """The stage runs if there are too few particles to fit functions that bend."""

    bend: Bend

    def known(self, shape, done):
        return self.bend.num_features_for(shape) == 0


class Both(AbstractCondition):
    """The stage runs if both conditions hold; the first must not depend on the particles."""

    first: AbstractCondition
    second: AbstractCondition

    def known(self, shape, done):
        return self.second.known(shape, done) if self.first.known(shape, done) else False

    def holds(self, cloud):
        return self.second.holds(cloud)


class Either(AbstractCondition):
    """The stage runs if either condition holds; the first must not depend on the particles."""

    first: AbstractCondition
    second: AbstractCondition

    def known(self, shape, done):
        return True if self.first.known(shape, done) else self.second.known(shape, done)

    def holds(self, cloud):
        return self.second.holds(cloud)


class Not(AbstractKnownCondition):
    """The stage runs if another known condition does not hold."""

    other: AbstractCondition

    def known(self, shape, done):
        return not self.other.known(shape, done)


class FarFromGaussian(AbstractCondition):
    """The stage runs if the Fisher information in the particles' own frame is large.

    Its largest eigenvalue is 1 for a Gaussian, 1 to 1.2 for regressions, and 5 to 16 for the banana
    and the funnel. For n independent draws of a Gaussian it is (1 + (d / n)^1/2)^4, because the
    frame is fitted to the same draws: 3 at about ten draws per dimension, 8.5 at two. A smaller
    eigenvalue says nothing.
    """

    least: float = 3.0

    def holds(self, cloud):
        num, dim = cloud.shape
        by_chance = (1 + (dim / num) ** 0.5) ** 4
        seen = View(cloud, InFrame(own_frame(cloud.particles)))
        fisher = seen.mean(lambda block, w: block.scores.T @ (w[:, None] * block.scores))
        return jnp.linalg.eigvalsh(fisher)[-1] > max(self.least, by_chance)


class Few(AbstractKnownCondition):
    """The stage runs if the particles have at most ``most`` numbers in all."""

    most: int = 1 << 20

    def known(self, shape, done):
        return math.prod(shape) <= self.most


class Many(AbstractKnownCondition):
    """The stage runs if there are more particles than a block, and more than ``least`` numbers.

    So many independent draws are as exact as anybody asks, so it is not worth a pass over all of
    them to make them better.
    """

    least: int = 1 << 20

    def known(self, shape, done):
        return shape[0] > BLOCK and math.prod(shape) > self.least


class Stage(eqx.Module):
    """A sampler with a name inside a sequence.

    Parameters
    ----------
    name
        The stage's name in the history.
    sampler
        The sampler that moves the particles until it is done, or one such as
        ``Straighten`` that changes the coordinates in which later stages see them.
    when
        The condition under which the stage runs.
    back_to
        If the stage does not come to rest, the particles return to where they were before the
        first of these earlier stages that has run, and the run goes on from there. Without any,
        the run ends as the stage did, unless the stage ended as ``NOT_AT_REST`` and a later stage
        has a condition for that.
    """

    name: str
    sampler: AbstractSampler
    when: AbstractCondition = Always()
    back_to: tuple[str, ...] = ()


class Sequence(eqx.Module):
    """Stages in the order in which they run. ``parvi.pfg()`` is one.

    Parameters
    ----------
    stages
        Each runs until it is done, if its condition holds.
    max_steps
        The largest number of steps of all stages together.
    for_batches
        The sequence that runs instead on mini-batches, if there are too many rows to see all of
        them, and too few particles (or a mesh) to work with subsets.
    """

    stages: tuple[Stage, ...]
    max_steps: int
    for_batches: "Sequence | None"

    def __init__(
        self, *stages: Stage, max_steps: int = 5000, for_batches: "Sequence | None" = None
    ):
        names = [stage.name for stage in stages]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"A sequence needs stages with names of their own, got {names}.")
        for number, stage in enumerate(stages):
            unknown = set(stage.back_to) - set(names[: number + 1])
            if unknown:
                raise ValueError(
                    f"Stage {stage.name!r} goes back to {sorted(unknown)}, which are not among the "
                    f"stages before it: {names[:number]}."
                )
        self.stages = stages
        self.max_steps = max_steps
        self.for_batches = for_batches


def as_sequence(sampler: AbstractSampler | Sequence) -> Sequence:
    """The sequence itself, or one whose only stage is the sampler."""
    if isinstance(sampler, Sequence):
        return sampler
    stage = Stage(type(sampler).__name__.lower(), sampler)
    return Sequence(stage, max_steps=sampler.max_steps)
