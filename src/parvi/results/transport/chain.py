"""Chains of layers, which are layers too, and the points that maps are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float, Key

from parvi.results.transport.layers import AbstractLayer, Bent


class Chain(AbstractLayer):
    """Layers one after another."""

    layers: tuple[AbstractLayer, ...]

    def moved(self, points):
        log_det = jnp.zeros(points.shape[:1], points.dtype)
        for layer in self.layers:
            points, own = layer.moved(points)
            log_det = log_det + own
        return points, log_det

    def __call__(self, points):
        for layer in self.layers:
            points = layer(points)
        return points

    def inverse(self, images):
        for layer in reversed(self.layers):
            images = layer.inverse(images)
        return images


class Stack(AbstractLayer):
    """Bent layers of one shape one after another, in one loop."""

    bent: Bent

    def moved(self, points):
        def one(state, layer):
            points, log_det = state
            points, own = layer.moved(points)
            return (points, log_det + own), None

        start = points, jnp.zeros(points.shape[:1], points.dtype)
        return jax.lax.scan(one, start, self.bent)[0]

    def __call__(self, points):
        return jax.lax.scan(lambda x, layer: (layer(x), None), points, self.bent)[0]

    def inverse(self, images):
        def one(x, layer):
            # Points of a caller who has no float64 are float32, though the map's numbers are not.
            return layer.inverse(x).astype(x.dtype), None

        return jax.lax.scan(one, images, self.bent, reverse=True)[0]


def sobol_normal(
    key: Key[Array, ""], num: int, dim: int, number: int = 0
) -> Float[np.ndarray, "n d"]:
    """Scrambled-Sobol points of N(0, I), a different set for every number."""
    # Importing it takes a second, which only maps need.
    from scipy.stats import qmc

    seed = np.asarray(jax.random.key_data(key)).astype(np.uint32)
    power = max(0, int(np.ceil(np.log2(num))))
    sobol = qmc.Sobol(dim, rng=np.random.default_rng([*seed.tolist(), number]))
    # The points of a net are not independent, but any of them may be left out.
    points = sobol.random_base2(power)[:num]
    return scipy.special.ndtri(np.clip(points, 2.0**-40, 1 - 2.0**-40))
