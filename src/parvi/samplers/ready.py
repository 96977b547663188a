"""Ready samplers, one function each: the parts put together with settings that work."""

import functools

import optax

from parvi.fields.frame import Whitened
from parvi.fields.kernels import RBF, AbstractKernel
from parvi.fields.pfg.field import PFG
from parvi.fields.pfg.functions import MLP, Linear
from parvi.fields.pfg.preconditioners import AbstractPreconditioner, RegressedHessian
from parvi.fields.pfg.solvers import GradientDescent, Ridge
from parvi.fields.svgd import SVGD
from parvi.samplers.flow import Flow
from parvi.samplers.steppers import Constant, LineSearch, Optax, TrustRegion


def pfg(max_steps: int = 1000) -> Flow:
    """Linear PFG without a setting to tune: affine invariant, stops by itself.

    Affine maps are fitted in closed form to the particles whitened by their own mean and
    covariance, in the metric of the regressed Hessian; a line search on the KL rate picks the
    step, within a trust region of one standard deviation.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, parvi
    >>> start = jax.random.normal(jax.random.key(0), (128, 2))
    >>> result = parvi.sample(lambda x: -0.5 * jnp.sum((x - 3) ** 2), start)
    >>> result.status.name
    'CONVERGED'
    >>> bool(abs(result.particles.mean() - 3) < 1e-2)
    True
    """
    field = Whitened(PFG(Linear(), RegressedHessian(), Ridge(1e-3)))
    return Flow(field, TrustRegion(LineSearch()), max_steps=max_steps)


def pfg_algorithm_1(
    step_size: float = 0.1,
    width: int = 32,
    num_inner_steps: int = 5,
    learning_rate: float = 1e-3,
    momentum: float = 0.9,
    preconditioner: AbstractPreconditioner | None = None,
    base_shift: float = 0.0,
    warm_up: int = 0,
    max_steps: int = 1000,
) -> Flow:
    """Algorithm 1 of the paper: a two-layer network, T' steps of SGD, a constant step."""
    optimizer = _sgd(learning_rate, momentum)
    solver = GradientDescent(optimizer, num_steps=num_inner_steps, warm_up=warm_up)
    field = PFG(MLP(width), preconditioner, solver, base_shift=base_shift)
    return Flow(field, Constant(step_size), max_steps=max_steps)


def svgd(
    step_size: float = 0.1,
    kernel: AbstractKernel | None = None,
    block_size: int | None = None,
    max_steps: int = 1000,
) -> Flow:
    """SVGD with Adam, by default with the RBF kernel and the median bandwidth."""
    field = SVGD(RBF() if kernel is None else kernel, block_size)
    return Flow(field, Optax(_adam(step_size)), max_steps=max_steps)


# One optimiser object for each setting: a new one would be a new compilation.
@functools.lru_cache(maxsize=128)
def _sgd(learning_rate: float, momentum: float) -> optax.GradientTransformation:
    return optax.sgd(learning_rate, momentum=momentum)


@functools.lru_cache(maxsize=128)
def _adam(learning_rate: float) -> optax.GradientTransformation:
    return optax.adam(learning_rate)
