"""Balance: the weights of separated modes, by bridge sampling inside each of them.

The tempered path finds the modes, and weights that are about as noisy as those of independent
draws, and noisier in many dimensions. Inside one mode a Gaussian comes close to the density, and
the ratio of their constants, the mode's mass, follows from draws of both (Meng & Wong 1996). That
ratio is exact for Gaussian modes and right for others, however the space is cut into modes; only
its error grows. The weights of the path and of the bridges are averaged by their errors, and the
particles are resampled so that every mode has its share of them.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from parvi.cloud import Cloud
from parvi.geometry.bridge import Mass, bridge, fitted, hessian_axes
from parvi.geometry.peaks import NUM_POINTS, NUM_STEPS
from parvi.geometry.regions import Regions
from parvi.geometry.resampling import neighbours_in_order, systematic
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, required
from parvi.samplers.fly import paired_normal
from parvi.samplers.keys import cheap
from parvi.samplers.path import Passes
from parvi.status import Status
from parvi.stopping import Never

# If path and bridges differ by more than this many standard errors, the bridges are not believed.
_CREDIBLE = 4.0


class Balanced(NamedTuple):
    """The peaks of the modes, and their weights with standard errors; 0 where there is no mode.

    ``log_evidence``: the log of the modes' masses together; NaN if the bridges do not hold.
    """

    places: Float[Array, "k d"]
    weights: Float[Array, " k"]
    standard_errors: Float[Array, " k"]
    log_evidence: Float[Array, ""]


class _Sample(NamedTuple):
    """The particles of all passes, with weights, log densities and modes."""

    particles: Float[Array, "m d"]
    weights: Float[Array, " m"]
    log_densities: Float[Array, " m"]
    modes: Int[Array, " m"]


class Balance(AbstractSampler):
    """Weighs the modes that a tempered path has found, and resamples the particles, in one step.

    Parameters
    ----------
    num_climbs
        Number of particles that climb, to find the modes.
    most_modes
        The largest number of modes.
    num_draws
        Number of draws of every mode's Gaussian.
    share
        The stage ends as ``NOT_AT_REST`` if a standard error is larger than this share of the
        standard error of n independent draws.
    passes
        The particles of the path; the run passes them in.
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
        regions = Regions.around(cloud, self.num_climbs, self.most_modes)
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
        # Rows without a mode have NaN, and nothing is larger than NaN.
        exact = ~jnp.any(pending.standard_errors > self.share * of_draws)
        info = Info.of(
            cloud,
            jnp.full((), jnp.nan),
            status=jnp.where(exact, Status.CONVERGED, Status.NOT_AT_REST),
            gradients=asked + (NUM_STEPS + 1) * self.num_climbs + made * cloud.shape[0],
            extra={"log_evidence": pending.log_evidence},
        )
        return jnp.ones(cloud.shape[0], bool), pending, info

    def _weighed(self, key, log_density, sample: _Sample, regions: Regions) -> Mass:
        """The masses of all modes, one after another."""
        nowhere = Mass(jnp.full((), -jnp.inf), jnp.zeros(()))
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

    def _mass(self, key, log_density, sample, regions, number, peak) -> Mass:
        """A mode's mass: one half of its particles makes the Gaussian, the other half the bridge.

        Then the halves change places. A Gaussian that is fitted to the particles of its bridge
        would make the mass too small.
        """
        axes, own = hessian_axes(log_density, peak, regions.unit), sample.modes == number
        z = (sample.particles - peak) @ axes.inverse.T
        half = jnp.arange(len(own)) % 2 == 0
        masses = []
        for own_key, part in zip(jax.random.split(key), (half, ~half), strict=True):
            mean, sds = fitted(z, sample.weights * (own & part))
            normals = paired_normal(own_key, (self.num_draws, len(mean)), z.dtype)
            draws = peak + (mean + sds * normals) @ axes.factor.T
            constant = jnp.sum(jnp.log(sds)) + axes.log_volume

            def log_normal(standard, constant=constant):
                return -0.5 * jnp.sum(standard**2 + math.log(2 * math.pi), axis=1) - constant

            there = Cloud.at(log_density, draws).log_densities - log_normal(normals)
            there = jnp.where(regions.of(draws) == number, there, -jnp.inf)
            here = sample.log_densities - log_normal((z - mean) / sds)
            masses.append(bridge(here, sample.weights * (own & ~part), there))
        (one, first), (two, second) = masses
        return Mass((one + two) / 2, (first + second) / 4)


def _pooled(log_density, passes: Passes, regions: Regions) -> _Sample:
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
    """The weights of the modes from the path, and their standard errors from its passes."""
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


def _averaged(path, errors, masses: Mass):
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
