"""One step of any sampler: it proposes, the log density is asked, it concludes.

What was rejected or is not finite is put back here, and nowhere else.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from parvi.cloud import Cloud
from parvi.interface import AbstractSampler, Info
from parvi.status import Status


class Stepped(NamedTuple):
    """The cloud after a step, what the sampler remembers, what is known of the step."""

    cloud: Cloud
    memory: PyTree[Array]
    info: Info
    moved: Bool[Array, ""]


def step(
    key: Key[Array, ""], cloud: Cloud, memory: PyTree[Array], sampler: AbstractSampler
) -> Stepped:
    """Move the ensemble once."""
    points, pending = sampler.propose(key, cloud, memory)
    evaluated = not isinstance(points, Cloud)
    return concluded(cloud, pending, arrived(cloud, points), sampler, evaluated)


def arrived(cloud: Cloud, points: Float[Array, "n d"] | Cloud) -> Cloud:
    """What is found at the points, unless the sampler has found it."""
    if isinstance(points, Cloud):
        return points
    if cloud.is_held:
        return Cloud.at(cloud.log_density, points)
    return Cloud.unread(cloud.log_density, points)


def concluded(
    cloud: Cloud, pending: Any, there: Cloud, sampler: AbstractSampler, evaluated: bool = True
) -> Stepped:
    """The end of a step, with what was found at the points."""
    accepted, memory, info = sampler.conclude(cloud, pending, there)
    # A sampler that gives back a cloud has asked by itself, and counts by itself.
    asked = cloud.shape[0] if evaluated else 0
    accepted = jnp.asarray(accepted)
    sound = _sound(there)
    taken = accepted & (jnp.all(sound) if accepted.ndim == 0 else sound)
    # A sampler that took a move of all to where the density is not finite did not look.
    careless = (accepted & ~taken) if accepted.ndim == 0 else jnp.zeros((), bool)
    status = jnp.where(careless, Status.NONFINITE, info.status).astype(jnp.int32)

    def chosen(new, old):
        return jnp.where(taken.reshape(taken.shape + (1,) * (new.ndim - taken.ndim)), new, old)

    place = jax.tree_util.tree_map(chosen, there.place, cloud.place)
    after = Cloud.of(place, cloud.log_density)
    info = info._replace(status=status, gradients=info.gradients + asked)
    return Stepped(after, memory, info, jnp.any(taken))


def _sound(there: Cloud) -> Bool[Array, "..."]:
    """Which points have a finite log density and score, one flag for all where they are not held.

    Then a sampler sees by its means, which are NaN, what is not finite.
    """
    if not there.is_held:
        # In this form nothing of the particles' size is made; NaN and infinity come through.
        return jnp.isfinite(jnp.maximum(jnp.max(there.particles), -jnp.min(there.particles)))
    rows = (there.particles, there.scores, there.log_densities[:, None])
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(row), axis=1) for row in rows]), axis=0)
