"""NUTS: a few long chains whose thinned draws are the particles.

The no-U-turn transition is blackjax's (Hoffman & Gelman 2014; Betancourt 2017), with Stan's
warm-up: dual averaging for the step size, and doubling windows for the diagonal mass matrix. All
chains make their transitions side by side and share one step size and one mass matrix, learnt from
all of them. One step of the sampler is one transition of every chain.

The particles are an evenly spaced net over the draws, which grows with the run: it starts dense,
and when it is full every second draw gives its row to a newer one. Whenever the run ends, the
particles are draws from the whole of it.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from parvi.cloud import Cloud, Place
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.status import Status
from parvi.stopping import Never

# Above this the chains have not mixed; it is the usual limit for a few hundred draws.
_MOST_R_HAT = 1.1


class Net(NamedTuple):
    """The draws in the rows: ``held[k]`` is the number of the draw in slot k, or -1 for none.

    ``clock`` counts towards the next draw that gets a number; ``next`` is that number.
    """

    held: Int[Array, " k"]
    clock: Int[Array, ""]
    next: Int[Array, ""]


class Moments(NamedTuple):
    """The number, means and summed squares of each chain's draws, for r_hat."""

    num: Int[Array, ""]
    mean: Float[Array, "c d"]
    square: Float[Array, "c d"]


class NUTSMemory(NamedTuple):
    """The transitions done, the chains, the warm-up's estimates, and statistics of the draws."""

    step: Int[Array, ""]
    chains: PyTree[Array]
    dual_averaging: PyTree[Array]
    mass_matrix: PyTree[Array]
    net: Net
    moments: Moments
    divergences: Int[Array, ""]


class NUTS(AbstractSampler):
    """NUTS with window adaptation, done after ``num_warmup`` + ``num_draws`` transitions.

    A transition takes up to 2^max_doublings gradients per chain.

    The chains start at the first particles. During the warm-up the rows hold the chains' latest
    states, so a run that ends within it gives no sample. After it, ``history["drawn"]`` is the
    share of rows that hold draws, ``r_hat`` is the largest over the coordinates (Gelman & Rubin
    1992, of all draws so far; NaN for one chain) and ``divergences`` counts divergent transitions.

    The log density must be the full one: with mini-batches there is no invariant density.

    Parameters
    ----------
    num_warmup
        Number of warm-up transitions. With fewer than 150, Stan's last window, of 50, is too short
        to settle the step size.
    num_draws
        Number of transitions of each chain after the warm-up. A shorter run has fewer draws.
    num_chains
        Number of chains; at most as many as there are particles are used.
    target_acceptance
        Acceptance rate that the dual averaging aims for. Raise it towards 1 if there are
        divergences.
    max_doublings
        The largest number of doublings of a trajectory.
    """

    num_warmup: int = 500
    num_draws: int = 1000
    num_chains: int = 4
    target_acceptance: float = 0.8
    max_doublings: int = 10
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = eqx.field(init=False)

    def __post_init__(self):
        # Importing blackjax computes, so it must happen before anything is traced.
        import blackjax  # noqa: F401

        for name in ("num_warmup", "num_draws", "num_chains", "max_doublings"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        rate = self.target_acceptance
        if not 0 < rate < 1:
            raise ValueError(f"target_acceptance must be between 0 and 1, got {rate}.")
        self.max_steps = self.num_warmup + self.num_draws

    def init(self, key, cloud):
        from blackjax.mcmc.hmc import HMCState

        (num, dim), dtype = cloud.shape, cloud.dtype
        num_chains = min(self.num_chains, num)
        num_slots = -(-num // num_chains)
        if num_slots > self.num_draws:
            raise ValueError(
                f"{num_chains} chains of num_draws={self.num_draws} cannot fill {num} particles: "
                f"raise num_draws to at least {num_slots}, or take more chains."
            )

        def carried(leaf):
            # The carry may not change its types: it has the run's dtype, and int32.
            leaf = jnp.asarray(leaf)
            return leaf.astype(dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.int32)

        found = (cloud.particles, cloud.log_densities, cloud.scores)
        averaging, mass = self._adaptations()
        zero, zeros = jnp.zeros((), jnp.int32), jnp.zeros((num_chains, dim))
        memory = NUTSMemory(
            step=zero,
            chains=HMCState(*(rows[:num_chains] for rows in found)),
            # 1 is blackjax's own start; the dual averaging leaves it within a few steps.
            dual_averaging=averaging[0](1.0),
            mass_matrix=mass[0](dim),
            net=Net(jnp.full(num_slots, -1), zero, zero),
            moments=Moments(zero, zeros, zeros),
            divergences=zero,
        )
        return jax.tree.map(carried, memory)

    def propose(self, key, cloud, memory):
        step, dtype = memory.step, cloud.dtype
        warming = step < self.num_warmup
        # Dual averaging explores while it learns; its result is the average.
        averaging = memory.dual_averaging
        log_step = jnp.where(warming, averaging.log_step_size, averaging.log_step_size_avg)
        step_size = jnp.exp(log_step)
        chains, told = self._transitions(key, cloud, memory, step_size)
        acceptance = jnp.mean(jnp.nan_to_num(told.acceptance_rate)).astype(dtype)
        averaging, mass = self._adapted(step, chains.position, acceptance, memory)
        net, slot = _placed(memory.net, self.num_draws, step, warming)
        counted = _counted(memory.moments, chains.position)
        divergences = memory.divergences + jnp.sum(told.is_divergent)
        # The warm-up is not counted.
        moments, divergences = _chosen(
            warming, (memory.moments, memory.divergences), (counted, divergences)
        )
        new = NUTSMemory(step + 1, chains, averaging, mass, net, moments, divergences)
        new = jax.tree_util.tree_map(lambda n, old: n.astype(old.dtype), new, memory)

        # Slot k of chain c is row k * num_chains + c; rows beyond the last are dropped.
        num_chains = len(chains.position)
        rows = slot * num_chains + jnp.arange(num_chains)
        found = Place(chains.position, chains.logdensity_grad, chains.logdensity)
        place = jax.tree.map(lambda old, n: old.at[rows].set(n, mode="drop"), cloud.place, found)
        after = Cloud.of(place, cloud.log_density)
        done = new.step >= self.num_warmup + self.num_draws
        r_hat = _r_hat(new.moments)
        # Chains that disagree have not converged, however long they are; one chain cannot disagree.
        agreed = jnp.where(r_hat > _MOST_R_HAT, Status.MAX_STEPS, Status.CONVERGED)
        info = Info.of(
            after,
            step_size,
            status=jnp.where(done, agreed, Status.RUNNING),
            gradients=jnp.sum(told.num_integration_steps),
            extra={
                "acceptance": acceptance,
                "divergences": new.divergences,
                "r_hat": r_hat,
                "drawn": jnp.mean(new.net.held >= 0, dtype=dtype),
            },
        )
        return after, (new, info)

    def conclude(self, cloud, pending, arrived):
        memory, info = pending
        return True, memory, info

    def _transitions(self, key, cloud: Cloud, memory: NUTSMemory, step_size):
        """One transition of every chain; a chain stays put if its new point is not finite."""
        import blackjax

        kernel = blackjax.nuts.build_kernel()
        # blackjax computes in JAX's default precision, which may be higher than the run's.
        working = jnp.zeros(()).dtype

        def cast(tree, dtype):
            return jax.tree_util.tree_map(lambda leaf: leaf.astype(dtype), tree)

        def density(x):
            return cloud.log_density(x.astype(cloud.dtype)).astype(working)

        start, mass, step = cast(
            (memory.chains, memory.mass_matrix.inverse_mass_matrix, step_size), working
        )

        def transition(key, chain):
            return kernel(key, chain, density, step, mass, self.max_doublings)

        moved, told = jax.vmap(transition)(jax.random.split(key, len(start.position)), start)
        moved = cast(moved, cloud.dtype)
        finite = jnp.isfinite(moved.logdensity)
        finite &= jnp.all(jnp.isfinite(moved.logdensity_grad), axis=1)
        return _chosen(finite, moved, memory.chains), told

    def _adaptations(self):
        from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
        from blackjax.adaptation.step_size import dual_averaging_adaptation

        return dual_averaging_adaptation(self.target_acceptance), mass_matrix_adaptation(True)

    def _adapted(self, step, positions, acceptance, memory: NUTSMemory):
        """Dual averaging and mass matrix after a transition; unchanged after the warm-up."""
        from blackjax.adaptation.window_adaptation import build_schedule

        averaging, mass = self._adaptations()
        schedule = jnp.asarray(build_schedule(self.num_warmup))
        slow, ends = schedule[jnp.minimum(step, self.num_warmup - 1)].astype(bool)
        warming = step < self.num_warmup

        learnt = averaging[1](memory.dual_averaging, acceptance)
        gathered = memory.mass_matrix
        for position in positions:
            gathered = mass[1](gathered, position)
        gathered = _chosen(slow, gathered, memory.mass_matrix)
        ended = (averaging[0](averaging[2](learnt)), mass[2](gathered))
        learnt = _chosen(ends, ended, (learnt, gathered))
        return _chosen(warming, learnt, (memory.dual_averaging, memory.mass_matrix))


def nuts(
    num_warmup: int = 500,
    num_draws: int = 1000,
    num_chains: int = 4,
    target_acceptance: float = 0.8,
) -> NUTS:
    """NUTS: by default 4 chains of 500 + 1000 transitions, thinned to the number of particles.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, parvi
    >>> start = np.random.default_rng(0).normal(size=(400, 2))
    >>> log_density = lambda x: -0.5 * jnp.sum((x - 3) ** 2)
    >>> result = parvi.sample(log_density, start, sampler=parvi.nuts(200, 200))
    >>> bool(abs(result.particles.mean() - 3) < 0.3), int(result.history["divergences"][-1])
    (True, 0)
    """
    return NUTS(num_warmup, num_draws, num_chains, target_acceptance)


def _chosen(condition: Bool[Array, "..."], new: PyTree[Array], old: PyTree[Array]) -> Any:
    """The new leaves where the condition holds, for all or for each row, and the old elsewhere."""

    def choose(n, o):
        axes = (1,) * (jnp.ndim(n) - condition.ndim)
        return jnp.where(condition.reshape(condition.shape + axes), n, o)

    return jax.tree_util.tree_map(choose, new, old)


def _placed(net: Net, num_draws: int, step, warming) -> tuple[Net, Int[Array, ""]]:
    """The net after one more transition, and the slot for it (one past the last for none).

    The numbers 0 .. K-1 fill the K slots. From K 2^m up to K 2^(m+1), every number that 2^(m+1)
    divides takes the slot of the next one that 2^m divides but 2^(m+1) does not, until all held
    numbers are 2^(m+1) apart. Only some transitions get a number, so that the net is just full
    after ``num_draws`` of them.
    """
    num_slots = net.held.shape[0]
    # The num_draws transitions share this many numbers: the largest K 2^m up to num_draws.
    numbers = num_slots * 2 ** int(math.log2(num_draws // num_slots))
    clock = net.clock + numbers
    numbered = (clock >= num_draws) & jnp.logical_not(warming)
    clock = jnp.where(numbered, clock - num_draws, clock)

    number = net.next
    if num_slots == 1:
        kept, slot = numbered, jnp.zeros((), jnp.int32)
    else:
        # 2^m is found with integers, as a logarithm may round across a power of two.
        powers = 2 ** jnp.arange(31 - num_slots.bit_length(), dtype=jnp.int32)
        spacing = jnp.max(jnp.where(num_slots * powers <= number, powers, 0))
        first = number < num_slots
        multiple = number // jnp.maximum(2 * spacing, 1)
        given = spacing * (2 * (multiple - (num_slots + 1) // 2) + 1)
        slot = jnp.where(first, number, jnp.argmax(net.held == given))
        divides = number % jnp.maximum(2 * spacing, 1) == 0
        kept = numbered & (first | divides)
    held = jnp.where(kept & (jnp.arange(num_slots) == slot), number, net.held)
    # In the warm-up the latest states take the slots in turn.
    slot = jnp.where(warming, step % num_slots, jnp.where(kept, slot, num_slots))
    clock = jnp.where(warming, net.clock, clock)
    return Net(held, clock, number + numbered), slot


def _counted(moments: Moments, draws: Float[Array, "c d"]) -> Moments:
    """Welford's update of each chain by itself."""
    num = moments.num + 1
    delta = draws - moments.mean
    mean = moments.mean + delta / num.astype(delta.dtype)
    return Moments(num, mean, moments.square + delta * (draws - mean))


def _r_hat(moments: Moments) -> Float[Array, ""]:
    """sqrt((count - 1) / count + var(means) / mean(variances)), maximised over coordinates."""
    num_chains = moments.mean.shape[0]
    if num_chains == 1:
        return jnp.full((), jnp.nan, moments.mean.dtype)
    count = moments.num.astype(moments.mean.dtype)
    within = jnp.mean(moments.square, axis=0) / (count - 1)
    between = jnp.var(moments.mean, axis=0, ddof=1)
    return jnp.where(count > 1, jnp.sqrt(jnp.max(between / within) + (count - 1) / count), jnp.nan)
