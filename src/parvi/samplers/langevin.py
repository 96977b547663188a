"""Langevin diffusions in discrete time, each particle a chain of its own.

    x <- x + eta grad log p(x) + sqrt(2 eta) xi,     xi ~ N(0, I)

is unadjusted Langevin (Roberts & Tweedie 1996, Sec. 1.4.1). Steps of finite length make the result
too wide: for a Gaussian of precision lambda the variance becomes 1 / (lambda (1 - eta lambda / 2)),
and for eta lambda >= 2 the chain diverges. MALA (ibid. Sec. 1.4.2) removes the bias: it takes the
same move as a Metropolis-Hastings proposal.

If no step size is given, it is estimated in the first steps and then frozen, so that the rest of
the run is a Markov chain with fixed parameters.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from parvi.cloud import Cloud
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.stopping import Never

# Weight of the past in the average of the curvature, which forgets the start within 20 steps.
_MEMORY = 0.9


class AbstractStepSize(eqx.Module):
    """A rule for the step size of a Langevin sampler."""

    def init(self, key: Key[Array, ""], cloud: Cloud) -> PyTree[Array]:
        """The memory before the first step: nothing unless overridden."""
        return ()

    @abc.abstractmethod
    def propose(
        self, key: Key[Array, ""], step: Int[Array, ""], cloud: Cloud, memory: PyTree[Array]
    ) -> tuple[Float[Array, ""], Any, Any]:
        """The step size from these particles, the gradients it took, and the new memory."""

    def learn(
        self, step: Int[Array, ""], acceptance: Float[Array, ""], memory: PyTree[Array]
    ) -> PyTree[Array]:
        """The memory after a step with this mean acceptance probability."""
        return memory


class FixedStep(AbstractStepSize):
    """The same eta at every step."""

    step_size: float

    def propose(self, key, step, cloud, memory):
        return jnp.asarray(self.step_size, cloud.dtype), 0, memory


class CurvatureStep(AbstractStepSize):
    """eta = share / |H|_F, with |H|_F^2 = E|grad^2 log p|_F^2 over the particles.

    For a Gaussian the unadjusted chain then ends, to leading order, at a KL of share^2 / 16 from
    it whatever the dimension and the conditioning (each direction adds (eta lambda)^2 / 16), and
    eta lambda <= share keeps it stable. |H|_F^2 = E|H v|^2 is estimated with one random sign vector
    v for each particle: one Hessian-vector product, about two gradients, during ``burn_in`` only.
    For densities that bend without second derivatives (Laplace), the slope of the regression of
    scores on particles, l = -E[(x - m) . s] / E|x - m|^2, gives a lower bound: |H|_F is raised to
    at least l sqrt(d), which always holds for a Gaussian at rest.

    Until the particles have found the density's curvature, a step's noise is kept below their own
    spread: eta <= var / 2, with the mean variance over the coordinates (1/2 if they coincide).

    Parameters
    ----------
    share
        See above. 0.2 leaves a KL of 0.0025, and in one dimension a variance 11 % too large.
    burn_in
        Number of steps after which the step size is frozen.
    """

    share: float = 0.2
    burn_in: int = 200

    def init(self, key, cloud):
        square = _square_curvature(key, cloud)
        return square, _bounded(self.share, square, cloud)

    def propose(self, key, step, cloud, memory):
        def measured():
            # The first estimate is the start's own, made by init.
            square = _MEMORY * memory[0] + (1 - _MEMORY) * _square_curvature(key, cloud)
            return square, _bounded(self.share, square, cloud)

        burning = step < self.burn_in
        memory = jax.lax.cond(burning, measured, lambda: memory)
        # A Hessian-vector product counts as two gradients.
        return memory[1], jnp.where(burning, 2 * cloud.shape[0], 0), memory


class AcceptanceStep(AbstractStepSize):
    """log eta <- log eta + gain_t (acceptance - target), gain_t = (1 + t)^-1/2, in the burn-in.

    The acceptance is the mean over all particles, so that they share one step size. It starts from
    that of ``CurvatureStep(share=1)``.

    Parameters
    ----------
    target
        0.574 is the most efficient rate in high dimension (Roberts & Rosenthal 1998, Thm. 2).
    burn_in
        Number of steps after which the step size is frozen.
    """

    target: float = 0.574
    burn_in: int = 500

    def init(self, key, cloud):
        return jnp.log(_bounded(1.0, _square_curvature(key, cloud), cloud))

    def propose(self, key, step, cloud, memory):
        return jnp.exp(memory), 0, memory

    def learn(self, step, acceptance, memory):
        gain = (1 + step.astype(memory.dtype)) ** -0.5
        return jnp.where(step < self.burn_in, memory + gain * (acceptance - self.target), memory)


class LangevinMemory(NamedTuple):
    """The number of steps done, and the memory of the step size."""

    step: Int[Array, ""]
    step_size: PyTree[Array]


class _Move(NamedTuple):
    """A move of every particle; ``rule`` is the memory of the step size after it."""

    step: Int[Array, ""]
    noise: Float[Array, "n d"]
    step_size: Float[Array, ""]
    gradients: Int[Array, ""]
    rule: PyTree[Array]


class AbstractLangevin(AbstractSampler):
    """Langevin moves, at O(n d) per step beside one gradient per particle.

    Parameters
    ----------
    step_size
        The rule for the step size.
    max_steps
        The number of steps in a run.
    """

    step_size: AbstractStepSize
    max_steps: int = 2000
    stopping_rule: AbstractStoppingRule = Never()

    def init(self, key, cloud):
        return LangevinMemory(jnp.zeros((), jnp.int32), self.step_size.init(key, cloud))

    def _moved(self, key, cloud, memory):
        """The proposed points, and the move that leads there."""
        key_step, key_noise = jax.random.split(key)
        step, rule = memory
        eta, gradients, rule = self.step_size.propose(key_step, step, cloud, rule)
        noise = jax.random.normal(key_noise, cloud.shape, cloud.dtype)
        points = cloud.particles + eta * cloud.scores + jnp.sqrt(2 * eta) * noise
        return points, _Move(step, noise, eta, gradients, rule)


class Langevin(AbstractLangevin):
    """Unadjusted Langevin. See ``AbstractLangevin`` for the parameters."""

    step_size: AbstractStepSize = CurvatureStep()

    def propose(self, key, cloud, memory):
        return self._moved(key, cloud, memory)

    def conclude(self, cloud, pending, arrived):
        info = Info.of(cloud, pending.step_size, gradients=pending.gradients)
        return True, LangevinMemory(pending.step + 1, pending.rule), info


class MALA(AbstractLangevin):
    """Metropolis-adjusted Langevin: each particle's chain leaves the density invariant.

    A proposal without a finite log density is rejected, which is exact. The log density must be
    the full one: with mini-batches the ratio would compare two different densities (use ``sgld``).
    See ``AbstractLangevin`` for the parameters.
    """

    step_size: AbstractStepSize = AcceptanceStep()

    def propose(self, key, cloud, memory):
        key_move, key_accept = jax.random.split(key)
        thresholds = jax.random.exponential(key_accept, cloud.shape[:1], cloud.dtype)
        points, move = self._moved(key_move, cloud, memory)
        return points, (move, thresholds)

    def conclude(self, cloud, pending, arrived):
        move, thresholds = pending
        # log q(y | x) = -|xi|^2 / 2, and log q(x | y) is that of the noise that would lead back.
        back = move.noise + jnp.sqrt(move.step_size / 2) * (cloud.scores + arrived.scores)
        log_ratios = arrived.log_densities - cloud.log_densities
        log_ratios += 0.5 * (jnp.sum(move.noise**2, axis=1) - jnp.sum(back**2, axis=1))
        log_ratios = jnp.where(jnp.isfinite(log_ratios), log_ratios, -jnp.inf)
        acceptance = jnp.mean(jnp.exp(jnp.minimum(log_ratios, 0.0)))
        rule = self.step_size.learn(move.step, acceptance, move.rule)
        extra = {"acceptance": acceptance}
        info = Info.of(cloud, move.step_size, gradients=move.gradients, extra=extra)
        return log_ratios >= -thresholds, LangevinMemory(move.step + 1, rule), info


def langevin(step_size: float | None = None, max_steps: int = 2000) -> Langevin:
    """Unadjusted Langevin chains, one for each particle.

    Parameters
    ----------
    step_size
        The step size eta. None estimates it from the curvature in the first 200 steps.
    max_steps
        The number of steps in a run.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, parvi
    >>> start = np.random.default_rng(0).normal(size=(500, 2))
    >>> log_density = lambda x: -0.5 * jnp.sum((x - 3) ** 2)
    >>> result = parvi.sample(log_density, start, sampler=parvi.langevin(), num_steps=500)
    >>> bool(abs(result.particles.mean() - 3) < 0.2)
    True
    """
    return Langevin(_rule(step_size, CurvatureStep()), max_steps)


def mala(step_size: float | None = None, max_steps: int = 2000) -> MALA:
    """Langevin chains made exact by accepting or rejecting each move.

    Parameters
    ----------
    step_size, max_steps
        As in ``langevin``, but None adapts eta to the acceptance in the first 500 steps.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, parvi
    >>> start = np.random.default_rng(0).normal(size=(500, 2))
    >>> log_density = lambda x: -0.5 * jnp.sum((x - 3) ** 2)
    >>> result = parvi.sample(log_density, start, sampler=parvi.mala(), num_steps=500)
    >>> bool(abs(result.particles.mean() - 3) < 0.2)
    True
    """
    return MALA(_rule(step_size, AcceptanceStep()), max_steps)


def _rule(step_size: float | None, found: AbstractStepSize) -> AbstractStepSize:
    if step_size is None:
        return found
    if not step_size > 0:
        raise ValueError(f"step_size must be None or a positive number, got {step_size!r}.")
    return FixedStep(float(step_size))


def _square_curvature(key, cloud: Cloud) -> Float[Array, ""]:
    """E|grad^2 log p|_F^2 over the particles, or the regressed slope's estimate if larger."""
    signs = jax.random.rademacher(key, cloud.shape, cloud.dtype)
    products = jax.vmap(cloud.hessian_product)(cloud.particles, signs)
    local = jnp.mean(jnp.sum(products**2, axis=1))
    variance = jnp.mean(jnp.var(cloud.particles, axis=0))
    slope = jnp.where(variance > 0, cloud.stein_ratio(), 0.0) / jnp.where(variance > 0, variance, 1)
    return jnp.maximum(local, cloud.shape[1] * jnp.maximum(slope, 0.0) ** 2)


def _bounded(share, square_curvature, cloud: Cloud) -> Float[Array, ""]:
    """share / |H|_F, at most half the particles' variance; a curvature of 0 or NaN is ignored.

    Particles that coincide have no scale, so their variance is taken to be 1.
    """
    variance = jnp.mean(jnp.var(cloud.particles, axis=0))
    bound = 0.5 * jnp.where(variance > 0, variance, 1.0)
    known = square_curvature > 0
    step = share / jnp.sqrt(jnp.where(known, square_curvature, 1.0))
    return jnp.where(known, jnp.minimum(step, bound), bound)
