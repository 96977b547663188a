"""Finds whether particles lie in separated clumps.

No flow of the KL carries mass between separated modes, so clumps at rest have the weights of the
start. The search is in one dimension at a time, along the directions in which the whitened
particles are least Gaussian: those of the largest residual s + z, which is zero for a Gaussian.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# The numbers of directions, of angles between two of them, and of points at which the density
# along each direction is estimated.
_NUM_DIRECTIONS = 4
_NUM_ANGLES = 8
_NUM_POINTS = 96
# Number of points at which particles are counted, for each of these points.
_FINER = 4
# Maximum number of particles that are used.
_MOST = 8192


def separated(
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    depth: float = 3.0,
    mass: float = 0.05,
) -> Bool[Array, ""]:
    """Whether some direction has a valley ``depth`` times lower than the middles beside it.

    The middles are the medians of the particles below and above the valley. On one hill, however
    skewed or heavy in its tails, the density at one of the two is lower than anywhere between
    them.

    Parameters
    ----------
    particles, scores
        Whitened particles and their scores.
    depth
        The density at the lower middle over that in the valley.
    mass
        Share of the particles that must lie on each side of the valley.
    """
    if len(particles) > _MOST:
        some = np.arange(_MOST) * len(particles) // _MOST
        particles, scores = particles[some], scores[some]
    residual = scores + particles
    vectors = jnp.linalg.eigh(residual.T @ residual / len(particles))[1]
    directions = vectors[:, -_NUM_DIRECTIONS:]
    if directions.shape[1] >= 2:
        # Clumps may hide each other in one direction, so the angles between two are searched too.
        angles = np.arange(1, _NUM_ANGLES) * np.pi / _NUM_ANGLES
        turned = vectors[:, -2:] @ jnp.asarray([np.cos(angles), np.sin(angles)], vectors.dtype)
        directions = jnp.concatenate([directions, turned], axis=1)
    return jnp.any(_has_valley(directions.T @ particles.T, depth, mass))


def _has_valley(values, depth, mass):
    """Whether each row has a valley."""
    # Counts need no sort, which would gather particles that are spread over devices. All rows are
    # handled at once and without indices, because a vmap took three times as long to trace.
    num = values.shape[1]
    shares = np.linspace(0, 1, _FINER * (_NUM_POINTS - 1) + 1, dtype=values.dtype)
    least, most = (bound(values, axis=1, keepdims=True) for bound in (jnp.min, jnp.max))
    fine = least + (most - least) * shares
    counts = jnp.sum(values[:, None, :] < fine[:, :, None], axis=2).astype(values.dtype)
    points, below = fine[:, ::_FINER], counts[:, ::_FINER]
    quarters = jnp.broadcast_to(num * np.array([0.25, 0.75], values.dtype), (len(values), 2))
    wanted = jnp.concatenate([quarters, below / 2, (below + num) / 2], axis=1)
    quantiles = _interpolated(wanted, counts, fine)
    spread = jnp.minimum(jnp.std(values, axis=1), (quantiles[:, 1] - quantiles[:, 0]) / 1.34)
    # Half of Silverman's bandwidth, which is made for one hill and would fill the valley.
    width = jnp.maximum(0.53 * spread * num**-0.2, jnp.finfo(values.dtype).tiny)
    gaps = (points[:, :, None] - values[:, None, :]) / width[:, None, None]
    density = jnp.mean(jnp.exp(-0.5 * gaps**2), axis=2)
    heights = _interpolated(quantiles[:, 2:], points, density)
    lower = jnp.minimum(heights[:, :_NUM_POINTS], heights[:, _NUM_POINTS:])
    inside = (below >= mass * num) & (below <= (1 - mass) * num)
    return jnp.any(inside & (lower > depth * density), axis=1)


def _interpolated(at, knots, values):
    """``jnp.interp`` of every row, as a sum of what each interval to the left adds."""
    lengths = jnp.maximum(jnp.diff(knots), jnp.finfo(knots.dtype).tiny)
    passed = jnp.clip((at[:, :, None] - knots[:, None, :-1]) / lengths[:, None, :], 0, 1)
    return values[:, :1] + jnp.sum(passed * jnp.diff(values)[:, None, :], axis=2)
