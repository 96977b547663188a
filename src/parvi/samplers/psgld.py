"""Preconditioned SGLD (Li, Chen, Carlson & Carin 2016).

    V <- alpha V + (1 - alpha) s^2,     G = 1 / (lambda + sqrt(V))                 (Eq. 3, 4)
    x <- x + eta_t (G s + Gamma) + sqrt(2 eta_t G) xi,     Gamma_i = dG_i/dx_i     (Alg. 1)

G is RMSProp's preconditioner, with one moving average for each coordinate of each particle; the
paper's epsilon is 2 eta. Since G depends on x, the chain needs the drift Gamma. The paper leaves it
out in its experiments, and so does the default here. With V held from the step before,

    Gamma_i = -(1 - alpha) G_i^2 s_i H_ii / sqrt(V_i),     H = grad^2 log p.

Gamma corrects only for the newest term of V. The dependence of the older terms on x stays
uncorrected, in the paper as here: the chain is right if V hardly moves, which needs an average
longer than the chain's memory, 1 / (1 - alpha) >> 1 / (eta G |H|). In the other limit V follows
s^2, and the density becomes p / G: for a Gaussian this is p |x|, with twice the variance. Short
steps therefore need an alpha near 1.

An ensemble can do better: if s^2 is averaged over its n particles, V hardly depends on any one of
them, and the error that Gamma would correct is 1 / n as large. The particles' spread is also the
natural unit of eta, coordinate by coordinate: G is about one standard deviation at rest, so a step
of eta = a spread has the preconditioner a variance. Both are the default of ``psgld``.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from parvi.cloud import Cloud
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.samplers.sgld import FIRST, PolynomialDecay, Schedule
from parvi.stopping import Never

# The scores of one particle in a wild place would carry it away, since they hardly count in the
# average over all particles. The scores of a Gaussian exceed this in one case of four hundred, and
# by little.
_LONGEST = 3.0


class AbstractCorrection(eqx.Module):
    """A way to find the diagonal of grad^2 log p, which Gamma needs."""

    @abc.abstractmethod
    def diagonals(self, key: Key[Array, ""], cloud: Cloud) -> tuple[Float[Array, "n d"], int]:
        """The diagonal at every particle, and the number of Hessian-vector products it took."""


class NoCorrection(AbstractCorrection):
    """Gamma = 0, as in the paper's experiments, at no cost."""

    def diagonals(self, key, cloud):
        return jnp.zeros_like(cloud.particles), 0


class ProbedCorrection(AbstractCorrection):
    """diag H = E[v * H v] with one random sign vector v for each particle.

    It is unbiased, and exact for a diagonal Hessian. It costs one Hessian-vector product per
    particle.
    """

    def diagonals(self, key, cloud):
        signs = jax.random.rademacher(key, cloud.shape, cloud.dtype)
        return signs * jax.vmap(cloud.hessian_product)(cloud.particles, signs), 1


class ExactCorrection(AbstractCorrection):
    """diag H itself, by d Hessian-vector products per particle."""

    def diagonals(self, key, cloud):
        dim = cloud.shape[1]
        basis = jnp.eye(dim, dtype=cloud.dtype)

        def one(x):
            return jnp.diagonal(jax.vmap(lambda v: cloud.hessian_product(x, v))(basis))

        return jax.vmap(one)(cloud.particles), dim


class AbstractAverage(eqx.Module):
    """The particles over which squared scores are averaged."""

    @abc.abstractmethod
    def squares(self, scores: Float[Array, "n d"]) -> Float[Array, "..."]:
        """The squares of one step."""

    @abc.abstractmethod
    def share(self, num: int) -> float:
        """The share of one of n particles in an average."""


class EachParticle(AbstractAverage):
    """An average for each particle, as for the paper's one chain."""

    def squares(self, scores):
        return scores**2

    def share(self, num):
        return 1.0


class AllParticles(AbstractAverage):
    """One average for all particles."""

    def squares(self, scores):
        return jnp.mean(scores**2, axis=0)

    def share(self, num):
        return 1 / num


class AbstractUnit(eqx.Module):
    """The unit of the schedule, for all coordinates or for each."""

    @abc.abstractmethod
    def of(self, particles: Float[Array, "n d"]) -> Float[Array, "..."]:
        """The unit for these particles."""


class One(AbstractUnit):
    """The steps are taken as they are."""

    def of(self, particles):
        return jnp.ones((), particles.dtype)


class Spread(AbstractUnit):
    """The standard deviation of each coordinate over the particles.

    A coordinate in which they coincide takes the mean of the others, or 1.
    """

    def of(self, particles):
        spread = jnp.std(particles, axis=0)
        mean = jnp.mean(spread)
        return jnp.where(spread > 0, spread, jnp.where(mean > 0, mean, 1.0))


class PSGLDMemory(NamedTuple):
    """The number of steps done, and the moving average of squared scores."""

    step: Int[Array, ""]
    square: Float[Array, "..."]


class PSGLD(AbstractSampler):
    """SGLD with RMSProp's preconditioner, at O(n d) per step beside one gradient per particle.

    V starts at the mean of s^2 over the particles, not at 0: otherwise a particle that happens to
    start where one of its scores is small would take a step of order 1 / lambda.

    Parameters
    ----------
    schedule
        Function from step number to step size, as in ``SGLD``. Both G and eta have the unit of x,
        so compare eta with the standard deviations of the target, not with its variances.
    decay
        The decay alpha; the paper uses 0.99. Shorter steps need a value nearer to 1.
    regulariser
        The regulariser lambda.
    num_rows
        The scores are divided by it before they are squared. The paper averages the gradient over
        the N rows of data; ``num_rows=N`` does the same with a step size N times smaller.
    correction
        The way to compute Gamma.
    max_steps
        The number of steps in a run.
    average
        The particles over which squared scores are averaged.
    unit
        The unit of the schedule.
    longest
        The largest score of a coordinate, in root mean squares of that coordinate; None for no
        bound.
    """

    schedule: Schedule = PolynomialDecay()
    decay: float = 0.99
    regulariser: float = 1e-5
    num_rows: int = 1
    correction: AbstractCorrection = NoCorrection()
    max_steps: int = 2000
    stopping_rule: AbstractStoppingRule = Never()
    average: AbstractAverage = EachParticle()
    unit: AbstractUnit = One()
    longest: float | None = None

    def __check_init__(self):
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be at least 0 and less than 1, got {self.decay}.")
        if not self.regulariser > 0:
            raise ValueError(f"regulariser must be positive, got {self.regulariser}.")
        if self.num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {self.num_rows}.")

    def init(self, key, cloud):
        scaled = cloud.scores / self.num_rows
        shape = jax.eval_shape(self.average.squares, scaled).shape
        square = jnp.broadcast_to(jnp.mean(scaled**2, axis=0), shape)
        return PSGLDMemory(jnp.zeros((), jnp.int32), square)

    def propose(self, key, cloud, memory):
        key_noise, key_correction = jax.random.split(key)
        scaled = cloud.scores / self.num_rows
        squares = self.average.squares(scaled)
        square = self.decay * memory.square + (1 - self.decay) * squares
        root = jnp.sqrt(square)
        preconditioner = 1 / (self.regulariser + root)

        diagonals, products = self.correction.diagonals(key_correction, cloud)
        # s / sqrt(V) is bounded by 1 / sqrt(1 - alpha), and is 0 where both are 0.
        relative = scaled / jnp.where(root > 0, root, 1.0)
        newest = (1 - self.decay) * self.average.share(cloud.shape[0])
        gamma = -newest / self.num_rows * preconditioner**2 * relative * diagonals

        eta = self.unit.of(cloud.particles) * jnp.asarray(self.schedule(memory.step), cloud.dtype)
        noise = jax.random.normal(key_noise, cloud.shape, cloud.dtype)
        pull = preconditioner * cloud.scores
        if self.longest is not None:
            pull = jnp.clip(pull, -self.longest * self.num_rows, self.longest * self.num_rows)
        drift = eta * (pull + gamma)
        points = cloud.particles + drift + jnp.sqrt(2 * eta * preconditioner) * noise
        # A Hessian-vector product counts as two gradients.
        gradients = 2 * products * cloud.shape[0]
        return points, (PSGLDMemory(memory.step + 1, square), eta, gradients)

    def conclude(self, cloud, pending, arrived):
        memory, eta, gradients = pending
        return True, memory, Info.of(cloud, jnp.mean(eta), gradients=gradients)


def psgld(
    step_size: float | Schedule | None = None,
    offset: float = 10.0,
    power: float = 0.55,
    decay: float = 0.99,
    regulariser: float = 1e-5,
    num_rows: int = 1,
    correction: AbstractCorrection = NoCorrection(),
    max_steps: int = 2000,
) -> PSGLD:
    """pSGLD with eta_t = step_size (offset + t)^-power, or with any schedule as ``step_size``.

    With None the first step is half of the particles' spread in each coordinate, as it is at the
    time, and squared scores are averaged over the particles. With a step size of your own, every
    particle has its own average, as in the paper.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, parvi
    >>> scales = np.array([1.0, 0.1])
    >>> start = np.random.default_rng(1).normal(size=(500, 2))
    >>> log_density = lambda x: -0.5 * jnp.sum((x / scales) ** 2)
    >>> result = parvi.sample(log_density, start, sampler=parvi.psgld())
    >>> bool(np.allclose(result.particles.std(axis=0), scales, rtol=0.2))
    True
    """
    relative = step_size is None
    # Scores that are divided by N make G that much larger.
    size = FIRST / max(num_rows, 1) * offset**power if step_size is None else step_size
    schedule = size if callable(size) else PolynomialDecay(size, offset, power)
    return PSGLD(
        schedule,
        decay,
        regulariser,
        num_rows,
        correction,
        max_steps,
        average=AllParticles() if relative else EachParticle(),
        unit=Spread() if relative else One(),
        longest=_LONGEST if relative else None,
    )
