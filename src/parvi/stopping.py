"""Stopping rules, which decide when a run is done."""

import equinox as eqx
import jax.numpy as jnp

from parvi.interface import AbstractSampler, AbstractStoppingRule


class KLRate(AbstractStoppingRule):
    """Stops when |dKL/dt| is a small share of what sampling noise would make it.

    The mean of n independent draws is wrong by a KL of d / (2n). In a metric near the curvature
    the KL that is left within the function class is about half the rate, so a share of 0.01 leaves
    the particles' mean about ten times closer than that of n independent draws.

    Parameters
    ----------
    share
        The rate must be at most ``share * d / n``, or what the dtype can resolve if that is larger.
    patience
        Number of steps in a row that must satisfy this bound.
    endurance
        Number of steps with a rate below that of independent draws, after which the rule stops as
        well; None for never. The best of d (d + 3) / 2 numbers of an affine map, fitted to n
        independent draws, finds a rate of d (d + 3) / (2n) in their noise alone. With few
        particles per dimension, the steps below that level fit noise, and there may be thousands
        of them.
    """

    share: float = 0.01
    patience: int = 5
    endurance: int | None = None

    def init(self, particles):
        num, dim = particles.shape
        # The rate is a difference of two means of size d, each with the rounding of its dtype.
        resolution = 8 * jnp.finfo(particles.dtype).eps
        bound = dim * jnp.maximum(self.share / num, resolution)
        return bound.astype(particles.dtype), jnp.zeros((), jnp.int32), self._noise(num, dim)

    def update(self, info, accepted, memory):
        bound, quiet, noise = memory
        rate = jnp.abs(info.kl_rate)
        quiet = jnp.where(accepted & (rate <= bound), quiet + 1, 0)
        settled = quiet >= self.patience
        if noise is not None:
            level, below = noise
            noise = level, below + (rate <= level)
            settled |= noise[1] >= self.endurance
        return settled, (bound, quiet, noise)

    def _noise(self, num, dim):
        """The rate of independent draws, and the number of steps below it; None if not asked."""
        if self.endurance is None:
            return None
        return jnp.asarray(dim * (dim + 3) / (2 * num)), jnp.zeros((), jnp.int32)


class Never(AbstractStoppingRule):
    """Runs to the last step, or until the sampler itself says that it is done."""

    def init(self, particles):
        return ()

    def update(self, info, accepted, memory):
        return jnp.zeros((), bool), memory


def exactly(sampler: AbstractSampler, num_steps: int) -> AbstractSampler:
    """The same sampler for exactly this many steps, without its stopping rule."""
    changed = eqx.tree_at(
        lambda s: s.stopping_rule,
        sampler,
        Never(),
        is_leaf=lambda node: isinstance(node, AbstractStoppingRule),
    )
    return eqx.tree_at(lambda s: s.max_steps, changed, num_steps)
