"""Shared by the experiments on Bayesian neural networks: falling steps, and PFG for networks."""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax

from parvi.fields import PFG, GradientDescent, LargestEigenvalue, Standardised
from parvi.fields.pfg.preconditioners import AbstractPreconditioner
from parvi.functions import MLP
from parvi.interface import AbstractField
from parvi.samplers.flow import Flow
from parvi.steppers import Optax
from parvi.stopping import Never

_SGD = optax.sgd(1e-2, momentum=0.9)


class Falling(eqx.Module):
    """eta_t = eta (1 - t / T), the schedule of all methods."""

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
