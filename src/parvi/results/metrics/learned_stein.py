"""The learned Stein discrepancy (Grathwohl et al. 2020).

    sup_f E[ s(x) . f(x) + div f(x) ] - lambda E|f(x)|^2

over a function class that is trained on some of the particles, with the scores s = grad log p,
and evaluated on the others. The best critic is (s - grad log q) / (2 lambda) for particles of
density q, so the supremum is the Fisher divergence E|s - grad log q|^2 / (4 lambda).

This is the objective of PFG, whose function classes and solvers are used. Unlike in the source, the
critic sees the particles whitened by the mean and covariance of its training part, x = m + L z, and
the norm is taken in z. One learning rate then fits all scales, and the result does not depend on
the units of x.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Key

from parvi.cloud import Cloud
from parvi.fields.pfg.descent import GradientDescent
from parvi.fields.pfg.functions import MLP, AbstractFunctions
from parvi.fields.pfg.metric import DiagonalMetric
from parvi.fields.pfg.objective import ExactDivergence, Quadratic
from parvi.fields.pfg.solvers import AbstractSolver, Problem
from parvi.geometry.frame import DenseFrame
from parvi.results.metrics.inputs import as_key, as_scored


class LearnedStein(NamedTuple):
    """The results of the critic on the particles that it was not trained on.

    ``discrepancy`` is E[s . f + div f]; ``fisher_divergence`` is
    4 lambda (E[s . f + div f] - lambda E|f|^2), whose expectation is never above
    E|L^T (s - grad log q)|^2; ``statistic`` is the discrepancy over its standard error, which is
    Student's t (in the limit of many particles) if they are independent draws of the target, and
    ``p_value`` is its upper tail.
    """

    discrepancy: float
    fisher_divergence: float
    statistic: float
    p_value: float


def learned_stein_discrepancy(
    particles: Float[ArrayLike, "n d"],
    scores: Float[ArrayLike, "n d"],
    functions: AbstractFunctions = MLP(64, jax.nn.swish),
    solver: AbstractSolver | None = None,
    regularisation: float = 0.5,
    holdout: float = 0.5,
    key: int | Key[Array, ""] = 0,
) -> LearnedStein:
    """Train a critic on some of the particles and measure with it on the rest. O(n) per step.

    Parameters
    ----------
    particles, scores
        The particles, and the gradient of the log density at each.
    functions
        The critic: ``MLP``, ``Network``, ``RandomFeatures``, ``Linear``.
    solver
        The solver that trains it: ``GradientDescent`` with an optax optimiser (by default, at most
        1000 full-batch steps of Adam at 5e-3, stopped by the objective on a quarter of the training
        part), or ``HeldOutRidge`` for features that are linear in their weights.
    regularisation
        lambda. It scales the critic; at the default, 1/2, ``discrepancy`` estimates the Fisher
        divergence.
    holdout
        Share of the particles on which the critic is evaluated.
    key
        Key that splits the particles and draws the critic.
    """
    x, s = as_scored(particles, scores, at_least=4)
    if not 0 < holdout < 1:
        raise ValueError(f"holdout must be between 0 and 1, got {holdout}.")
    if regularisation <= 0:
        raise ValueError(f"regularisation must be positive, got {regularisation}.")
    num_test = min(max(round(holdout * len(x)), 2), len(x) - 2)
    solver = _default_solver() if solver is None else solver
    solver.check(functions, Quadratic(), len(x) - num_test, x.shape[1])
    with jax.enable_x64(True):
        key_split, key_fit = jax.random.split(as_key(key))
        order = np.asarray(jax.random.permutation(key_split, len(x)))
        test, train = order[:num_test], order[num_test:]
        arrays = (jnp.asarray(part) for part in (x[train], s[train], x[test], s[test]))
        scale = jnp.asarray(regularisation, float)
        stein, norms = map(np.asarray, _held_out(key_fit, functions, solver, scale, *arrays))
    discrepancy = float(stein.mean())
    error = float(stein.std(ddof=1)) / num_test**0.5
    # A critic that is zero found nothing, which is the middle of the null distribution.
    statistic = discrepancy / error if error > 0 else 0.0
    fisher = 4 * regularisation * (discrepancy - regularisation * float(norms.mean()))
    import scipy.stats

    p_value = float(scipy.stats.t.sf(statistic, num_test - 1))
    return LearnedStein(discrepancy, fisher, statistic, p_value)


@eqx.filter_jit
def _held_out(key, functions, solver, regularisation, x_train, s_train, x_test, s_test):
    """s . f + div f and |f|^2 at the particles held out, all in the training part's frame."""
    key_init, key_solve = jax.random.split(key)
    frame = DenseFrame.of(x_train)
    z_train, z_test = frame.enter(x_train), frame.enter(x_test)
    # lambda |f|^2 = 1/2 |f|_H^2 with H = 2 lambda I.
    metric = DiagonalMetric(jnp.full(x_train.shape[1], 2 * regularisation))
    # The log density is never evaluated, because the scores are given.
    cloud = Cloud(z_train, frame.pull(s_train), jnp.zeros(len(z_train)), jnp.sum)
    problem = Problem(functions, ExactDivergence(), Quadratic(), metric, 0.0, cloud)
    memory = solver.init(functions.init(key_init, z_train))
    parameters, _, _ = solver.solve(key_solve, problem, memory)
    values, divergences = functions.with_divergences(parameters, z_test)
    stein = jnp.sum(values * frame.pull(s_test), axis=1) + divergences
    return stein, jnp.sum(values**2, axis=1)


# It is built once, since a new optax object is compiled anew.
@functools.lru_cache(maxsize=1)
def _default_solver() -> GradientDescent:
    return GradientDescent(optax.adam(5e-3), num_steps=1000, holdout=0.25, patience=50)
