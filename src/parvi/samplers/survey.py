"""Survey: whether the target has mass where no particle is; see ``geometry.beyond``.

The last test of a run in few dimensions, after the particles have come to rest. Transitions cannot
see what they do not reach: the second arm of a cross, or a mode in whose basin no scout began.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from parvi.geometry.beyond import NUM_DRAWS, NUM_FIRST, NUM_MORE, Beyond, beyond
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.samplers.keys import cheap
from parvi.samplers.weigh import Modes
from parvi.status import Status
from parvi.stopping import Never

# A log density takes about a third of the time of its gradient.
_PER_GRADIENT = 3


class Surveying(NamedTuple):
    """What was seen: in the first looks, then in those that follow if these were suspicious.

    ``log_masses``: those of the places seen, equal if there is mass beyond, else -inf.
    """

    seen: Beyond
    step: Int[Array, ""]
    log_masses: Float[Array, " k"]


class Survey(AbstractSampler):
    """Looks for mass beyond the particles, and leaves them where they are. O(n d) memory.

    The stage ends as ``NOT_AT_REST`` if there is some, else as ``CONVERGED``. It reports places
    there as modes, which a path has to cover. The history has ``beyond``, the share of the mass,
    or 0 if it may be chance.
    """

    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = NUM_FIRST + NUM_MORE

    @property
    def asks_means_only(self):
        return True

    @property
    def compares_densities(self):
        return True

    def report(self, memory):
        return Modes(memory.seen.places, memory.log_masses)

    def init(self, key, cloud):
        seen = Beyond.nothing(cloud.shape[1], cloud.dtype)
        return Surveying(seen, jnp.zeros((), jnp.int32), jnp.full_like(seen.ranks, -jnp.inf))

    def propose(self, key, cloud, memory):
        look = beyond(cheap(key), cloud.log_density, cloud.some().particles)
        return cloud, (look, memory)

    def conclude(self, cloud, pending, arrived):
        look, memory = pending
        step = memory.step + 1
        # The first looks only say whether others are worth it, and these decide without them.
        anew = (step == 1) | (step == NUM_FIRST + 1)
        seen = jax.lax.cond(anew, lambda: look, lambda: memory.seen.and_also(look))
        last = step == NUM_FIRST + NUM_MORE
        done = last | ((step == NUM_FIRST) & ~seen.suspicious)
        found = last & seen.sure
        status = jnp.where(found, Status.NOT_AT_REST, Status.CONVERGED)
        info = Info.of(
            cloud,
            jnp.full((), jnp.nan),
            status=jnp.where(done, status, Status.RUNNING),
            gradients=NUM_DRAWS // _PER_GRADIENT,
            extra={"beyond": jnp.where(done, jnp.where(found, seen.share, 0), jnp.nan)},
        )
        masses = jnp.where(found, jnp.zeros_like(seen.ranks), -jnp.inf)
        return jnp.zeros((), bool), Surveying(seen, step, masses), info
