"""Whether particles lie in separated clumps.

Between separated modes no flow of the KL carries mass: clumps at rest have the weights of the
start. They are looked for in one dimension at a time, along the directions in which the whitened
particles are least Gaussian: where the residual s + z, zero for a Gaussian, is largest.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# Directions that are looked at, and points at which the density along each is estimated.
_NUM_DIRECTIONS = 4
_NUM_ANGLES = 8
_NUM_POINTS = 96
# Points at which particles are counted, for each of those.
_FINER = 4
# Particles that are looked at.
_MOST = 8192


def separated(
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    depth: float = 3.0,
    mass: float = 0.05,
) -> Bool[Array, ""]:
    """Whether in some direction a valley is ``depth`` times lower than the middles beside it.

    The middles are the medians of the particles below and above the valley: for one hill, however
    skewed or heavy in its tails, one of the two is lower than any point between.

    Parameters
    ----------
    particles, scores
        Whitened.
    depth
        The density at the lower middle over that in the valley.
    mass
        Share of the particles that must lie on either side of it.
    """
    if len(particles) > _MOST:
        some = np.arange(_MOST) * len(particles) // _MOST
        particles, scores = particles[some], scores[some]
    residual = scores + particles
    vectors = jnp.linalg.eigh(residual.T @ residual / len(particles))[1]
    directions = vectors[:, -_NUM_DIRECTIONS:]
    if directions.shape[1] >= 2:
        # Several clumps seen from an angle may hide each other: turn between the first two.
        angles = np.arange(1, _NUM_ANGLES) * np.pi / _NUM_ANGLES
        turned = vectors[:, -2:] @ jnp.asarray([np.cos(angles), np.sin(angles)], vectors.dtype)
        directions = jnp.concatenate([directions, turned], axis=1)
    return jnp.any(jax.vmap(lambda u: _valley(particles @ u, depth, mass))(directions.T))


def _valley(values, depth, mass):
    # By counts, without a sort: particles that are spread over devices need not be gathered.
    num = len(values)
    fine = jnp.linspace(jnp.min(values), jnp.max(values), _FINER * (_NUM_POINTS - 1) + 1)
    counts = jnp.sum(values[:, None] < fine, axis=0)

    def quantile(count):
        return jnp.interp(count, counts.astype(values.dtype), fine)

    spread = (quantile(0.75 * num) - quantile(0.25 * num)) / 1.34
    spread = jnp.minimum(jnp.std(values), spread)
    # Half of Silverman's bandwidth, which is made for one hill and would fill the valley.
    width = jnp.maximum(0.53 * spread * num**-0.2, jnp.finfo(values.dtype).tiny)
    points, below = fine[::_FINER], counts[::_FINER]
    density = jnp.mean(jnp.exp(-0.5 * ((points[:, None] - values) / width) ** 2), axis=1)
    middles = quantile(below / 2), quantile((below + num) / 2)
    heights = [jnp.interp(middle, points, density) for middle in middles]
    inside = (below >= mass * num) & (below <= (1 - mass) * num)
    return jnp.any(inside & (jnp.minimum(*heights) > depth * density))
