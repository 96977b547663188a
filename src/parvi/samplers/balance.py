"""Balance: the weights of separated modes, by bridge sampling inside each of them.

The tempered path finds the modes, and weights that are about as noisy as those of independent
draws, in many dimensions more. Inside one mode a Gaussian comes close to the density, and the ratio
of their constants, the mode's mass, follows from draws of both (Meng & Wong 1996). That ratio is
exact for Gaussian modes and right for others, however the space is cut into modes; only its error
grows. The weights of the path and of the bridges are averaged by their errors, and the particles
are drawn anew, so that every mode has its share of them.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.cloud import Cloud, LogDensity
from parvi.geometry.peaks import DEPTH, NUM_POINTS, NUM_STEPS, climbed, depths
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, required
from parvi.samplers.fly import paired_normal
from parvi.samplers.keys import cheap
from parvi.samplers.resampling import neighbours_in_order, systematic
from parvi.samplers.temper import Passes
from parvi.status import Status
from parvi.stopping import Never

# Step of the differences for a Hessian, and its smallest eigenvalue, in units of a mode's width.
_DIFFERENCE, _FLATTEST = 0.03, 0.01
# Prior particles of a mode, as wide as its Hessian says.
_PRIOR = 10.0
# Iterations of a bridge.
_NUM_ITERATIONS = 30
# Particles of a path are copies of each other in part: so many of them are worth one.
_ALIKE = 4.0
# Standard errors by which path and bridges may differ. Else the bridges are not believed.
_CREDIBLE = 4.0


class Balanced(NamedTuple):
    """The peaks of the modes, and their weights with standard errors; 0 where there is no mode.

    ``log_evidence``: the log of the modes' masses together; NaN if the bridges do not hold.
    """

    places: Float[Array, "k d"]
    weights: Float[Array, " k"]
    standard_errors: Float[Array, " k"]
    log_evidence: Float[Array, ""]


class _Regions(NamedTuple):
    """The space cut into modes: every point belongs to the mode of the nearest end of a climb.

    ``peaks``: the highest end of each mode; ``real``: which rows are modes.
    """

    ends: Float[Array, "c d"]
    modes: Int[Array, " c"]
    peaks: Float[Array, "k d"]
    real: Bool[Array, " k"]
    unit: Float[Array, " d"]

    def of(self, points: Float[Array, "m d"]) -> Int[Array, " m"]:
        """The mode of every point."""
        ends = self.ends * self.unit
        squares = jnp.sum(ends**2, axis=1) - 2 * (points * self.unit) @ ends.T
        return self.modes[jnp.argmin(squares, axis=1)]


class _Sample(NamedTuple):
    """The particles of all passes, with weights, log densities and modes."""

    particles: Float[Array, "m d"]
    weights: Float[Array, " m"]
    log_densities: Float[Array, " m"]
    modes: Int[Array, " m"]


class _Mass(NamedTuple):
    """The log of a mode's mass, and the variance of that."""

    log_mass: Float[Array, ""]
    variance: Float[Array, ""]


class Balance(AbstractSampler):
    """Weighs the modes that a tempered path has found, and draws the particles anew. One step.

    Parameters
    ----------
    num_climbs
        Number of particles that climb, to find the modes.
    most_modes
        The largest number of modes.
    num_draws
        Number of draws of every mode's Gaussian.
    share
        The stage ends as ``NOT_AT_REST`` if a standard error is larger than this share of what that
        of n independent draws would be.
    passes
        The particles of the path; the run tells them.
    """

    num_climbs: int = 64
    most_modes: int = 32
    num_draws: int = 512
    share: float = math.inf
    passes: Any = None
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 1

    @property
    def compares_densities(self):
        return True

    def told(self, start, reports):
        found = required(reports, Passes, "Balance", "Temper")
        return eqx.tree_at(lambda s: s.passes, self, found, is_leaf=lambda leaf: leaf is None)

    def report(self, memory):
        return memory

    def init(self, key, cloud):
        nothing = jnp.zeros(self.most_modes, cloud.dtype)
        nowhere = jnp.zeros((self.most_modes, cloud.shape[1]), cloud.dtype)
        return Balanced(nowhere, nothing, nothing, nothing[0])

    def propose(self, key, cloud, memory):
        key_draws, key_rows = jax.random.split(cheap(key))
        regions = self._regions(cloud)
        sample = _pooled(cloud.log_density, self.passes, regions)
        masses = self._weighed(key_draws, cloud.log_density, sample, regions)
        path, errors = _by_path(self.passes, sample, self.most_modes)
        weights, errors, evidence = _averaged(path, errors, masses)
        shares = sample.weights * (weights / jnp.where(path > 0, path, 1.0))[sample.modes]
        # Mode by mode, so that each has its share of the particles, up to one.
        order = neighbours_in_order(sample.particles * regions.unit)
        order = order[jnp.argsort(sample.modes[order], stable=True)]
        rows = order[systematic(key_rows, (shares / jnp.sum(shares))[order], cloud.shape[0])]
        return sample.particles[rows], Balanced(regions.peaks, weights, errors, evidence)

    def conclude(self, cloud, pending, arrived):
        modes, dim = jnp.sum(pending.weights > 0), cloud.shape[1]
        made = jnp.sum(jnp.isfinite(self.passes.log_evidences))
        asked = modes * (2 * self.num_draws + dim + 1 + NUM_POINTS * self.num_climbs)
        of_draws = jnp.sqrt(pending.weights * (1 - pending.weights) / cloud.shape[0])
        # Nothing is larger than NaN, which rows without a mode have.
        exact = ~jnp.any(pending.standard_errors > self.share * of_draws)
        info = Info.of(
            cloud,
            jnp.full((), jnp.nan),
            status=jnp.where(exact, Status.CONVERGED, Status.NOT_AT_REST),
            gradients=asked + (NUM_STEPS + 1) * self.num_climbs + made * cloud.shape[0],
            extra={"log_evidence": pending.log_evidence},
        )
        return jnp.ones(cloud.shape[0], bool), pending, info

    def _regions(self, cloud) -> _Regions:
        """The modes, the highest first: each takes the ends without a valley towards it."""
        unit = jnp.std(cloud.scores, axis=0) + jnp.finfo(cloud.dtype).tiny
        num = min(self.num_climbs, cloud.shape[0])
        order = neighbours_in_order(cloud.particles * unit)
        rows = order[jnp.arange(num) * cloud.shape[0] // num]
        ends, heights = climbed(cloud.log_density, cloud.particles[rows], unit)
        heights = jnp.nan_to_num(heights, nan=-jnp.inf)

        def one(left, _):
            peak = jnp.argmax(jnp.where(left, heights, -jnp.inf))
            valleys = jax.lax.cond(
                left[peak],
                lambda: depths(cloud.log_density, ends, heights, ends[peak], heights[peak]),
                lambda: jnp.full_like(heights, jnp.inf),
            )
            valleys = valleys.at[peak].set(jnp.where(left[peak], -jnp.inf, jnp.inf))
            return left & (valleys > DEPTH), (peak, left[peak], valleys)

        first = jnp.ones(num, bool)
        _, (peaks, real, valleys) = jax.lax.scan(one, first, length=self.most_modes)
        return _Regions(ends, jnp.argmin(valleys, axis=0), ends[peaks], real, unit)

    def _weighed(self, key, log_density, sample: _Sample, regions: _Regions) -> _Mass:
        """The masses of all modes, one after another."""
        nowhere = _Mass(jnp.full((), -jnp.inf), jnp.zeros(()))
        nowhere = jax.tree_util.tree_map(lambda x: x.astype(sample.weights.dtype), nowhere)
        numbers = jnp.arange(self.most_modes)
        keys = jax.random.split(key, self.most_modes)

        def one(args):
            key, number, peak, real = args
            own = (sample.modes == number) * sample.weights
            return jax.lax.cond(
                real & (jnp.sum(own) > 0),
                lambda: self._mass(key, log_density, sample, regions, number, peak),
                lambda: nowhere,
            )

        return jax.lax.map(one, (keys, numbers, regions.peaks, regions.real))

    def _mass(self, key, log_density, sample, regions, number, peak) -> _Mass:
        """A mode's mass: one half of its particles makes the Gaussian, the other half the bridge.

        Then the halves change places. A Gaussian that is fitted to the particles of its bridge
        would make the mass too small.
        """
        axes, own = _hessian_axes(log_density, peak, regions.unit), sample.modes == number
        z = (sample.particles - peak) @ axes.inverse.T
        half = jnp.arange(len(own)) % 2 == 0
        masses = []
        for own_key, part in zip(jax.random.split(key), (half, ~half), strict=True):
            mean, sds = _fitted(z, sample.weights * (own & part))
            normals = paired_normal(own_key, (self.num_draws, len(mean)), z.dtype)
            draws = peak + (mean + sds * normals) @ axes.factor.T
            constant = jnp.sum(jnp.log(sds)) + axes.log_volume

            def log_normal(standard, constant=constant):
                return -0.5 * jnp.sum(standard**2 + math.log(2 * math.pi), axis=1) - constant

            there = Cloud.at(log_density, draws).log_densities - log_normal(normals)
            there = jnp.where(regions.of(draws) == number, there, -jnp.inf)
            here = sample.log_densities - log_normal((z - mean) / sds)
            masses.append(_bridge(here, sample.weights * (own & ~part), there))
        (one, first), (two, second) = masses
        return _Mass((one + two) / 2, (first + second) / 4)


class _HessianAxes(NamedTuple):
    factor: Float[Array, "d d"]
    inverse: Float[Array, "d d"]
    log_volume: Float[Array, ""]


def _hessian_axes(log_density: LogDensity, peak, unit) -> _HessianAxes:
    """Axes in which the density at a peak is about N(0, I)."""
    offsets = _DIFFERENCE * jnp.diag(1 / unit)
    around = jnp.concatenate([peak[None], peak + offsets])
    scores = Cloud.at(log_density, around).place.scores / unit
    hessian = (scores[0] - scores[1:]) / _DIFFERENCE
    values, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    # What is not finite makes a bridge that is not, and the path's weights are taken.
    widths = jnp.maximum(jnp.abs(values), _FLATTEST) ** -0.5
    factor = vectors * widths / unit[:, None]
    volume = jnp.sum(jnp.log(widths)) - jnp.sum(jnp.log(unit))
    return _HessianAxes(factor, (vectors / widths).T * unit, volume)


def _fitted(z, weights) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Mean and standard deviations of weighted points, and of some points of N(0, I)."""
    total = jnp.maximum(jnp.sum(weights), jnp.finfo(z.dtype).tiny)
    number = total**2 / jnp.maximum(jnp.sum(weights**2), jnp.finfo(z.dtype).tiny)
    mean = (weights / total) @ z * number / (number + _PRIOR)
    squares = (weights / total) @ (z - mean) ** 2
    return mean, jnp.sqrt((number * squares + _PRIOR) / (number + _PRIOR))


def _bridge(here, weights, there) -> _Mass:
    """The ratio of constants from log ratios at weighted points of p and at draws of q."""
    tiny = jnp.finfo(here.dtype).tiny
    total = jnp.maximum(jnp.sum(weights), tiny)
    weights = weights / total
    worth = 1 / jnp.maximum(jnp.sum(weights**2), tiny) / _ALIKE
    centre = weights @ jnp.where(weights > 0, here, 0.0)
    share = worth / (worth + len(there))
    here, there = (jnp.clip(log_ratios - centre, -60, 60) for log_ratios in (here, there))

    def terms(log_mass):
        """Of the two means: both are bounded, whatever the ratios."""
        of_q = 1 / (share + (1 - share) * jnp.exp(log_mass - there))
        of_p = 1 / (share * jnp.exp(here - log_mass) + (1 - share))
        return of_q, of_p

    def iterate(_, log_mass):
        of_q, of_p = terms(log_mass)
        return log_mass + jnp.log(jnp.mean(of_q)) - jnp.log(weights @ of_p)

    log_mass = jax.lax.fori_loop(0, _NUM_ITERATIONS, iterate, jnp.zeros((), here.dtype))
    of_q, of_p = terms(log_mass)
    mean = weights @ of_p
    spread = weights @ (of_p - mean) ** 2 / mean**2
    variance = jnp.var(of_q) / jnp.mean(of_q) ** 2 / len(there) + spread / worth
    return _Mass(log_mass + centre, variance)


def _pooled(log_density, passes: Passes, regions: _Regions) -> _Sample:
    """The particles of all passes that were made."""
    _, num, dim = passes.ends.shape
    made = jnp.isfinite(passes.log_evidences)
    values = jax.lax.map(
        lambda args: jax.lax.cond(
            args[1],
            # In blocks, as all particles with all rows of data may not fit.
            lambda: Cloud.at(log_density, args[0]).log_densities,
            lambda: jnp.zeros(num, passes.ends.dtype),
        ),
        (passes.ends, made),
    )
    particles = passes.ends.reshape(-1, dim)
    weights = jnp.repeat(jax.nn.softmax(passes.log_evidences) / num, num)
    return _Sample(particles, weights, values.reshape(-1), regions.of(particles))


def _by_path(passes: Passes, sample: _Sample, most: int):
    """The weights of the modes by the path, and their standard errors by its passes."""
    num_passes, num, _ = passes.ends.shape
    shares = jax.nn.softmax(passes.log_evidences)
    labels = sample.modes.reshape(num_passes, num)
    each = jnp.mean(labels[:, :, None] == jnp.arange(most), axis=1)
    weights = shares @ each
    made = jnp.sum(jnp.isfinite(passes.log_evidences))
    variances = shares**2 @ (each - weights) ** 2 * made / jnp.maximum(made - 1, 1)
    # The differences of few passes may be small by chance.
    least = weights * (1 - weights) / (num * made)
    return weights, jnp.sqrt(jnp.maximum(variances, least))


def _averaged(path, errors, masses: _Mass):
    """The weights of path and bridges, averaged by their errors, and the bridges' evidence."""
    bridged = jax.nn.softmax(masses.log_mass)
    relative = masses.variance * bridged**2
    spread = (1 - bridged) ** 2 * relative + bridged**2 * (jnp.sum(relative) - relative)
    apart = jnp.abs(bridged - path) > _CREDIBLE * jnp.sqrt(errors**2 + spread)
    sound = jnp.all(jnp.isfinite(bridged) & jnp.isfinite(spread) & ~apart)
    ours, theirs = jnp.sum(errors**2), jnp.sum(spread)
    share = ours / jnp.maximum(ours + theirs, jnp.finfo(path.dtype).tiny)
    weights = jnp.where(sound, share * bridged + (1 - share) * path, path)
    variances = jnp.where(sound, share**2 * spread + (1 - share) ** 2 * errors**2, errors**2)
    evidence = jnp.where(sound, jax.scipy.special.logsumexp(masses.log_mass), jnp.nan)
    return weights, jnp.sqrt(variances), evidence
