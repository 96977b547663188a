"""The density of a mixture of maps of the heavy-tailed base, sought only where it can count.

A draw's own base point is known. Base points under other maps are found by Newton's method, which
takes long and rarely succeeds where a map hardly leads. A Gaussian with the mean and the covariance
of a map's images tells roughly how much density the map has at a point. The map is left out there
if that is a factor of e^-10 below the density that is already known.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from parvi.evaluation import quickly
from parvi.geometry.frame import DenseFrame
from parvi.kept import carefully
from parvi.results.transport.importance import heavy_normal, log_heavy
from parvi.results.transport.layers import AbstractLayer

# Points of one call, and points that are inverted at once.
AT_ONCE, _BLOCK = 1024, 64
# By how much the log density of a map is less than the known one if it is left out.
_NOTHING = 10.0


def pushed(
    maps: tuple[AbstractLayer, ...], log_weights, z: Float[Array, "n d"], uniforms
) -> tuple[Float[Array, "n d"], Int[Array, " n"], Float[Array, "m n d"]]:
    """The images of base points, each under one map, the maps' numbers, and all images."""
    shares = jnp.cumsum(jax.nn.softmax(log_weights))
    number = jnp.minimum(jnp.searchsorted(shares, uniforms), len(maps) - 1)
    images = jnp.stack([layer(z) for layer in maps])
    return jnp.take_along_axis(images, number[None, :, None], axis=0)[0], number, images


def begun(
    maps: tuple[AbstractLayer, ...], log_weights, z: Float[Array, "n d"], uniforms
) -> tuple[Float[Array, "n d"], Float[Array, " n"], Bool[Array, "m n"]]:
    """Images of base points, the log density of their own maps there, and what else may count."""
    x, number, images = pushed(maps, log_weights, z, uniforms)
    found = jnp.full(len(z), jnp.nan, z.dtype)
    for k, layer in enumerate(maps):
        log_det = _only(number == k, layer.log_det, z)
        found = jnp.where(number == k, log_weights[k] + log_heavy(z) - log_det, found)
    others = number != jnp.arange(len(maps))[:, None]
    return x, found, others & (_rough(log_weights, images, x) > found - _NOTHING)


def sought(
    maps: tuple[AbstractLayer, ...],
    log_weights,
    points: Float[Array, "n d"],
    wanted: Bool[Array, "m n"],
) -> Float[Array, " n"]:
    """The log of the sum of those maps' densities that are wanted; -inf where there is none."""

    def density(weight, layer):
        def at(x):
            z = layer.inverse(x)
            found = weight + log_heavy(z) - layer.log_det(z)
            return jnp.where(jnp.isnan(found), -jnp.inf, found)

        return at

    each = zip(log_weights, maps, wanted, strict=True)
    found = [_only(own, density(weight, layer), points) for weight, layer, own in each]
    return jax.scipy.special.logsumexp(jnp.stack(found), axis=0)


sought_quickly, sought_carefully = quickly(sought), carefully(sought)


def log_density(
    maps: tuple[AbstractLayer, ...], log_weights, points: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, " n"]:
    """The log density at any points: first of the map that seems to have most, then of others."""
    found = []
    for start in range(0, len(points), AT_ONCE):
        own = points[start : start + AT_ONCE]
        # Every call has the same number of points, so that one program serves all.
        filled = np.resize(own, (AT_ONCE, own.shape[1]))
        rough = np.array(_nearby(maps, log_weights, filled))
        rough[:, len(own) :] = -np.inf
        first = (rough == rough.max(axis=0)) & np.isfinite(rough)
        most = np.asarray(sought_quickly(maps, log_weights, filled, first))
        others = ~first & (rough > most - _NOTHING)
        rest = sought_quickly(maps, log_weights, filled, others)
        found.append(np.logaddexp(most, rest)[: len(own)])
    return np.concatenate(found)


@quickly
def _nearby(maps, log_weights, points):
    z = heavy_normal(jax.random.key(0), AT_ONCE, points.shape[1], points.dtype)
    return _rough(log_weights, jnp.stack([layer(z) for layer in maps]), points)


def _rough(log_weights, images: Float[Array, "m b d"], points) -> Float[Array, "m n"]:
    """Roughly the log densities of the maps at points, by Gaussians of their images."""
    found = []
    for weight, own in zip(log_weights, images, strict=True):
        frame = DenseFrame.of(own)
        found.append(weight + log_heavy(frame.enter(points)) - frame.log_volume)
    return jnp.stack(found)


def _only(
    wanted: Bool[Array, " n"], function: Callable, points: Float[Array, "n d"]
) -> Float[Array, " n"]:
    """A function of those points that are wanted, block by block, and -inf elsewhere."""
    num, size = len(points), min(_BLOCK, len(points))
    # The last block is filled up with a wanted point, as others may take long.
    rows = jnp.nonzero(wanted, size=num, fill_value=jnp.argmax(wanted))[0]

    def one(i, found):
        block = jax.lax.dynamic_slice_in_dim(rows, i * size, size)
        return found.at[block].set(function(points[block]))

    nothing = jnp.full(num, -jnp.inf, points.dtype)
    return jax.lax.fori_loop(0, -(-jnp.sum(wanted) // size), one, nothing)
