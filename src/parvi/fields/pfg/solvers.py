"""Solvers: how the objective is minimised over the function class."""

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from parvi.cloud import AbstractCloud, Cloud
from parvi.fields.pfg.functions import AbstractFunctions, Parameters
from parvi.fields.pfg.metric import AbstractMetric
from parvi.fields.pfg.objective import AbstractDivergence, AbstractRegulariser


class Problem(eqx.Module):
    """One fit: minimise E[h(c H^-1 s + f) - f . s - div f] over the function class."""

    functions: AbstractFunctions
    divergence: AbstractDivergence
    regulariser: AbstractRegulariser
    metric: AbstractMetric
    base_shift: float
    cloud: AbstractCloud

    @property
    def particles(self) -> Float[Array, "n d"]:
        """The particles at which the function is fitted."""
        return self.cloud.particles

    @property
    def scores(self) -> Float[Array, "n d"]:
        """The scores to which it is fitted."""
        return self.cloud.scores

    def subset(self, rows: Int[Array, " m"]) -> "Problem":
        """The same problem on some of the particles."""
        cloud = self.cloud
        particles, scores, values = cloud.particles, cloud.scores, cloud.log_densities
        chosen = Cloud(particles[rows], scores[rows], values[rows], cloud.log_density)
        return dataclasses.replace(self, cloud=chosen)

    def loss(self, key: Key[Array, ""], parameters: Parameters) -> Float[Array, ""]:
        """The empirical objective, up to terms that do not depend on the parameters."""
        values, divergences = self.divergence(key, self.functions, parameters, self.particles)
        base = self.base_shift * self.metric.solve(self.scores) if self.base_shift else 0.0
        penalties = self.regulariser.penalties(values + base, self.metric)
        return jnp.mean(penalties - jnp.sum(values * self.scores, axis=1) - divergences)


class AbstractSolver(eqx.Module):
    """Minimises a ``Problem``, with a memory for warm starts."""

    @abc.abstractmethod
    def check(
        self, functions: AbstractFunctions, regulariser: AbstractRegulariser, num: int, dim: int
    ) -> None:
        """Raise ``ValueError`` if this solver cannot solve such problems."""

    def init(self, parameters: Parameters) -> PyTree[Array]:
        """The memory before the first fit: the frozen parameters unless overridden."""
        return parameters.frozen

    @abc.abstractmethod
    def solve(
        self, key: Key[Array, ""], problem: Problem, memory: PyTree[Array]
    ) -> tuple[Parameters, Any, dict[str, Array]]:
        """The fitted parameters, the new memory, and further columns of the history."""


def split(key: Key[Array, ""], problem: Problem, holdout: float) -> tuple[Problem, Problem]:
    """Split a problem in two: on some of the particles, and on the others, which are held out."""
    num = problem.particles.shape[0]
    num_held_out = min(max(round(holdout * num), 1), num - 1) if num > 1 else 0
    order = jax.random.permutation(key, num)
    held_out = problem.subset(order[:num_held_out]) if num_held_out else problem
    return problem.subset(order[num_held_out:]), held_out


def check_holdout(holdout: float) -> None:
    """Raise ``ValueError`` unless this is a share."""
    if not 0 < holdout < 1:
        raise ValueError(f"holdout must be between 0 and 1, got {holdout}.")
