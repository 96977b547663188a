"""Stochastic gradient Langevin dynamics (Welling & Teh 2011).

    x <- x + eta_t s(x) + sqrt(2 eta_t) xi,     eta_t = a (b + t)^-gamma          (Eq. 4)

where s is the score of log prior + (N / B) x the log likelihood of a mini-batch; the paper's
epsilon is 2 eta. The target draws the batch (``parvi.MiniBatch``), and all particles of a step see
the same rows. Mini-batch noise of covariance C adds eta^2 C to the injected 2 eta I, so it fades as
the steps shrink; for gamma in (1/2, 1] the sum of eta_t diverges while that of eta_t^2 does not
(Eq. 2). The result is each chain's last state, which needs no weights.

A step must be shorter than 2 / lambda, with lambda the largest curvature of the log density, which
grows with the rows of data. If no step size is given, the unit of the schedule is therefore one
over the curvature that the particles see in the first steps (``langevin.CurvatureStep``).
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from parvi.fields.clipped import norms
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.samplers.langevin import AbstractStepSize, CurvatureStep, FixedStep
from parvi.stopping import Never

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]

# The first step in units of one over the curvature. With 1/2 a chain makes half of Newton's step.
FIRST = 0.5
# Longest drift of a particle, in root mean square lengths of the noise of its step. At rest a drift
# is shorter than half of one, so only particles in wild places are held back.
_LONGEST = 3.0


class PolynomialDecay(eqx.Module):
    """eta_t = a (b + t)^-gamma.

    Parameters
    ----------
    scale
        The scale a; the first step is a b^-gamma.
    offset
        The number of steps b before the decay sets in.
    power
        The power gamma; 0 for a constant step. Welling & Teh use 0.55.
    """

    scale: float | np.floating | Float[Array, ""] = 0.02
    offset: float = 10.0
    power: float = 0.55

    def __check_init__(self):
        if not (self.scale > 0 and self.offset > 0 and self.power >= 0):
            raise ValueError(
                "A decay needs scale > 0, offset > 0 and power >= 0, got "
                f"scale={self.scale}, offset={self.offset}, power={self.power}."
            )

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The step size of this step."""
        return jnp.asarray(self.scale * (self.offset + step) ** -self.power)


class SGLDMemory(NamedTuple):
    """The number of steps done, and the memory of the unit."""

    step: Int[Array, ""]
    unit: PyTree[Array]


class SGLD(AbstractSampler):
    """Langevin chains on mini-batches, at O(n d) per step beside one gradient per particle.

    Parameters
    ----------
    schedule
        Function from step number to step size; any function that JAX can trace will do, such as
        optax's schedules. Build it once, as a new function triggers a new compilation.
    max_steps
        The number of steps in a run.
    unit
        The unit of the schedule. With ``FixedStep(1.0)`` its steps are taken as they are; with
        ``CurvatureStep(share)`` their unit is this share of one over the curvature.
    longest
        The longest drift of a particle, in root mean square lengths of its noise; None for no
        bound.
    """

    schedule: Schedule = PolynomialDecay()
    max_steps: int = 2000
    stopping_rule: AbstractStoppingRule = Never()
    unit: AbstractStepSize = FixedStep(1.0)
    longest: float | None = None

    def init(self, key, cloud):
        return SGLDMemory(jnp.zeros((), jnp.int32), self.unit.init(key, cloud))

    def propose(self, key, cloud, memory):
        key_unit, key_noise = jax.random.split(key)
        unit, gradients, rule = self.unit.propose(key_unit, memory.step, cloud, memory.unit)
        eta = unit * jnp.asarray(self.schedule(memory.step), cloud.dtype)
        noise = jax.random.normal(key_noise, cloud.shape, cloud.dtype)
        drift = eta * cloud.scores
        if self.longest is not None:
            lengths = norms(drift)[:, None]
            limit = self.longest * jnp.sqrt(2 * eta * cloud.shape[1])
            drift = drift * jnp.minimum(1.0, limit / jnp.where(lengths > 0, lengths, 1.0))
        points = cloud.particles + drift + jnp.sqrt(2 * eta) * noise
        return points, (SGLDMemory(memory.step + 1, rule), eta, gradients)

    def conclude(self, cloud, pending, arrived):
        memory, eta, gradients = pending
        return True, memory, Info.of(cloud, eta, gradients=gradients)


def sgld(
    step_size: float | Schedule | None = None,
    offset: float = 10.0,
    power: float = 0.55,
    max_steps: int = 2000,
) -> SGLD:
    """SGLD with eta_t = step_size (offset + t)^-power, or with any schedule as ``step_size``.

    The first step must be shorter than 2 / lambda, where lambda is the largest curvature of the log
    density. With N rows of data lambda is of order N, so ``step_size`` is of order 1 / N. With None
    the first step is half of one over the curvature that the particles see, and drifts much longer
    than their noise are shortened. The noise of mini-batches is not accounted for: it adds to the
    variance, and moves all particles together, until N / B times eta lambda / 2 is small.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, parvi
    >>> rows = np.random.default_rng(0).normal(3.0, 1.0, size=1000)
    >>> target = parvi.MiniBatch(
    ...     lambda x: -0.5 * jnp.sum(x**2), lambda x, y: -0.5 * (y - x[0]) ** 2, rows, batch_size=50
    ... )
    >>> start = np.random.default_rng(1).normal(size=(100, 1))
    >>> result = parvi.sample(target, start, sampler=parvi.sgld(1e-3), num_steps=500)
    >>> bool(abs(result.particles.mean() - 3) < 0.2)
    True
    """
    if step_size is None:
        falling = PolynomialDecay(offset**power, offset, power)
        return SGLD(falling, max_steps, unit=CurvatureStep(FIRST), longest=_LONGEST)
    schedule = step_size if callable(step_size) else PolynomialDecay(step_size, offset, power)
    return SGLD(schedule, max_steps)
