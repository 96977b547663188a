"""PFG, the preconditioned functional gradient (Dong, Wang, Lin and Zhang, ICLR 2023).

At every step a function f is fitted to the preconditioned Wasserstein gradient of the KL,
H^-1 grad log p*/p, by minimising over the particles

    E[ 1/2 |f|_H^2 - f . grad log p* - div f ]                                   (Eq. 8)

and the particles move along it. The divergence acts as the repulsion, so no kernel matrix is
needed and a step is O(n).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from parvi.cloud import LogDensity
from parvi.fields.pfg.closed_form import AbstractClosedForm
from parvi.fields.pfg.functions import AbstractFunctions, Parameters
from parvi.fields.pfg.metric import AbstractMetric
from parvi.fields.pfg.objective import (
    AbstractDivergence,
    AbstractRegulariser,
    ExactDivergence,
    Quadratic,
)
from parvi.fields.pfg.preconditioners import (
    AbstractMeansPreconditioner,
    AbstractPreconditioner,
    Identity,
)
from parvi.fields.pfg.solvers import AbstractSolver, Problem
from parvi.interface import AbstractField, AbstractVelocity, Fit, default_of, kl_rate

# Number of particles at which the divergence of a base function is probed.
_NUM_PROBED = 4


class PFGMemory(NamedTuple):
    """The memory of PFG: the solver's warm start and the preconditioner's average."""

    solver: PyTree[Array]
    preconditioner: PyTree[Array]


class PFGVelocity(AbstractVelocity):
    """f(x) = c H^-1 grad log p(x) + f_theta(x)."""

    functions: AbstractFunctions
    parameters: Parameters
    base_shift: float
    log_density: LogDensity
    metric: AbstractMetric

    def __call__(self, x):
        value = self.functions(self.parameters, x)
        if self.base_shift == 0.0:
            return value
        return value + self.base_shift * self.metric.solve(jax.grad(self.log_density)(x))

    def on(self, cloud):
        values = self.functions.values(self.parameters, cloud.particles)
        if self.base_shift == 0.0:
            return values
        return values + self.base_shift * self.metric.solve(cloud.scores)

    def divergences(self, cloud):
        _, divergences = self.functions.with_divergences(self.parameters, cloud.particles)
        if self.base_shift == 0.0:
            return divergences
        return divergences + self.base_shift * jax.vmap(self._base_divergence)(cloud.particles)

    def precondition(self, vector):
        return self.metric.solve(vector)

    def _base_divergence(self, x):
        return jnp.trace(self.metric.solve(jax.jacfwd(jax.grad(self.log_density))(x)))


class PFG(AbstractField):
    """The preconditioned functional gradient, composed of parts.

    Linear PFG is ``PFG(Linear(), H, Ridge())``; Algorithm 1 of the paper is
    ``PFG(MLP(), H, GradientDescent(optax.sgd(...), num_steps))`` with a constant step.

    Parameters
    ----------
    functions
        The function class: ``Linear``, ``RandomFeatures``, ``MLP``, ``Network``.
    preconditioner
        The metric H.
    solver
        ``Ridge``, ``HeldOutRidge`` or ``GradientDescent``.
    base_shift
        c of the base function f0 = c H^-1 grad log p (the paper's appendix, "base shift", with
        H = I there). With c = 1 only the repulsion -H^-1 grad log q is left to fit. A few particles
        in many dimensions need this, because each must follow its own gradient.
    regulariser
        h of the objective.
    divergence
        How div f is computed.
    """

    functions: AbstractFunctions
    preconditioner: AbstractPreconditioner = default_of(Identity())
    solver: AbstractSolver = default_of(None)
    base_shift: float = 0.0
    regulariser: AbstractRegulariser = default_of(Quadratic())
    divergence: AbstractDivergence = default_of(ExactDivergence())

    def __check_init__(self):
        if self.solver is None:
            raise ValueError(
                "PFG needs a solver: parvi.fields.Ridge() or parvi.fields.GradientDescent(...)."
            )

    @property
    def asks_means_only(self):
        return (
            isinstance(self.solver, AbstractClosedForm)
            and isinstance(self.preconditioner, AbstractMeansPreconditioner)
            and isinstance(self.divergence, ExactDivergence)
            and self.base_shift == 0.0
        )

    def init(self, key, particles):
        self.solver.check(self.functions, self.regulariser, *particles.shape)
        parameters = self.functions.init(key, particles)
        return PFGMemory(self.solver.init(parameters), self.preconditioner.init(particles))

    def fit(self, key, cloud, memory):
        if self.asks_means_only:
            return self._fit_in_one_pass(cloud, memory)
        key_solve, key_divergence, key_base = jax.random.split(key, 3)
        functions, shift = self.functions, self.base_shift
        metric, preconditioner = self.preconditioner.update(cloud, memory.preconditioner)
        problem = Problem(functions, self.divergence, self.regulariser, metric, shift, cloud)
        parameters, solver, extra = self.solver.solve(key_solve, problem, memory.solver)
        velocity = PFGVelocity(functions, parameters, shift, cloud.log_density, metric)
        values, divergences = self.divergence(
            key_divergence, functions, parameters, cloud.particles
        )
        if shift != 0.0:
            values = values + shift * metric.solve(cloud.scores)
            divergences = divergences + shift * _probed_base_divergences(key_base, cloud, metric)
        rate = kl_rate(values, divergences, cloud.scores)
        return Fit(velocity, values, rate, extra), PFGMemory(solver, preconditioner)

    def _fit_in_one_pass(self, cloud, memory):
        functions, frozen = self.functions, memory.solver
        preconditioner, solver = self.preconditioner, self.solver
        assert isinstance(preconditioner, AbstractMeansPreconditioner)
        assert isinstance(solver, AbstractClosedForm)

        def sums(block, weights):
            fitted = solver.sums(functions, frozen, block, weights)
            return preconditioner.sums(block, weights), fitted

        of_metric, of_weights = cloud.mean(sums)
        metric, remembered = preconditioner.settle(of_metric, memory.preconditioner)
        weights, rate = solver.settle(functions, of_weights, metric)
        parameters = Parameters(frozen, weights)
        velocity = PFGVelocity(functions, parameters, 0.0, cloud.log_density, metric)
        fit = Fit(velocity, cloud.values(velocity.on), rate, {})
        return fit, PFGMemory(frozen, remembered)


def _probed_base_divergences(key, cloud, metric):
    """An unbiased estimate of E[div H^-1 grad log p]: one probe at each of a few particles.

    Only the KL rate needs it, and a Hessian-vector product costs more than a score.
    """
    key_rows, key_probes = jax.random.split(key)
    few = cloud.particles
    if len(few) > _NUM_PROBED:
        few = few[jax.random.choice(key_rows, len(few), (_NUM_PROBED,), replace=False)]
    probes = jax.random.rademacher(key_probes, few.shape, few.dtype)

    def one(x, probe):
        return probe @ metric.solve(cloud.hessian_product(x, probe))

    return jnp.mean(jax.vmap(one)(few, probes))
