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
# Number of draws of a look, and of first looks. If these are suspicious, so many more decide.
NUM_DRAWS, NUM_FIRST, NUM_MORE = 1024, 4, 32
# Particles whose neighbourhoods count.
_MOST_PARTICLES = 1024
# Points that are evaluated at once.
_AT_ONCE = 128
# Places beyond the particles that are kept.
NUM_PLACES = 8


class Beyond(NamedTuple):
    """What weighted draws say of the mass beyond the particles, from one look or several.

    Logs of sums over the draws: of all weights, of those beyond the particles, and of the squares
    of both. ``expected``: the share that exact draws would show, known from ``num`` distances.
    ``places``: some of the draws beyond, chosen by weight, and ``ranks``, by which they are chosen.
    """

    log_total: Float[Array, ""]
    log_far: Float[Array, ""]
    log_squares: Float[Array, ""]
    log_far_squares: Float[Array, ""]
    expected: Float[Array, ""]
    num: Float[Array, ""]
    places: Float[Array, "k d"]
    ranks: Float[Array, " k"]

    @classmethod
    def nothing(cls, dim: int, dtype: Any) -> "Beyond":
        """Before the first look."""
        none, zero = jnp.full((), -jnp.inf, dtype), jnp.zeros((), dtype)
        places = jnp.zeros((NUM_PLACES, dim), dtype)
        return cls(none, none, none, none, zero, zero + 1, places, jnp.full(NUM_PLACES, none))

    def and_also(self, other: "Beyond") -> "Beyond":
        """Both together, of the same particles."""
        ranks, rows = jax.lax.top_k(jnp.concatenate([self.ranks, other.ranks]), NUM_PLACES)
        return Beyond(
            jnp.logaddexp(self.log_total, other.log_total),
            jnp.logaddexp(self.log_far, other.log_far),
            jnp.logaddexp(self.log_squares, other.log_squares),
            jnp.logaddexp(self.log_far_squares, other.log_far_squares),
            other.expected,
            other.num,
            jnp.concatenate([self.places, other.places])[rows],
            ranks,
        )

    @property
    def share(self) -> Float[Array, ""]:
        """The mass beyond the particles as a share of all."""
        return jnp.exp(self.log_far - self.log_total)

    @property
    def error(self) -> Float[Array, ""]:
        """The standard error of the share, less what is expected."""
        far, every = (
            jnp.exp(logs - 2 * self.log_total) for logs in (self.log_far_squares, self.log_squares)
        )
        variance = (1 - 2 * self.share) * far + self.share**2 * every
        return jnp.sqrt(jnp.maximum(variance, 0.0) + self.expected / self.num)

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


def beyond(key: Key[Array, ""], log_density: LogDensity, particles: Float[Array, "n d"]) -> Beyond:
    """One look for mass beyond the particles, by 1024 log densities. O(1024 d min(n, 1024))."""
    key_draws, key_places = jax.random.split(key)
    num = len(particles)
    kept = min(num, _MOST_PARTICLES)
    particles = particles[jnp.arange(kept) * num // kept]
    frame = DenseFrame.of(particles)
    z = frame.enter(particles)
    # One half is near the other as draws of the target would be.
    first, second = z[::2], z[1::2]
    own = jnp.concatenate([_nearest(second, first), _nearest(first, second)])
    bound = jnp.quantile(own, _LEVEL)
    points, log_proposal = _proposed(key_draws, frame, NUM_DRAWS)
    # In blocks, as all points with all rows of data may not fit.
    heights = jax.lax.map(log_density, points, batch_size=_AT_ONCE)
    logs = heights.astype(points.dtype) - log_proposal
    logs = jnp.where(jnp.isfinite(logs), logs, -jnp.inf)
    far = jnp.where(_nearest(frame.enter(points), first) > bound, logs, -jnp.inf)
    # The largest of these ranks are draws by weight (Gumbel's trick).
    ranks, rows = jax.lax.top_k(
        far + jax.random.gumbel(key_places, far.shape, far.dtype), NUM_PLACES
    )
    total = jax.scipy.special.logsumexp
    return Beyond(
        total(logs),
        total(far),
        total(2 * logs),
        total(2 * far),
        jnp.mean(own > bound).astype(logs.dtype),
        jnp.asarray(len(own), logs.dtype),
        points[rows],
        ranks,
    )


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
