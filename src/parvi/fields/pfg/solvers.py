"""Solvers: how the objective is minimised over the function class."""

import abc
import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from parvi.cloud import AbstractCloud, Cloud
from parvi.fields.pfg.functions import (
    AbstractFeatures,
    AbstractFunctions,
    Linear,
    Parameters,
    Scaling,
)
from parvi.fields.pfg.metric import AbstractMetric
from parvi.fields.pfg.objective import (
    AbstractDivergence,
    AbstractRegulariser,
    Quadratic,
    stein_objective,
)


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
        """Where the function is fitted."""
        return self.cloud.particles

    @property
    def scores(self) -> Float[Array, "n d"]:
        """What it is fitted to."""
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
        return stein_objective(values, divergences, penalties, self.scores)


class AbstractSolver(eqx.Module):
    """Minimises a ``Problem``, with a memory for warm starts."""

    @abc.abstractmethod
    def check(
        self, functions: AbstractFunctions, regulariser: AbstractRegulariser, num: int, dim: int
    ) -> None:
        """Raise ``ValueError`` where this solver cannot solve such problems."""

    @abc.abstractmethod
    def init(self, parameters: Parameters) -> PyTree[Array]:
        """What is remembered from one fit to the next."""

    @abc.abstractmethod
    def solve(
        self, key: Key[Array, ""], problem: Problem, memory: PyTree[Array]
    ) -> tuple[Parameters, Any, dict[str, Array]]:
        """The fitted parameters, the new memory, and facts for the history."""


class AbstractClosedForm(AbstractSolver):
    """A solver that needs nothing but means over the particles: one pass over them, in blocks."""

    @abc.abstractmethod
    def sums(
        self,
        functions: AbstractFunctions,
        frozen: PyTree[Array],
        block: AbstractCloud,
        weights: Float[Array, " m"],
    ) -> PyTree[Array]:
        """The share of a block in those means."""

    @abc.abstractmethod
    def settle(
        self, functions: AbstractFunctions, sums: PyTree[Array], metric: AbstractMetric
    ) -> tuple[Float[Array, "d k"], Float[Array, ""]]:
        """The weights, and dKL/dt along the function that they make."""

    def init(self, parameters):
        return parameters.frozen


class Ridge(AbstractClosedForm):
    """The closed form for f = W psi: W = H^-1 B (G + ridge I)^-1, one Cholesky factorisation.

    G = E[psi psi^T] and B = E[s psi^T + (grad psi)^T]. The flow rests where B = 0, whatever the
    ridge. O(n k (k + d) + k^3) for k features.

    Parameters
    ----------
    ridge
        Absolute, in the units of G: standardise the particles (``Whitened``) to give it a
        meaning. 0 needs more particles than features.
    """

    ridge: float = 0.0

    def __check_init__(self):
        if self.ridge < 0:
            raise ValueError(f"ridge must not be negative, got {self.ridge}.")

    def check(self, functions, regulariser, num, dim):
        _check_closed_form(self, functions, regulariser)
        if self.ridge == 0 and num <= functions.num_weights(dim):
            raise ValueError(
                f"Ridge(0) fits {functions.num_weights(dim)} features and needs more particles "
                f"than that, got {num}; use more particles, fewer features or ridge > 0."
            )

    def sums(self, functions, frozen, block, weights):
        return NormalEquations.share(functions, frozen, block, weights)

    def settle(self, functions, sums, metric):
        weights = sums.weights(metric, self.ridge)
        return weights, -jnp.sum(weights * sums.wanted)

    def solve(self, key, problem, memory):
        return Parameters(memory, ridge_weights(problem, memory, self.ridge)), memory, {}


class Irrotational(AbstractClosedForm):
    """The closed form for affine maps of whitened particles, without the part that rotates.

    f(z) = H^-1 (E[s] + (sym E[s z^T] + I) z), of which ``Scaling`` has the diagonal. H f is a
    gradient: the antisymmetric part of E[s z^T] would turn the particles, and near rest it is
    nothing but their noise. Made for ``Whitened`` or, with ``Scaling``, ``Standardised``.
    """

    def check(self, functions, regulariser, num, dim):
        if not isinstance(functions, (Linear, Scaling)):
            raise ValueError(
                "Irrotational solves for affine maps (Linear, Scaling), got "
                f"{type(functions).__name__}; use Ridge or GradientDescent for it."
            )
        _check_quadratic(self, regulariser)

    def sums(self, functions, frozen, block, weights):
        s, z = block.scores, block.particles
        slopes = (
            weights @ (s * z) if isinstance(functions, Scaling) else s.T @ (weights[:, None] * z)
        )
        return weights @ s, slopes

    def settle(self, functions, sums, metric):
        shift, slopes = sums
        if isinstance(functions, Scaling):
            wanted = jnp.stack([shift, slopes + 1], axis=1)
        else:
            linear = (slopes + slopes.T) / 2 + jnp.eye(len(shift), dtype=shift.dtype)
            wanted = jnp.concatenate([shift[:, None], linear], axis=1)
        weights = metric.solve(wanted.T).T
        # Of a symmetric map the antisymmetric part of E[s z^T] changes nothing.
        return weights, -jnp.sum(weights * wanted)

    def solve(self, key, problem, memory):
        def sums(block, weights):
            return self.sums(problem.functions, memory, block, weights)

        weights, _ = self.settle(problem.functions, problem.cloud.mean(sums), problem.metric)
        return Parameters(memory, weights), memory, {}


class HeldOutRidge(AbstractSolver):
    """``Ridge`` with the ridge chosen at every step by the objective on held-out particles.

    One eigendecomposition of G serves every ridge; the chosen one is used on all particles.

    Parameters
    ----------
    ridges
        Candidates, in the units of G (see ``Ridge``).
    holdout
        Share of the particles that is held out.
    """

    ridges: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    holdout: float = 0.25

    def __check_init__(self):
        if not self.ridges or min(self.ridges) <= 0:
            raise ValueError(f"ridges must be positive, got {self.ridges}.")
        _check_holdout(self.holdout)

    def check(self, functions, regulariser, num, dim):
        _check_closed_form(self, functions, regulariser)

    def init(self, parameters):
        return parameters.frozen

    def solve(self, key, problem, memory):
        train, held_out = _split(key, problem, self.holdout)
        gram, target = _normal_equations(train, memory)
        held_gram, held_target = _normal_equations(held_out, memory)
        values, basis = jnp.linalg.eigh(gram)
        values = jnp.maximum(values, 0.0)

        # In the eigenbasis W = T D with D = 1/(values + ridge) diagonal, so that the held-out
        # objective 1/2 tr(H W G' W^T) - tr(H W T'^T) is a small quadratic form in D.
        rotated, held_rotated = target @ basis, held_target @ basis
        weighted = problem.metric.apply(rotated.T)
        quadratic = (weighted @ rotated) * (basis.T @ held_gram @ basis)
        linear = jnp.sum(weighted * held_rotated.T, axis=1)

        def objective(ridge):
            inverse = 1 / (values + ridge)
            return 0.5 * inverse @ quadratic @ inverse - linear @ inverse

        ridges = jnp.asarray(self.ridges, gram.dtype)
        ridge = ridges[jnp.argmin(jax.vmap(objective)(ridges))]

        return Parameters(memory, ridge_weights(problem, memory, ridge)), memory, {"ridge": ridge}


class AbstractUnit(eqx.Module):
    """What the objective of a fit by gradient descent is divided by."""

    @abc.abstractmethod
    def of(self, metric: AbstractMetric, like: Float[Array, " d"]) -> float | Float[Array, ""]:
        """The unit for this metric."""


class Unscaled(AbstractUnit):
    """1: the objective as it is."""

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
        Build it once: a new optax object is a new compilation.
    num_steps
        T', inner steps at each fit.
    warm_up
        Further inner steps at the first fit, before the particles move.
    batch_size
        Particles in each inner step, drawn afresh; None for all.
    holdout
        Share of the particles on which the objective is watched; the parameters that were best
        there are returned. 0 watches nothing.
    patience
        With ``holdout``: inner steps without improvement after which the fit ends.
    unit
        What the objective is divided by: ``Unscaled()``, or an eigenvalue of H, with which a
        learning rate means the same for ten rows of data and for a million. ``LargestEigenvalue()``
        is the safe one where a few coordinates have most of H; with ``MeanEigenvalue()`` the
        others are fitted sooner.
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
            _check_holdout(self.holdout)
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
        if self.holdout > 0:
            train, held_out = _split(key_split, problem, self.holdout)
            trainable, optimizer, done = self._early_stopped(
                key_loop, train, held_out, scale, memory, num_steps
            )
            extra = {"inner_steps": done}
        else:

            def body(i, carry):
                key_step = jax.random.fold_in(key_loop, i)
                return self._descend(key_step, problem, scale, memory, *carry)

            start = (memory.parameters.trainable, memory.optimizer)
            trainable, optimizer = jax.lax.fori_loop(0, num_steps, body, start)
            extra = {}
        parameters = Parameters(memory.parameters.frozen, trainable)
        return parameters, DescentMemory(parameters, optimizer, jnp.ones((), bool)), extra

    def _descend(self, key, problem, scale, memory, trainable, optimizer):
        key_batch, key_loss = jax.random.split(key)
        if self.batch_size is not None:
            num = problem.particles.shape[0]
            problem = problem.subset(jax.random.randint(key_batch, (self.batch_size,), 0, num))

        def loss(weights):
            parameters = Parameters(memory.parameters.frozen, weights)
            return problem.loss(key_loss, parameters) / scale

        updates, optimizer = self.optimizer.update(jax.grad(loss)(trainable), optimizer, trainable)
        return optax.apply_updates(trainable, updates), optimizer

    def _early_stopped(self, key, train, held_out, scale, memory, num_steps):
        frozen = memory.parameters.frozen
        # The same probes at every inner step, so that scores on held-out particles compare.
        key_held_out = jax.random.fold_in(key, 0)

        def score(weights):
            return held_out.loss(key_held_out, Parameters(frozen, weights))

        def proceed(carry):
            step, _, _, _, _, waited = carry
            return (step < num_steps) & (waited < self.patience)

        def body(carry):
            step, trainable, optimizer, best, best_score, waited = carry
            key_step = jax.random.fold_in(key, step + 1)
            trainable, optimizer = self._descend(
                key_step, train, scale, memory, trainable, optimizer
            )
            new = score(trainable)
            better = new < best_score
            best = jax.tree_util.tree_map(lambda a, b: jnp.where(better, a, b), trainable, best)
            waited = jnp.where(better, 0, waited + 1)
            return step + 1, trainable, optimizer, best, jnp.minimum(new, best_score), waited

        start = memory.parameters.trainable
        carry = (jnp.zeros((), int), start, memory.optimizer, start, score(start), 0)
        step, _, optimizer, best, _, _ = jax.lax.while_loop(proceed, body, carry)
        return best, optimizer, step


class NormalEquations(NamedTuple):
    """G = E[psi psi^T], S = E[s psi^T] and D = E[grad psi] over the particles."""

    gram: Float[Array, "k k"]
    scores: Float[Array, "d k"]
    gradients: Float[Array, "k d"]

    @classmethod
    def of(
        cls, functions: AbstractFeatures, frozen: PyTree[Array], cloud: AbstractCloud
    ) -> "NormalEquations":
        """In blocks. O(n k (k + d))."""
        return cloud.mean(lambda block, weights: cls.share(functions, frozen, block, weights))

    @classmethod
    def share(
        cls,
        functions: AbstractFunctions,
        frozen: PyTree[Array],
        block: AbstractCloud,
        weights: Float[Array, " m"],
    ) -> "NormalEquations":
        """What a block adds to them."""
        assert isinstance(functions, AbstractFeatures)
        features, gradients = functions.moments(frozen, block.particles, weights)
        weighted = weights[:, None] * features
        return cls(weighted.T @ features, block.scores.T @ weighted, gradients)

    @property
    def wanted(self) -> Float[Array, "d k"]:
        """B = S + D^T, which is zero at the target."""
        return self.scores + self.gradients.T

    def weights(
        self, metric: AbstractMetric, ridge: float | Float[Array, ""]
    ) -> Float[Array, "d k"]:
        """W = H^-1 B (G + ridge I)^-1."""
        return _divided(metric.solve(self.wanted.T).T, self.gram, ridge)


def _normal_equations(problem, frozen):
    """G and T = H^-1 (B - c E[s psi^T]): the objective is 1/2 tr(H W G W^T) - tr(H W T^T)."""
    functions = problem.functions
    assert isinstance(functions, AbstractFeatures)
    found = NormalEquations.of(functions, frozen, problem.cloud)
    wanted = found.wanted - problem.base_shift * found.scores
    return found.gram, problem.metric.solve(wanted.T).T


def _divided(target, gram, ridge):
    damped = gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype)
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(damped), target.T).T


def ridge_weights(
    problem: Problem, frozen: PyTree[Array], ridge: float | Float[Array, ""]
) -> Float[Array, "d k"]:
    """W = T (G + ridge I)^-1."""
    gram, target = _normal_equations(problem, frozen)
    return _divided(target, gram, ridge)


def _split(key, problem, holdout):
    num = problem.particles.shape[0]
    num_held_out = min(max(round(holdout * num), 1), num - 1) if num > 1 else 0
    order = jax.random.permutation(key, num)
    held_out = problem.subset(order[:num_held_out]) if num_held_out else problem
    return problem.subset(order[num_held_out:]), held_out


def _check_closed_form(solver, functions, regulariser):
    name = type(solver).__name__
    if not isinstance(functions, AbstractFeatures):
        raise ValueError(
            f"{name} solves for functions that are linear in their weights (Linear, "
            f"RandomFeatures), got {type(functions).__name__}; use GradientDescent for it."
        )
    _check_quadratic(solver, regulariser)


def _check_quadratic(solver, regulariser):
    if not isinstance(regulariser, Quadratic):
        raise ValueError(
            f"{type(solver).__name__} solves the quadratic objective only, got "
            f"{type(regulariser).__name__}; use GradientDescent for it."
        )


def _check_holdout(holdout):
    if not 0 < holdout < 1:
        raise ValueError(f"holdout must be between 0 and 1, got {holdout}.")
