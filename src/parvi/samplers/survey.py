"""Survey: whether the target has mass where no particle is; see ``geometry.beyond``.

The last test of a run in few dimensions, after the particles have come to rest. Transitions cannot
see what they do not reach: the second arm of a cross, or a mode in whose basin no scout began.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.geometry.beyond import MORE_DRAWS, NUM_DRAWS, beyond
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.samplers.keys import cheap
from parvi.samplers.weigh import Modes
from parvi.status import Status
from parvi.stopping import Never

_BOTH = NUM_DRAWS + MORE_DRAWS
# A log density takes about a third of the time of its gradient.
_PER_GRADIENT = 3
# Places beyond the particles that a path has to cover.
_NUM_PLACES = 8


class Survey(AbstractSampler):
    """Looks for mass beyond the particles, and leaves them where they are, in one step.

    The stage ends as ``NOT_AT_REST`` if there is some, else as ``CONVERGED``. It reports places
    there as modes, which a path has to cover. The history has ``beyond``, the share of the mass,
    or 0 if it may be chance.
    """

    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 1

    @property
    def asks_means_only(self):
        return True

    @property
    def compares_densities(self):
        return True

    def report(self, memory):
        return memory

    def init(self, key, cloud):
        return _counted(jnp.zeros((_NUM_PLACES, cloud.shape[1]), cloud.dtype), False)

    def propose(self, key, cloud, memory):
        first, second = jax.random.split(cheap(key))
        particles = cloud.some().particles
        look = _looked(first, cloud.log_density, particles)
        look, made = jax.lax.cond(
            look.found,
            lambda: (_looked(second, cloud.log_density, particles, again=True), _BOTH),
            lambda: (look, NUM_DRAWS),
        )
        return cloud, (look, made)

    def conclude(self, cloud, pending, arrived):
        look, made = pending
        info = Info.of(
            cloud,
            jnp.full((), jnp.nan),
            status=jnp.where(look.found, Status.NOT_AT_REST, Status.CONVERGED),
            gradients=made // _PER_GRADIENT,
            extra={"beyond": jnp.where(look.found, look.share, 0)},
        )
        return jnp.zeros((), bool), _counted(look.places, look.found), info


class _Look(NamedTuple):
    share: Float[Array, ""]
    places: Float[Array, "k d"]
    found: Any


def _looked(key, log_density, particles, again: bool = False) -> _Look:
    """The mass beyond, and places there; a first look finds what is worth a second one."""
    key_points, key_places = jax.random.split(key)
    seen = beyond(key_points, log_density, particles, MORE_DRAWS if again else NUM_DRAWS)
    logits = jnp.maximum(seen.log_weights, jnp.finfo(seen.points.dtype).min)
    rows = jax.random.categorical(key_places, logits, shape=(_NUM_PLACES,))
    return _Look(seen.share, seen.points[rows], seen.sure if again else seen.suspicious)


def _counted(places, found) -> Modes:
    """Places of equal mass, which count if something was found."""
    masses = jnp.where(found, 0.0, -jnp.inf).astype(places.dtype)
    return Modes(places, jnp.full(len(places), masses))
