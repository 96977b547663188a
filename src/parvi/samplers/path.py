"""The state of a tempered path, the density at a temperature, and what the passes have found."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.cloud import Cloud, Place
from parvi.geometry.broad import Base, broad
from parvi.geometry.frame import AbstractGaussianFrame
from parvi.geometry.resampling import next_beta
from parvi.samplers.flight import Flight
from parvi.samplers.weigh import Modes

# Beside known modes, a part of the base limits the steps of the temperature as long as this share
# of all particles belongs to it.
_LEAST_PART = 0.05


class Tempering(NamedTuple):
    """The place on the path.

    ``base``: where the path begins. The axes of its broad Gaussian are also those of the clumps, so
    every temperature has them. ``frame``: the frame of the flights. ``next``: what the next step
    proposes. ``num_made``: the transitions made at this temperature. ``lost``: draws of the
    base without a finite density, whose weight is 0. ``passes``: how many are over. ``ends``:
    where their particles were, with their evidences.
    """

    base: Base
    frame: AbstractGaussianFrame
    flight: Flight
    next: Int[Array, ""]
    num_made: Int[Array, ""]
    beta: Float[Array, ""]
    log_evidence: Float[Array, ""]
    lost: Bool[Array, " n"]
    passes: Int[Array, ""]
    ends: Float[Array, "p n d"]
    log_evidences: Float[Array, " p"]
    num_widened: Int[Array, ""]


class Passes(NamedTuple):
    """Where the particles of every pass were at its end, with the passes' log evidences.

    The log evidence of a pass that was not made is -inf.
    """

    ends: Float[Array, "p n d"]
    log_evidences: Float[Array, " p"]


def none_yet(num: int, dtype: Any) -> Float[Array, " p"]:
    """The log evidences of passes that were not made: their weights are 0."""
    return jnp.full(num, jnp.finfo(dtype).min, dtype)


def base_of(cloud: Cloud, modes: Modes | None, breadth: float) -> Base:
    """Where the path begins: a broad Gaussian that covers the modes, and what is known of them."""
    if modes is None:
        return Base.alone(broad(cloud.particles, cloud.scores, breadth))
    around = broad(_among(cloud.particles, modes), cloud.scores, breadth)
    if modes.frames is None:
        return Base.alone(around)
    return Base.beside(around, modes.frames, jnp.append(modes.log_masses, 0.0))


def beta_after(memory: Tempering, gains, particles, share: float) -> Float[Array, ""]:
    """The next temperature, at which the weights are worth this share of the particles.

    Beside known modes that holds for every part of the base. Particles of the broad Gaussian may
    find other modes, and weights within a mode that are worth little make its mass too small.
    """
    beta = next_beta(gains, memory.beta, share)
    if memory.base.modes is None:
        return beta
    owned = memory.base.owned(particles)
    of_parts = jax.lax.map(lambda counts: next_beta(gains, memory.beta, share, counts), owned)
    limits = jnp.where(jnp.mean(owned, axis=1) > _LEAST_PART, of_parts, 1.0)
    return jnp.minimum(beta, jnp.min(limits))


def tempered(memory: Tempering, place: Place) -> Place:
    """The place with the scores and log densities of p^b N^(1 - b)."""
    base, beta = memory.base, memory.beta
    towards, heights = base.score(place.particles), base.log_density(place.particles)
    log_densities = beta * place.log_densities + (1 - beta) * heights
    return Place(place.particles, beta * place.scores + (1 - beta) * towards, log_densities)


def error_of_mean(memory: Tempering) -> Float[Array, ""]:
    """The largest standard error of the pooled mean, in standard deviations, from the passes.

    Masses of modes that differ from pass to pass show in the widest directions.
    """
    shares = jax.nn.softmax(memory.log_evidences)
    means = jnp.mean(memory.ends, axis=1)
    middle = shares @ means
    own = memory.ends - middle
    covariance = jnp.einsum("p,pnd,pne->de", shares, own, own) / own.shape[1]
    values, vectors = jnp.linalg.eigh(covariance)
    along = (means - middle) @ vectors[:, -3:]
    num = memory.passes.astype(means.dtype)
    squares = jnp.sum(shares[:, None] ** 2 * along**2, axis=0) * num / jnp.maximum(num - 1, 1)
    return jnp.sqrt(jnp.max(squares / jnp.maximum(values[-3:], jnp.finfo(means.dtype).tiny)))


def _among(particles, modes: Modes):
    """The particles, with equal parts of them moved to the other modes."""
    counts = jnp.isfinite(modes.log_masses)
    order = jnp.argsort(~counts)
    part = jnp.arange(len(particles)) % (jnp.sum(counts) + 1)
    places = jnp.concatenate([jnp.mean(particles, axis=0)[None], modes.places[order]])
    return particles + places[part] - places[0]
