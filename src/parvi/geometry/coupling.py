"""Couplings: coordinates in which the means and scales of some directions follow a few coordinates.

In a funnel the scale of many coordinates depends on one coordinate, as the scale of the groups of
a centred hierarchy depends on log tau. No affine frame fits both ends of a funnel. A coupling
does:

    x = c + W (m(t) + exp(g(t)) v),    z = c + W v,    v = W^-1 (z - c)

where t are the *leaders*, coordinates that stay as they are, W mixes the others, and m and g are
functions of the leaders. It is the non-centred form of a hierarchy, found from particles and
scores (``geometry.straightening``) instead of written by hand, and the affine coupling of Dinh,
Sohl-Dickstein & Bengio (2017, equations 7 and 8) between mixed coordinates. Both directions cost
O(d^2), the volume O(d).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# The log scales bend this sharply, in standard deviations of a leader.
SHARPNESS = 4.0
# Bound on a log scale, far beyond what particles show, so that no flight overflows.
_LARGEST = 30.0


class Coupling(eqx.Module):
    """A change of coordinates from z, in which the followers have one mean and scale, to x.

    Its arrays have shapes that depend on the dimension alone, so that programs can be shared.

    Parameters
    ----------
    centre
        The point c.
    leaders, units
        The coordinates that are followed, and the reciprocals of their standard deviations;
        entries that only fill the arrays have 0.
    knots
        Where the log scales bend along each leader.
    mix, unmix
        W and its inverse; the leaders are not mixed.
    scales
        Weights of the log scales g: of 1, of t, and of the hinges at the knots.
    means
        Weights of the means m: of 1, t, t^2, and of exp(2 g) times t, t^2 and 1. Where a scale
        vanishes, as in the neck of a funnel, the last three vanish too, however far beyond the
        particles.
    """

    centre: Float[Array, " d"]
    leaders: Int[Array, " l"]
    units: Float[Array, " l"]
    knots: Float[Array, "k l"]
    mix: Float[Array, "d d"]
    unmix: Float[Array, "d d"]
    scales: Float[Array, "f d"]
    means: Float[Array, "m d"]

    def astype(self, dtype: Any) -> "Coupling":
        """The coupling as JAX arrays, with real numbers in this dtype."""

        def cast(leaf):
            return jnp.asarray(leaf, leaf.dtype if leaf.dtype == jnp.int32 else dtype)

        return jax.tree_util.tree_map(cast, self)

    def leave(self, z: Float[Array, " d"]) -> Float[Array, " d"]:
        """From these coordinates to x."""
        means, log_scales = self._followed(z)
        mixed = self.unmix @ (z - self.centre)
        return self.centre + self.mix @ (means + jnp.exp(log_scales) * mixed)

    def enter(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """From x to these coordinates."""
        means, log_scales = self._followed(x)
        mixed = self.unmix @ (x - self.centre)
        return self.centre + self.mix @ ((mixed - means) * jnp.exp(-log_scales))

    def log_volume(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """The log of |dx / dz|."""
        return jnp.sum(self._followed(z)[1])

    def entered(
        self, x: Float[Array, " d"], score: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """A particle and its score in these coordinates."""
        z = self.enter(x)
        _, pulled = jax.vjp(self.leave, z)
        return z, pulled(score)[0] + jax.grad(self.log_volume)(z)

    def left(
        self, z: Float[Array, " d"], score: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """A particle and its score in the coordinates x."""
        x = self.leave(z)
        _, pulled = jax.vjp(self.enter, x)
        return x, pulled(score - jax.grad(self.log_volume)(z))[0]

    def _followed(self, u) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """The means and log scales at these leaders; u may be x or z, as leaders are the same."""
        t = (u[self.leaders] - self.centre[self.leaders]) * self.units
        one = jnp.ones_like(t[:1])
        hinges = jax.nn.softplus(SHARPNESS * (t - self.knots)) / SHARPNESS
        log_scales = jnp.concatenate([one, t, hinges.reshape(-1)]) @ self.scales
        log_scales = jnp.clip(log_scales, -_LARGEST, _LARGEST)
        bends = jnp.concatenate([t, t**2, one])
        plain = jnp.concatenate([one, bends[:-1]]) @ self.means[: len(bends)]
        return plain + jnp.exp(2 * log_scales) * (bends @ self.means[len(bends) :]), log_scales
