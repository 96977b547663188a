"""An affine map plus a two-layer network, which is initially affine."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from parvi.fields.pfg.functions import AbstractFunctions, Parameters


class AffineNetwork(AbstractFunctions):
    """f(x) = b + A x + W s(V x + c), initially zero, with its exact divergence. O(n d (d + h)).

    The affine part alone is exact between Gaussians, so the network only has to learn what is not
    Gaussian. W = 0 at first, and div f = tr A + sum_k s'(a_k) (V W)_kk with a = V x + c. The rows
    of V are drawn with length about 1 and the thresholds c from N(0, 1), which suits standardised
    particles.

    Parameters
    ----------
    width
        h, the number of hidden units.
    activation
        s, applied elementwise.
    """

    width: int = 32
    activation: Callable = jnp.tanh

    def init(self, key, particles):
        dim, dtype = particles.shape[1], particles.dtype
        key_direction, key_offset = jax.random.split(key)
        weights = {
            "shift": jnp.zeros(dim, dtype),
            "slope": jnp.zeros((dim, dim), dtype),
            "outputs": jnp.zeros((dim, self.width), dtype),
            "directions": jax.random.normal(key_direction, (self.width, dim), dtype) * dim**-0.5,
            "offsets": jax.random.normal(key_offset, (self.width,), dtype),
        }
        return Parameters((), weights)

    def __call__(self, parameters, x):
        return self.values(parameters, x[None])[0]

    def values(self, parameters, particles):
        return self._with_slopes(parameters.trainable, particles)[0]

    def with_divergences(self, parameters, particles):
        w = parameters.trainable
        values, slopes = self._with_slopes(w, particles)
        per_unit = jnp.sum(w["directions"] * w["outputs"].T, axis=1)
        return values, jnp.trace(w["slope"]) + slopes @ per_unit

    def _with_slopes(self, w, particles):
        before = particles @ w["directions"].T + w["offsets"]
        hidden, slopes = jax.jvp(self.activation, (before,), (jnp.ones_like(before),))
        return w["shift"] + particles @ w["slope"].T + hidden @ w["outputs"].T, slopes
