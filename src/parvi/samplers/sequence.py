"""Sequences: samplers one after another, each until it rests.

A stage is compiled, and takes memory, only where its condition holds.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from parvi.cloud import Cloud, View
from parvi.geometry.clumps import separated
from parvi.geometry.frame import InFrame, own_frame
from parvi.interface import AbstractSampler
from parvi.samplers.bend import Bend


class AbstractCondition(eqx.Module):
    """Whether a stage is wanted: asked when the stages before it are done."""

    def known(self, shape: tuple[int, ...], done: tuple[str, ...]) -> bool | None:
        """The answer, where it needs no look at the particles; else None."""
        return None

    @abc.abstractmethod
    def holds(self, cloud: Cloud) -> Bool[Array, ""]:
        """The answer for these particles; asked only where it is not known."""


class AbstractKnownCondition(AbstractCondition):
    """A condition that needs no look at the particles."""

    def holds(self, cloud):
        raise TypeError(f"{type(self).__name__} is known without a look at the particles.")


class Always(AbstractKnownCondition):
    """Every run has this stage."""

    def known(self, shape, done):
        return True


class After(AbstractKnownCondition):
    """Where another stage was needed."""

    name: str

    def known(self, shape, done):
        return self.name in done


class EnoughToBend(AbstractKnownCondition):
    """Where there are particles enough to fit functions that bend."""

    bend: Bend

    def known(self, shape, done):
        return self.bend.num_features_for(shape) > 0


class TooFewToBend(AbstractKnownCondition):
    """Where there are not."""

    bend: Bend

    def known(self, shape, done):
        return self.bend.num_features_for(shape) == 0


class Both(AbstractCondition):
    """Where two conditions hold; the second is not asked where the first is known not to."""

    first: AbstractKnownCondition
    second: AbstractCondition

    def known(self, shape, done):
        return self.second.known(shape, done) if self.first.known(shape, done) else False

    def holds(self, cloud):
        return self.second.holds(cloud)


class FarFromGaussian(AbstractCondition):
    """Where the Fisher information in the particles' own frame has a large eigenvalue.

    It is 1 for a Gaussian. Regressions have 1 to 1.2; banana and funnel 5 to 16.
    """

    least: float = 3.0

    def holds(self, cloud):
        seen = View(cloud, InFrame(own_frame(cloud.particles)))
        fisher = seen.mean(lambda block, w: block.scores.T @ (w[:, None] * block.scores))
        return jnp.linalg.eigvalsh(fisher)[-1] > self.least


class Clumped(AbstractCondition):
    """Where the particles lie in separated clumps."""

    def holds(self, cloud):
        seen = View(cloud.some(), InFrame(own_frame(cloud.particles)))
        return separated(seen.particles, seen.scores)


class Stage(eqx.Module):
    """A sampler with a name inside a sequence.

    Parameters
    ----------
    name
        What the history calls it.
    sampler
        Moves the particles until it is done.
    when
        Whether the stage is wanted.
    back_to
        Where the stage does not come to rest: the name of an earlier stage, before which the
        particles are put back. None: the run ends as the stage did.
    """

    name: str
    sampler: AbstractSampler
    when: AbstractCondition = Always()
    back_to: str | None = None


class Sequence(eqx.Module):
    """Stages in the order in which they come. ``parvi.pfg()`` is one.

    Parameters
    ----------
    stages
        Each runs where its condition holds, until it is done.
    max_steps
        Of all stages together; ends the run at the latest.
    """

    stages: tuple[Stage, ...]
    max_steps: int

    def __init__(self, *stages: Stage, max_steps: int = 5000):
        names = [stage.name for stage in stages]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"A sequence needs stages with names of their own, got {names}.")
        for number, stage in enumerate(stages):
            if stage.back_to is not None and stage.back_to not in names[: number + 1]:
                raise ValueError(
                    f"Stage {stage.name!r} goes back to {stage.back_to!r}, which is none of the "
                    f"stages before it: {names[:number]}."
                )
        self.stages = stages
        self.max_steps = max_steps


def as_sequence(sampler: AbstractSampler | Sequence) -> Sequence:
    """The sequence itself, or one whose only stage is the sampler."""
    if isinstance(sampler, Sequence):
        return sampler
    name = type(sampler).__name__.lower()
    return Sequence(Stage(name, sampler), max_steps=sampler.max_steps)
