"""Ready samplers, one function each, which combine the parts with settings that work."""

import functools

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Float

from parvi import fields, functions, kernels, preconditioners
from parvi.fields.matrix_svgd import AbstractMatrixKernel
from parvi.fields.pfg.preconditioners import AbstractPreconditioner
from parvi.fields.svn import AbstractSystem
from parvi.samplers.flow import Flow
from parvi.samplers.stein_neural_sampler import SteinNeuralSampler
from parvi.steppers import Constant, LineSearch, Optax, TrustRegion

# Each setting has one object, as a new object would trigger a new compilation.
_cached = functools.lru_cache(maxsize=128)
_sgd, _adam, _adamw = _cached(optax.sgd), _cached(optax.adam), _cached(optax.adamw)


# SGD is stable if its learning rate times the largest eigenvalue of H is below about 4 / |psi|^2 in
# each of its directions, with |psi|^2 = 9 for 32 sigmoid units and a bias; this is a quarter of it.
_STABLE = 0.1


@_cached
def _swish(width: int, depth: int):
    def make(key, dim):
        return eqx.nn.MLP(dim, dim, width, depth, jax.nn.swish, key=key)

    return make


def pfg_algorithm_1(
    step_size: float = 0.1,
    width: int = 32,
    num_inner_steps: int = 5,
    learning_rate: float = 1e-3,
    momentum: float = 0.9,
    preconditioner: AbstractPreconditioner = preconditioners.Hessian(),
    base_shift: float = 0.0,
    warm_up: int = 0,
    batch_size: int | None = None,
    max_steps: int = 1000,
) -> Flow:
    """Algorithm 1 of the paper: a two-layer network, T' steps of SGD, a constant step.

    The default metric is the mean Hessian, which costs O(d) Hessian-vector products per step. With
    ``Identity()``, which costs O(n d), ``step_size`` must stay below 2 / (largest curvature). For
    thousands of particles, give a ``batch_size``: each inner step then sees that many particles,
    drawn afresh, instead of all. If H is so steep that SGD would be unstable, the objective is
    scaled down, which leaves its minimiser unchanged.
    """
    optimizer = _sgd(learning_rate, momentum=momentum)
    solver = fields.GradientDescent(
        optimizer, num_inner_steps, warm_up, batch_size, unit=fields.Tamed(_STABLE / learning_rate)
    )
    field = fields.PFG(functions.MLP(width), preconditioner, solver, base_shift=base_shift)
    return Flow(field, Constant(step_size), max_steps=max_steps)


def svgd(
    step_size: float = 0.1,
    kernel: kernels.AbstractKernel = kernels.RBF(),
    block_size: int | None = None,
    max_steps: int = 1000,
) -> Flow:
    """SVGD with Adam, by default with the RBF kernel and the median bandwidth."""
    return Flow(fields.SVGD(kernel, block_size), Optax(_adam(step_size)), max_steps=max_steps)


def grassmann_svgd(
    step_size: float = 0.1,
    subspace_dim: int = 1,
    num_projectors: int | None = None,
    projector_step: float = 0.1,
    temperature: float = 1e-4,
    max_steps: int = 1000,
) -> Flow:
    """Grassmann SVGD with Adam, by default on min(20, d) learned lines, heated when it settles."""
    field = fields.GrassmannSVGD(subspace_dim, num_projectors, projector_step, temperature)
    return Flow(field, Optax(_adam(step_size)), max_steps=max_steps)


def sliced_svgd(
    step_size: float = 0.1,
    direction_step: float = 0.1,
    basis: Float[Array, "d d"] | None = None,
    max_steps: int = 1000,
) -> Flow:
    """Sliced SVGD with Adam for the particles and for the test directions.

    A direction turns by up to about ``direction_step * sqrt(d)`` per step, so choose a smaller
    value in a hundred dimensions and more.
    """
    # The authors of the sliced discrepancy learn their directions with these momenta.
    field = fields.SlicedSVGD(_adam(direction_step, b1=0.5, b2=0.9), basis)
    return Flow(field, Optax(_adam(step_size)), max_steps=max_steps)


def matrix_svgd(
    matrix_kernel: AbstractMatrixKernel = fields.SharedPreconditioner(),
    kernel: kernels.AbstractRadialKernel = kernels.RBF(),
    max_steps: int = 300,
) -> Flow:
    """Matrix SVGD in the metric of the mean Hessian, by default with RBF and median bandwidth.

    The kernel is divided by its mean over the particles, so that a step of one half is half of
    Newton's for any number of particles. A line search and a trust region guard it.
    """
    field = fields.MatrixSVGD(matrix_kernel, fields.UnitMean(kernel))
    return Flow(field, TrustRegion(LineSearch()), max_steps=max_steps)


def svn(
    system: AbstractSystem = fields.BlockDiagonalSystem(),
    kernel: kernels.AbstractRadialKernel = kernels.RBF(fields.Dimension()),
    max_steps: int = 200,
) -> Flow:
    """Stein variational Newton, by default block-diagonal with the scaled Hessian kernel.

    A step is at most half of Newton's. With so wide a kernel the blocks are only E[k^2] / E[k]
    times the curvature at the particles' mean, about 1 / e at the target, so whole steps would
    overshoot.
    """
    return Flow(fields.SVN(system, kernel), TrustRegion(LineSearch()), max_steps=max_steps)


def projected_svn(
    rank: int = 20,
    threshold: float = 1e-2,
    prior_mean: float | Float[Array, " d"] = 0.0,
    prior_covariance: float | Float[Array, "..."] | None = None,
    max_steps: int = 200,
) -> Flow:
    """Stein variational Newton in the directions that the data inform; start from the prior.

    It needs the prior N(prior_mean, prior_covariance), from which the particles start. Without one
    it moves in all directions, and more than ``rank`` of them are refused.
    """
    field = fields.ProjectedSVN(rank, threshold, prior_mean, prior_covariance)
    return Flow(field, TrustRegion(LineSearch()), max_steps=max_steps)


def neural_svgd(
    step_size: float = 0.1,
    width: int = 32,
    depth: int = 2,
    num_inner_steps: int = 50,
    learning_rate: float = 5e-3,
    holdout: float = 0.25,
    patience: int = 10,
    max_steps: int = 400,
) -> Flow:
    """Neural variational gradient descent (di Langosco, Fortuin and Strathmann 2021).

    This is PFG with H = I: Adam fits a swish network to the Stein direction under an L2 penalty, on
    some of the particles, until it no longer improves on the others. The particles are whitened, so
    that one learning rate suits every problem.
    """
    optimizer = _adam(learning_rate)
    solver = fields.GradientDescent(optimizer, num_inner_steps, holdout=holdout, patience=patience)
    field = fields.PFG(functions.Network(_swish(width, depth)), preconditioners.Identity(), solver)
    return Flow(fields.Whitened(field), TrustRegion(Constant(step_size)), max_steps=max_steps)


def stein_neural_sampler(
    generator_learning_rate: float = 3e-3,
    critic_learning_rate: float = 1e-2,
    width: int = 32,
    num_critic_steps: int = 5,
    max_steps: int = 3000,
) -> SteinNeuralSampler:
    """The Stein neural sampler with Adam for both players; ``generate`` makes new draws."""
    # Under the usual momentum of 0.9 the game circles; generative networks commonly use 0.5.
    generator, critic = _adam(generator_learning_rate, b1=0.5), _adam(critic_learning_rate)
    return SteinNeuralSampler(generator, critic, width, num_critic_steps, max_steps=max_steps)


def jko_icnn(
    step_size: float = 1.0,
    width: int = 32,
    num_inner_steps: int = 100,
    learning_rate: float = 2e-2,
    max_steps: int = 40,
) -> Flow:
    """JKO steps with input-convex networks, in the metric of the whitened particles."""
    field = fields.JKOICNN(_adam(learning_rate), fields.ICNN(width), step_size, num_inner_steps)
    return Flow(fields.Whitened(field), Constant(1.0), max_steps=max_steps)


def jko_variational(
    step_size: float = 1.0,
    width: int = 32,
    num_inner_steps: int = 100,
    num_dual_steps: int = 5,
    learning_rate: float = 1e-2,
    dual_learning_rate: float = 3e-3,
    weight_decay: float = 1e-2,
    max_steps: int = 40,
) -> Flow:
    """JKO steps as a primal-dual game, in the metric of the whitened particles."""
    primal, dual = _adam(learning_rate), _adamw(dual_learning_rate, weight_decay=weight_decay)
    field = fields.JKOVariational(primal, dual, width, step_size, num_inner_steps, num_dual_steps)
    return Flow(fields.Whitened(field), Constant(1.0), max_steps=max_steps)
