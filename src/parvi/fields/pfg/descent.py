"""The solver of Algorithm 1: gradient descent from where the last fit ended."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from parvi.fields.pfg.functions import Parameters
from parvi.fields.pfg.metric import AbstractMetric
from parvi.fields.pfg.solvers import AbstractSolver, check_holdout, split


class AbstractUnit(eqx.Module):
    """The unit by which gradient descent divides its objective."""

    @abc.abstractmethod
    def of(self, metric: AbstractMetric, like: Float[Array, " d"]) -> float | Float[Array, ""]:
        """The unit for this metric."""


class Unscaled(AbstractUnit):
    """1, which leaves the objective unchanged."""

    def of(self, metric, like):
        return 1.0


class MeanEigenvalue(AbstractUnit):
    """The mean eigenvalue of H."""

    def of(self, metric, like):
        return metric.mean_eigenvalue(like)


class LargestEigenvalue(AbstractUnit):
    """The largest eigenvalue of H."""

    def of(self, metric, like):
        return metric.largest_eigenvalue(like)


class Tamed(AbstractUnit):
    """The factor by which the largest eigenvalue of H exceeds ``largest``, or 1 if it does not.

    A learning rate that is stable at ``largest`` is then stable for any number of rows of data,
    and gentle targets see the objective unchanged.

    Parameters
    ----------
    largest
        The largest eigenvalue that is left unchanged.
    """

    largest: float = 100.0

    def of(self, metric, like):
        return jnp.maximum(metric.largest_eigenvalue(like) / self.largest, 1.0)


class DescentMemory(NamedTuple):
    """Where gradient descent stopped, for a warm start."""

    parameters: Parameters
    optimizer: PyTree[Array]
    started: Array


class GradientDescent(AbstractSolver):
    """T' steps of any optax optimiser, from where the last fit ended (Algorithm 1).

    Parameters
    ----------
    optimizer
        An optax optimiser. Build it once, since a new object is compiled anew.
    num_steps
        T', the number of inner steps at each fit.
    warm_up
        Number of further inner steps at the first fit, before the particles move.
    batch_size
        Number of particles in each inner step, drawn afresh; None for all.
    holdout
        Share of the particles that are held out. The parameters with the best objective on them
        are returned. 0 holds out none.
    patience
        With ``holdout``, the number of inner steps without improvement after which the fit ends.
    unit
        Divisor of the objective: ``Unscaled()``, or an eigenvalue of H, with which a learning rate
        means the same for ten rows of data and for a million. ``LargestEigenvalue()`` is safe if a
        few coordinates have most of H; ``MeanEigenvalue()`` fits the others sooner.
    """

    optimizer: optax.GradientTransformation
    num_steps: int = 5
    warm_up: int = 0
    batch_size: int | None = None
    holdout: float = 0.0
    patience: int = 5
    unit: AbstractUnit = Unscaled()

    def __check_init__(self):
        if self.num_steps < 1 or self.warm_up < 0:
            raise ValueError(
                f"num_steps must be at least 1 and warm_up at least 0, got {self.num_steps} "
                f"and {self.warm_up}."
            )
        if self.holdout != 0.0:
            check_holdout(self.holdout)
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, got {self.patience}.")

    def check(self, functions, regulariser, num, dim):
        if self.batch_size is not None and not 1 <= self.batch_size <= num:
            raise ValueError(
                f"batch_size must be between 1 and the number of particles ({num}), "
                f"got {self.batch_size}."
            )

    def init(self, parameters):
        state = self.optimizer.init(parameters.trainable)
        return DescentMemory(parameters, state, jnp.zeros((), bool))

    def solve(self, key, problem, memory):
        key_split, key_loop = jax.random.split(key)
        num_steps = jnp.where(memory.started, self.num_steps, self.num_steps + self.warm_up)
        scale = self.unit.of(problem.metric, problem.particles[0])
        extra = {}
        if self.holdout > 0:
            train, held_out = split(key_split, problem, self.holdout)
            stopped = self._early_stopped(key_loop, train, held_out, scale, memory, num_steps)
            trainable, optimizer, extra["inner_steps"] = stopped
        else:

            def body(i, carry):
                key_step = jax.random.fold_in(key_loop, i)
                return self._descend(key_step, problem, scale, memory, *carry)

            start = (memory.parameters.trainable, memory.optimizer)
            trainable, optimizer = jax.lax.fori_loop(0, num_steps, body, start)
        parameters = memory.parameters._replace(trainable=trainable)
        return parameters, DescentMemory(parameters, optimizer, jnp.ones((), bool)), extra

    def _descend(self, key, problem, scale, memory, trainable, optimizer):
        key_batch, key_loss = jax.random.split(key)
        if self.batch_size is not None:
            num = problem.particles.shape[0]
            problem = problem.subset(jax.random.randint(key_batch, (self.batch_size,), 0, num))

        def loss(weights):
            return problem.loss(key_loss, memory.parameters._replace(trainable=weights)) / scale

        updates, optimizer = self.optimizer.update(jax.grad(loss)(trainable), optimizer, trainable)
        return optax.apply_updates(trainable, updates), optimizer

    def _early_stopped(self, key, train, held_out, scale, memory, num_steps):
        # Every inner step uses the same probes, so that held-out scores are comparable.
        key_held_out = jax.random.fold_in(key, 0)

        def score(weights):
            return held_out.loss(key_held_out, memory.parameters._replace(trainable=weights))

        def proceed(carry):
            step, *_, waited = carry
            return (step < num_steps) & (waited < self.patience)

        def body(carry):
            step, fitted, best, lowest, waited = carry
            key_step = jax.random.fold_in(key, step + 1)
            fitted = self._descend(key_step, train, scale, memory, *fitted)
            new = score(fitted[0])
            better = new < lowest
            best = jax.tree.map(lambda a, b: jnp.where(better, a, b), fitted[0], best)
            waited = jnp.where(better, 0, waited + 1)
            return step + 1, fitted, best, jnp.minimum(new, lowest), waited

        start = memory.parameters.trainable
        carry = (jnp.zeros((), int), (start, memory.optimizer), start, score(start), 0)
        step, (_, optimizer), best, _, _ = jax.lax.while_loop(proceed, body, carry)
        return best, optimizer, step
