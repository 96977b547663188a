"""One step of any sampler: it proposes, the log density is evaluated, it concludes.

Points that were rejected or are not finite are put back here, and nowhere else.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from parvi.cloud import Cloud, chosen
from parvi.interface import AbstractSampler, Info
from parvi.status import Status


class Stepped(NamedTuple):
    """The cloud after a step, the sampler's memory, the info, and whether any particle moved."""

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
    """The cloud at the points, unless the sampler has already evaluated it."""
    if isinstance(points, Cloud):
        return points
    if cloud.is_held:
        return Cloud.at(cloud.log_density, points)
    return Cloud.unread(cloud.log_density, points)


def concluded(
    cloud: Cloud, pending: Any, there: Cloud, sampler: AbstractSampler, evaluated: bool = True
) -> Stepped:
    """The end of a step, given the cloud at the points."""
    accepted, memory, info = sampler.conclude(cloud, pending, there)
    # A sampler that returns a cloud has itself evaluated it and counted its gradients.
    asked = cloud.shape[0] if evaluated else 0
    accepted = jnp.asarray(accepted)
    sound = _sound(there)
    taken = accepted & (jnp.all(sound) if accepted.ndim == 0 else sound)
    # A sampler that accepts a move of all particles must check that the points are finite.
    careless = (accepted & ~taken) if accepted.ndim == 0 else jnp.zeros((), bool)
    status = jnp.where(careless, Status.NONFINITE, info.status).astype(jnp.int32)

    after = Cloud.of(chosen(taken, there.place, cloud.place), cloud.log_density)
    info = info._replace(status=status, gradients=info.gradients + asked)
    return Stepped(after, memory, info, jnp.any(taken))


def _sound(there: Cloud) -> Bool[Array, "..."]:
    """Which points have a finite log density and score; one flag for all if they are not held.

    The sampler then notices points that are not finite by its means, which are NaN.
    """
    if not there.is_held:
        # This form allocates no array of the particles' size, and passes NaN and infinity on.
        return jnp.isfinite(jnp.maximum(jnp.max(there.particles), -jnp.min(there.particles)))
    rows = (there.particles, there.scores, there.log_densities[:, None])
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(row), axis=1) for row in rows]), axis=0)
