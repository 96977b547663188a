"""Fields that see clipped scores.

Scores are clipped at a multiple of their median norm, so that a few particles where the density is
wild do not dominate the fit. If all particles are far away, all are clipped alike.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.cloud import AbstractLens, View
from parvi.interface import AbstractField, AbstractVelocity

# This many halvings narrow the widest range of float32 to one part in a hundred thousand.
_HALVINGS = 24


class Clip(AbstractLens):
    """Shows scores with norms of at most ``limit``."""

    limit: Float[Array, ""]

    def scores(self, particles, scores):
        lengths = norms(scores)[:, None]
        return scores * jnp.minimum(1.0, self.limit / jnp.where(lengths > 0, lengths, 1.0))


class ClippedVelocity(AbstractVelocity):
    """A velocity that was fitted to clipped scores; its KL rate uses scores clipped alike."""

    clip: Clip
    inner: AbstractVelocity

    def __call__(self, x):
        return self.inner(x)

    def on(self, cloud):
        return self.inner.on(View(cloud, self.clip))

    def divergences(self, cloud):
        return self.inner.divergences(cloud)

    def kl_rate(self, cloud):
        return self.inner.kl_rate(View(cloud, self.clip))

    def precondition(self, vector):
        return self.inner.precondition(vector)


class Clipped(AbstractField):
    """Fits any field to clipped scores.

    Parameters
    ----------
    field
        The field. Use ``Clipped`` inside ``Whitened`` or ``Standardised``, where the norm of a
        score is about sqrt(d) at rest.
    factor
        Limit on the norms, as a multiple of the median norm, or of sqrt(d) if that is larger.
    """

    field: AbstractField
    factor: float = 5.0

    @property
    def asks_means_only(self):
        return self.field.asks_means_only

    def init(self, key, particles):
        return self.field.init(key, particles)

    def fit(self, key, cloud, memory):
        typical = median(norms(cloud.some().scores))
        clip = Clip(self.factor * jnp.maximum(typical, cloud.shape[1] ** 0.5))
        fit, memory = self.field.fit(key, View(cloud, clip), memory)
        return fit._replace(velocity=ClippedVelocity(clip, fit.velocity)), memory


def median(positive: Float[Array, " n"]) -> Float[Array, ""]:
    """The median by halving on a log scale; a sort would gather arrays from several devices."""
    logs = jnp.log(jnp.maximum(positive, jnp.finfo(positive.dtype).tiny))

    def halve(_, bounds):
        middle = (bounds[0] + bounds[1]) / 2
        above = 2 * jnp.sum(logs <= middle) >= len(logs)
        return jnp.where(above, bounds[0], middle), jnp.where(above, middle, bounds[1])

    _, median = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.min(logs), jnp.max(logs)))
    return jnp.exp(median)


def norms(scores: Float[Array, "n d"]) -> Float[Array, " n"]:
    """The norm of every row, even if the squares would overflow."""
    largest = jnp.max(jnp.abs(scores), axis=1)
    scaled = scores / jnp.where(largest > 0, largest, 1.0)[:, None]
    return largest * jnp.linalg.norm(scaled, axis=1)
