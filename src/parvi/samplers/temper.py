"""Temper: sequential Monte Carlo from a broad density N along p^b N^(1 - b), b from 0 to 1.

No flow of the KL, and no chain, carries mass between separated modes: clumps at rest have the
weights of the start. Weighting can. At every temperature each particle is weighted with
(p / N)^(b' - b), with b' chosen so that the weights are worth a given share of the particles; the
particles are resampled by these weights, and Hamiltonian transitions at b' move the copies apart.
The masses of the modes, and the evidence, are then right whatever N is (Del Moral, Doucet & Jasra
2006). N is a broad Gaussian, beside Gaussians at known modes if their volumes differ much.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.cloud import BLOCK, chosen
from parvi.geometry.broad import broad, is_wider, rescaled
from parvi.geometry.resampling import neighbours_in_order, scaled_gains, systematic
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, reported
from parvi.samplers.flight import Flight, landed, launched
from parvi.samplers.fly import paired_normal
from parvi.samplers.keys import cheap
from parvi.samplers.path import (
    Passes,
    Tempering,
    base_of,
    beta_after,
    error_of_mean,
    none_yet,
    tempered,
)
from parvi.samplers.weigh import Modes
from parvi.status import Status
from parvi.stopping import Never

# What the next step proposes.
_DRAW, _RESAMPLE, _FLY, _POOL = 0, 1, 2, 3
# Standard error of a mean over the passes, in standard deviations, that is small enough.
_EXACT = 0.03
# How often the Gaussian may be made again, if the particles turn out to be much wider.
_MOST_WIDENED = 4


class _Pending(NamedTuple):
    memory: Tempering
    share: Float[Array, ""]


class Temper(AbstractSampler):
    """Takes the particles to a broad Gaussian and back along a tempered path, with weights.

    The history has ``beta``, ``log_evidence`` (of the density as given, unconstrained), and
    ``effective_share``, the share of the particles that the weights of a temperature are worth.

    Parameters
    ----------
    share
        The share of the particles that the weights of a temperature may be worth.
    breadth
        Width of the broad Gaussian in standard deviations of the particles.
    num_transitions
        Number of transitions at every temperature, and twice as many at the last.
    num_passes, most_passes
        Smallest and largest number of times that the path is followed. The particles are drawn
        from the ends of all passes, which makes the masses of the modes more exact, and shows how
        exact they are: passes go on until the standard error of a mean is at most 0.03 standard
        deviations. For more than 8192 particles, ``num_passes`` are enough.
    length, most_leapfrogs
        Settings of the transitions, as in ``Explore``.
    modes
        Modes that the base has to cover; the run passes in those that a stage has found.
    """

    share: float = 0.7
    breadth: float = 2.0
    num_transitions: int = 3
    num_passes: int = 4
    most_passes: int = 12
    length: float = math.pi / 2
    most_leapfrogs: int = 32
    modes: Any = None
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 20_000

    @property
    def compares_densities(self):
        return True

    def told(self, start, reports):
        found = reported(reports, Modes)
        if found is None:
            return self
        return eqx.tree_at(lambda s: s.modes, self, found, is_leaf=lambda leaf: leaf is None)

    def init(self, key, cloud):
        base = base_of(cloud, self.modes, self.breadth)
        zero = jnp.zeros((), jnp.int32)
        return Tempering(
            base=base,
            frame=base.broad,
            flight=Flight.grounded(cloud.place),
            next=zero,
            num_made=zero,
            beta=jnp.zeros((), cloud.dtype),
            log_evidence=jnp.zeros((), cloud.dtype),
            lost=jnp.zeros(cloud.shape[0], bool),
            passes=zero,
            ends=jnp.zeros((self._most(cloud.shape), *cloud.shape), cloud.dtype),
            log_evidences=none_yet(self._most(cloud.shape), cloud.dtype),
            num_widened=zero,
        )

    def report(self, memory):
        made = jnp.arange(len(memory.ends)) < memory.passes
        return Passes(memory.ends, jnp.where(made, memory.log_evidences, -jnp.inf))

    def _most(self, shape) -> int:
        return self.num_passes if shape[0] > BLOCK else max(self.most_passes, self.num_passes)

    def propose(self, key, cloud, memory):
        key = cheap(key)
        branches = [
            lambda: self._drawn(key, cloud, memory),
            lambda: self._drawn_anew(key, cloud, memory),
            lambda: self._flown(key, cloud, memory),
            lambda: self._pooled(key, memory),
        ]
        return jax.lax.switch(memory.next, branches)

    def conclude(self, cloud, pending, arrived):
        memory, share = pending
        branches = [
            lambda: self._begun(memory, arrived),
            lambda: self._parted(memory, arrived),
            lambda: self._arrived(cloud, memory, arrived),
            lambda: (jnp.ones(cloud.shape[0], bool), memory),
        ]
        taken, new = jax.lax.switch(memory.next, branches)
        done = memory.next == _POOL
        info = Info.of(
            cloud,
            jnp.exp(new.flight.log_step),
            status=jnp.where(done, Status.CONVERGED, Status.RUNNING),
            extra={
                "beta": new.beta,
                "log_evidence": new.log_evidence,
                "effective_share": share,
            },
        )
        return taken, new, info

    def _drawn(self, key, cloud, memory):
        """Points of the base."""
        points = memory.base.draw(paired_normal(key, cloud.shape, cloud.dtype))
        return points, _Pending(memory, jnp.ones((), cloud.dtype))

    def _begun(self, memory, arrived):
        sound = jnp.isfinite(arrived.log_densities) & jnp.all(jnp.isfinite(arrived.scores), axis=1)
        return sound, memory._replace(next=jnp.int32(_RESAMPLE), lost=~sound)

    def _drawn_anew(self, key, cloud, memory):
        """The next temperature, and the particles resampled by their weights for it."""
        gains = cloud.log_densities - memory.base.log_density(cloud.particles)
        gains = jnp.where(memory.lost, -jnp.inf, gains)
        beta = beta_after(memory, gains, cloud.particles, self.share)
        log_weights = scaled_gains(beta - memory.beta, gains)
        total = jax.scipy.special.logsumexp(log_weights)
        weights = jnp.exp(log_weights - total)
        order = neighbours_in_order(memory.base.broad.enter(cloud.particles))
        num = cloud.shape[0]
        rows = order[systematic(key, weights[order], num)]
        memory = memory._replace(
            beta=beta,
            log_evidence=memory.log_evidence + total - math.log(num),
            lost=jnp.zeros_like(memory.lost),
        )
        return cloud.particles[rows], _Pending(memory, 1 / (num * jnp.sum(weights**2)))

    def _parted(self, memory, arrived):
        place = tempered(memory, arrived.place)
        frame = rescaled(memory.base.broad, place)
        flight = memory.flight._replace(here=place, left=jnp.zeros((), jnp.int32))
        taken = jnp.ones(arrived.shape[0], bool)
        count = jnp.zeros((), jnp.int32)
        return taken, memory._replace(
            frame=frame, flight=flight, next=jnp.int32(_FLY), num_made=count
        )

    def _flown(self, key, cloud, memory):
        home = tempered(memory, cloud.place)
        flight = launched(key, memory.frame, home, memory.flight, self.length, self.most_leapfrogs)
        pending = _Pending(memory._replace(flight=flight), jnp.full((), jnp.nan, cloud.dtype))
        return flight.here.particles, pending

    def _arrived(self, cloud, memory, arrived):
        flight, stays, _ = landed(memory.frame, memory.flight, tempered(memory, arrived.place))
        count = memory.num_made + (flight.left == 0)
        last = memory.beta >= 1
        over = count >= jnp.where(last, 2, 1) * self.num_transitions
        memory = memory._replace(
            flight=flight, num_made=count, next=jnp.where(over, _RESAMPLE, _FLY).astype(jnp.int32)
        )
        place = chosen(stays, arrived.place, cloud.place)
        memory = jax.lax.cond(last & over, lambda: self._ended(memory, place), lambda: memory)
        return stays, memory

    def _ended(self, memory, place):
        """The end of a pass: another one, a broader Gaussian, or the particles of all of them."""
        passes = memory.passes + 1
        memory = memory._replace(
            passes=passes,
            ends=memory.ends.at[memory.passes].set(place.particles),
            log_evidences=memory.log_evidences.at[memory.passes].set(memory.log_evidence),
        )
        # There may be more modes beyond those that the Gaussian was made to cover.
        again = (passes == 1) & (memory.num_widened < _MOST_WIDENED)
        narrow = again & is_wider(memory.base.broad.enter(place.particles), 1 / self.breadth)
        enough = (passes >= self.num_passes) & (error_of_mean(memory) <= _EXACT)
        done = (enough | (passes >= len(memory.ends))) & ~narrow
        nothing = jnp.zeros_like(memory.beta)
        memory = memory._replace(
            next=jnp.where(done, _POOL, _DRAW).astype(jnp.int32),
            beta=jnp.where(done, memory.beta, nothing),
            log_evidence=jnp.where(done, memory.log_evidence, nothing),
        )

        def widened():
            return memory._replace(
                base=memory.base.widened(broad(place.particles, place.scores, self.breadth)),
                passes=jnp.zeros_like(passes),
                log_evidences=none_yet(len(memory.ends), place.particles.dtype),
                num_widened=memory.num_widened + 1,
            )

        return jax.lax.cond(narrow, widened, lambda: memory)

    def _pooled(self, key, memory):
        """Particles from the ends of all passes, weighted by their evidences."""
        _, num, dim = memory.ends.shape
        every = memory.ends.reshape(-1, dim)
        log_weights = jnp.repeat(memory.log_evidences, num)
        weights = jax.nn.softmax(log_weights)
        order = neighbours_in_order(memory.base.broad.enter(every))
        rows = order[systematic(key, weights[order], num)]
        mean = jax.scipy.special.logsumexp(memory.log_evidences) - jnp.log(memory.passes)
        memory = memory._replace(log_evidence=mean.astype(every.dtype))
        return every[rows], _Pending(memory, jnp.full((), jnp.nan, every.dtype))
