"""Solvers in closed form, for functions that are linear in their weights."""

import abc
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from parvi.cloud import AbstractCloud
from parvi.fields.pfg.functions import (
    AbstractFeatures,
    AbstractFunctions,
    Linear,
    Parameters,
    Scaling,
)
from parvi.fields.pfg.metric import AbstractMetric
from parvi.fields.pfg.objective import Quadratic
from parvi.fields.pfg.solvers import AbstractSolver, Problem, check_holdout, split


class NormalEquations(NamedTuple):
    """G = E[psi psi^T], S = E[s psi^T] and D = E[grad psi] over the particles."""

    gram: Float[Array, "k k"]
    scores: Float[Array, "d k"]
    gradients: Float[Array, "k d"]

    @classmethod
    def of(cls, functions: AbstractFunctions, frozen: PyTree[Array], cloud: AbstractCloud) -> Self:
        """Compute the means in blocks. O(n k (k + d))."""
        return cloud.mean(partial(cls.share, functions, frozen))

    @classmethod
    def share(
        cls,
        functions: AbstractFunctions,
        frozen: PyTree[Array],
        block: AbstractCloud,
        weights: Float[Array, " m"],
    ) -> Self:
        """The share of a block in these means."""
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


def _normal_equations(problem: Problem, frozen: PyTree[Array]) -> tuple[Array, Array]:
    """T = H^-1 (B - c E[s psi^T]) and G: the objective is 1/2 tr(H W G W^T) - tr(H W T^T)."""
    found = NormalEquations.of(problem.functions, frozen, problem.cloud)
    wanted = found.wanted - problem.base_shift * found.scores
    return problem.metric.solve(wanted.T).T, found.gram


def _divided(target, gram, ridge):
    """T (G + ridge I)^-1."""
    damped = gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype)
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(damped), target.T).T


class AbstractClosedForm(AbstractSolver):
    """A solver that needs only means over the particles, in one pass over blocks of them."""

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
        """The weights, and dKL/dt along their function."""


class Ridge(AbstractClosedForm):
    """The closed form for f = W psi: W = H^-1 B (G + ridge I)^-1, one Cholesky factorisation.

    G = E[psi psi^T] and B = E[s psi^T + (grad psi)^T]. The flow is at rest where B = 0, whatever
    the ridge. O(n k (k + d) + k^3) for k features.

    Parameters
    ----------
    ridge
        The ridge in the units of G. Standardise the particles (``Whitened``) to give it a meaning.
        0 needs more particles than features.
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
        weights = _divided(*_normal_equations(problem, memory), self.ridge)
        return Parameters(memory, weights), memory, {}


class Irrotational(AbstractClosedForm):
    """The closed form for affine maps of whitened particles, without the rotation.

    f(z) = H^-1 (E[s] + (sym E[s z^T] + I) z), of which ``Scaling`` has the diagonal. H f is a
    gradient. The antisymmetric part of E[s z^T] would rotate the particles, and near rest it is
    only noise. The solver is made for ``Whitened`` or, with ``Scaling``, ``Standardised``.
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
        if isinstance(functions, Scaling):
            return weights @ s, weights @ (s * z)
        return weights @ s, s.T @ (weights[:, None] * z)

    def settle(self, functions, sums, metric):
        shift, slopes = sums
        if isinstance(functions, Scaling):
            wanted = jnp.stack([shift, slopes + 1], axis=1)
        else:
            linear = (slopes + slopes.T) / 2 + jnp.eye(len(shift), dtype=shift.dtype)
            wanted = jnp.concatenate([shift[:, None], linear], axis=1)
        weights = metric.solve(wanted.T).T
        # The antisymmetric part of E[s z^T] changes nothing for a symmetric map.
        return weights, -jnp.sum(weights * wanted)

    def solve(self, key, problem, memory):
        sums = problem.cloud.mean(partial(self.sums, problem.functions, memory))
        weights, _ = self.settle(problem.functions, sums, problem.metric)
        return Parameters(memory, weights), memory, {}


class HeldOutRidge(AbstractSolver):
    """``Ridge`` with the ridge chosen at every step by the objective on held-out particles.

    One eigendecomposition of G serves every ridge; the chosen one is used on all particles.

    Parameters
    ----------
    ridges
        Candidate ridges, in the units of G (see ``Ridge``).
    holdout
        Share of the particles that is held out.
    """

    ridges: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    holdout: float = 0.25

    def __check_init__(self):
        if not self.ridges or min(self.ridges) <= 0:
            raise ValueError(f"ridges must be positive, got {self.ridges}.")
        check_holdout(self.holdout)

    def check(self, functions, regulariser, num, dim):
        _check_closed_form(self, functions, regulariser)

    def solve(self, key, problem, memory):
        train, held_out = split(key, problem, self.holdout)
        target, gram = _normal_equations(train, memory)
        held_target, held_gram = _normal_equations(held_out, memory)
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
        weights = _divided(*_normal_equations(problem, memory), ridge)
        return Parameters(memory, weights), memory, {"ridge": ridge}


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
