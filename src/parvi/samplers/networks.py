"""Algorithm 1 for large networks: a network and a scaling, and steps of Adam that fall to zero.

With fewer particles than dimensions and mini-batches, every particle follows its own preconditioned
gradient, and only the repulsion -H^-1 grad log q is fitted, by a small network and a scaling of
each coordinate (Dong et al. 2023, Algorithm 1 with the base shift of the appendix). Steps that fall
to zero average the noise of the batches.
"""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax

from parvi.fields import PFG, GradientDescent, LargestEigenvalue, Standardised
from parvi.fields.pfg.functions import MLP
from parvi.fields.pfg.preconditioners import AbstractPreconditioner, FisherDiagonal
from parvi.interface import AbstractField
from parvi.samplers.flow import Flow
from parvi.steppers import Optax
from parvi.stopping import Never

_SGD = optax.sgd(1e-2, momentum=0.9)
# The first step of Adam in units of a weight, whose prior is of order 1. On MNIST it was the best
# of 1e-1, .., 1e-4 for PFG and for SVGD alike (docs/reproduction.md).
_FIRST = np.float32(0.01)


class Falling(eqx.Module):
    """eta_t = eta (1 - t / T)."""

    first: np.floating
    steps: int

    def __call__(self, step):
        return jnp.asarray(self.first * (1 - step / self.steps), np.float32)


@functools.cache
def _adam(steps):
    schedule = optax.scale_by_schedule(Falling(np.float32(1.0), steps))
    return optax.chain(optax.adam(1.0, b1=0.0), schedule)


def falling_adam(field: AbstractField, size: np.floating, steps: int) -> Flow:
    """The field with ``steps`` steps of Adam without momentum, which fall to zero at the end."""
    return Flow(field, Optax(_adam(steps), size), Never(), steps)


def network_pfg(preconditioner: AbstractPreconditioner) -> AbstractField:
    """A network of 32 units and a scaling of each coordinate, on the standardised particles.

    With few particles in many dimensions, each must follow its own gradient (base shift 1), and
    only the repulsion is left to the network.
    """
    solver = GradientDescent(_SGD, num_steps=1, warm_up=100, unit=LargestEigenvalue())
    return Standardised(PFG(MLP(32, scaling=True), preconditioner, solver, base_shift=1.0))


def large_network(num_steps: int = 500) -> Flow:
    """The sampler that the default uses for a large network on mini-batches. O(n d).

    H is the square root of the diagonal Fisher information. The number of steps is that of the
    paper's figure for MNIST.
    """
    return falling_adam(network_pfg(FisherDiagonal(0.5)), _FIRST, num_steps)
