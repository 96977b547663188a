"""Beyond: whether the target has mass where no particle is, by weighted draws from all around.

Transitions that begin at the particles take long to leave them along a narrow way, and lone
descents find a mode only if they begin in its basin. Draws from broad Gaussians around the
particles need neither. With weights p / q they show how much of the target's mass lies farther from
its nearest particle than particles lie from one another; of exact draws, about a hundredth does.
The volume between broad and narrow grows with the dimension, so this tells something in few
dimensions only.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from parvi.cloud import LogDensity
from parvi.geometry.frame import DenseFrame

# Dimensions up to which broad draws meet narrow modes, and particles a dimension that are needed.
MOST_DIM, PER_DIMENSION = 8, 20
# The share of the particles that lie farther from all others than what counts as near.
_LEVEL = 0.99
# Mass beyond the particles that counts, and the standard errors by which it is no chance. Of 138
# sets of exact draws of 23 shapes, one was at 3.2.
LEAST, SURE = 0.03, 4.0
# Number of draws of a first look, and of a second one, which decides if the first is suspicious.
NUM_DRAWS, MORE_DRAWS = 4096, 8 * 4096
# Particles whose neighbourhoods count.
_MOST_PARTICLES = 2048
# Points that are evaluated at once.
_AT_ONCE = 128


class Beyond(NamedTuple):
    """The mass beyond the particles as a share of all, with its standard error.

    ``expected`` is what exact draws would show. ``points`` are weighted draws, ``log_weights`` the
    logs of their weights if they lie beyond the particles, else -inf.
    """

    share: Float[Array, ""]
    error: Float[Array, ""]
    expected: Float[Array, ""]
    points: Float[Array, "m d"]
    log_weights: Float[Array, " m"]

    @property
    def suspicious(self) -> Bool[Array, ""]:
        """Whether the share is large enough to count, if it is no chance."""
        return self.share - self.expected > LEAST

    @property
    def sure(self) -> Bool[Array, ""]:
        """Whether the share counts and is no chance."""
        return self.suspicious & (self.share - self.expected > SURE * self.error)


def is_told(shape: tuple[int, int]) -> bool:
    """Whether n particles in d dimensions are enough, and few enough dimensions, to tell."""
    num, dim = shape
    return dim <= MOST_DIM and num >= PER_DIMENSION * dim


def beyond(
    key: Key[Array, ""], log_density: LogDensity, particles: Float[Array, "n d"], num_draws: int
) -> Beyond:
    """Look for mass beyond the particles, by ``num_draws`` log densities. O(num_draws n d)."""
    num = len(particles)
    kept = min(num, _MOST_PARTICLES)
    particles = particles[jnp.arange(kept) * num // kept]
    frame = DenseFrame.of(particles)
    z = frame.enter(particles)
    # One half is near the other as draws of the target would be.
    first, second = z[::2], z[1::2]
    own = jnp.concatenate([_nearest(second, first), _nearest(first, second)])
    far = jnp.quantile(own, _LEVEL)
    points, log_proposal = _proposed(key, frame, num_draws)
    # In blocks, as all points with all rows of data may not fit.
    heights = jax.lax.map(log_density, points, batch_size=_AT_ONCE)
    log_weights = heights.astype(points.dtype) - log_proposal
    log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf)
    weights = jax.nn.softmax(log_weights)
    is_far = _nearest(frame.enter(points), first) > far
    share, expected = jnp.sum(weights * is_far), jnp.mean(own > far)
    by_chance = jnp.sum(weights**2 * (is_far - share) ** 2) + expected / len(own)
    log_weights = jnp.where(is_far, log_weights, -jnp.inf)
    return Beyond(share, jnp.sqrt(by_chance), expected.astype(share.dtype), points, log_weights)


def _proposed(key, frame: DenseFrame, num: int) -> tuple[Any, Any]:
    """Draws of a mixture of Gaussians around the particles, and its log density there.

    Two have the particles' own axes, one is as wide as they are along every coordinate, and two are
    as wide everywhere as they are along the widest.
    """
    dim = frame.mean.shape[0]
    widest = jnp.max(frame.sds) * jnp.ones(dim, frame.mean.dtype)
    dense = [1.5, 4.0]
    diagonal = [1.5 * frame.sds, 1.5 * widest, 5.0 * widest]
    share = -(-num // (len(dense) + len(diagonal)))
    normals = jax.random.normal(key, (len(dense) + len(diagonal), share, dim), frame.mean.dtype)
    parts = [frame.stretch(s * x) for s, x in zip(dense, normals, strict=False)]
    parts += [s * x for s, x in zip(diagonal, normals[len(dense) :], strict=True)]
    offsets = jnp.concatenate(parts)
    inner = jnp.sum(frame.shrink(offsets) ** 2, axis=1)
    logs = [-0.5 * inner / s**2 - dim * math.log(s) - frame.log_volume for s in dense]
    logs += [-0.5 * jnp.sum((offsets / s) ** 2, axis=1) - jnp.sum(jnp.log(s)) for s in diagonal]
    total = jax.scipy.special.logsumexp(jnp.stack(logs), axis=0) - math.log(len(logs))
    return frame.mean + offsets, total - 0.5 * dim * math.log(2 * math.pi)


def _nearest(points: Float[Array, "m d"], others: Float[Array, "k d"]) -> Float[Array, " m"]:
    """The distance of each point to the nearest of the others."""

    def one(point):
        return jnp.sqrt(jnp.min(jnp.sum((others - point) ** 2, axis=1)))

    return jax.lax.map(one, points, batch_size=_AT_ONCE)
