"""Temper: sequential Monte Carlo from a broad Gaussian N along p^b N^(1 - b), b from 0 to 1.

No flow of the KL, and no chain, carries mass between separated modes: clumps at rest have the
weights of the start. Weights do. At every temperature each particle is weighted with
(p / N)^(b' - b), with b' chosen so that the weights are worth a given share of the particles; the
particles are drawn anew by these weights, and Hamiltonian transitions at b' part the copies. The
masses of the modes, and the evidence, are then right whatever the Gaussian
(Del Moral, Doucet & Jasra 2006).
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.cloud import BLOCK, Place, chosen
from parvi.geometry.frame import AbstractGaussianFrame, DenseFrame, DiagonalFrame, tells_covariance
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, reported
from parvi.samplers.flight import Flight, landed, launched
from parvi.samplers.fly import paired_normal
from parvi.samplers.keys import cheap
from parvi.samplers.resampling import neighbours_in_order, systematic
from parvi.samplers.scout import Modes
from parvi.status import Status
from parvi.stopping import Never

# What the next step proposes.
_DRAW, _RESAMPLE, _FLY, _POOL = 0, 1, 2, 3
# Bisections for the next temperature.
_BISECTIONS = 40
# Log volume by which the broad Gaussian may be widened beyond the particles.
_ROOM = 6.0
# Standard error of a mean over the passes, in standard deviations, that is small enough.
_EXACT = 0.03
# The Gaussian is made anew if particles turn out that many times wider than those it was made for.
_NARROW, _MOST_WIDENED = 1.4, 4


class Tempering(NamedTuple):
    """The place on the path.

    ``base``: the broad Gaussian, N(0, I) in this frame. Its axes are those of the clumps too, so
    that every temperature has them. ``frame``: that of the flights. ``next``: what the next step
    proposes. ``num_made``: the transitions made at this temperature. ``lost``:
    draws of the Gaussian without a finite density, whose weight is 0. ``passes``: how many are
    over. ``ends``: where their particles were, with their evidences.
    """

    base: AbstractGaussianFrame
    frame: AbstractGaussianFrame
    flight: Flight
    next: Int[Array, ""]
    num_made: Int[Array, ""]
    beta: Float[Array, ""]
    log_evidence: Float[Array, ""]
    lost: Bool[Array, " n"]
    passes: Int[Array, ""]
    ends: Float[Array, "p n d"]
    log_evidences: Float[Array, " p"]
    num_widened: Int[Array, ""]


class Passes(NamedTuple):
    """Where the particles of every pass were at its end, with the passes' log evidences.

    Of a pass that was not made the log evidence is -inf.
    """

    ends: Float[Array, "p n d"]
    log_evidences: Float[Array, " p"]


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
        Smallest and largest number of times that the path is followed. The particles are drawn from
        the ends of all passes, which makes the masses of the modes more exact, and tells how exact:
        there are as many passes as make the standard error of a mean at most 0.03 standard
        deviations. Of more than 8192 particles, ``num_passes`` are enough.
    length, most_leapfrogs
        Settings of the transitions, as in ``Explore``.
    modes
        Further modes that the Gaussian has to cover; the run tells them if the stage before it
        found any.
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
        particles = cloud.particles
        if self.modes is not None:
            particles = _among(particles, self.modes)
        base = _broad(particles, cloud.scores, self.breadth)
        zero = jnp.zeros((), jnp.int32)
        return Tempering(
            base=base,
            frame=base,
            flight=Flight.grounded(cloud.place),
            next=zero,
            num_made=zero,
            beta=jnp.zeros((), cloud.dtype),
            log_evidence=jnp.zeros((), cloud.dtype),
            lost=jnp.zeros(cloud.shape[0], bool),
            passes=zero,
            ends=jnp.zeros((self._most(cloud.shape), *cloud.shape), cloud.dtype),
            log_evidences=_none_yet(self._most(cloud.shape), cloud.dtype),
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
        """Points of the broad Gaussian."""
        points = memory.base.leave(paired_normal(key, cloud.shape, cloud.dtype))
        return points, _Pending(memory, jnp.ones((), cloud.dtype))

    def _begun(self, memory, arrived):
        sound = jnp.isfinite(arrived.log_densities) & jnp.all(jnp.isfinite(arrived.scores), axis=1)
        return sound, memory._replace(next=jnp.int32(_RESAMPLE), lost=~sound)

    def _drawn_anew(self, key, cloud, memory):
        """The next temperature, and the particles drawn anew by their weights for it."""
        gains = cloud.log_densities - _log_normal(memory.base, cloud.particles)
        gains = jnp.where(memory.lost, -jnp.inf, gains)
        beta = self._next_beta(gains, memory.beta)
        log_weights = _times(beta - memory.beta, gains)
        total = jax.scipy.special.logsumexp(log_weights)
        weights = jnp.exp(log_weights - total)
        order = neighbours_in_order(memory.base.enter(cloud.particles))
        num = cloud.shape[0]
        rows = order[systematic(key, weights[order], num)]
        memory = memory._replace(
            beta=beta,
            log_evidence=memory.log_evidence + total - math.log(num),
            lost=jnp.zeros_like(memory.lost),
        )
        return cloud.particles[rows], _Pending(memory, 1 / (num * jnp.sum(weights**2)))

    def _parted(self, memory, arrived):
        place = _tempered(memory, arrived.place)
        frame = _scaled(memory.base, place)
        flight = memory.flight._replace(here=place, left=jnp.zeros((), jnp.int32))
        taken = jnp.ones(arrived.shape[0], bool)
        count = jnp.zeros((), jnp.int32)
        return taken, memory._replace(
            frame=frame, flight=flight, next=jnp.int32(_FLY), num_made=count
        )

    def _flown(self, key, cloud, memory):
        home = _tempered(memory, cloud.place)
        flight = launched(key, memory.frame, home, memory.flight, self.length, self.most_leapfrogs)
        pending = _Pending(memory._replace(flight=flight), jnp.full((), jnp.nan, cloud.dtype))
        return flight.here.particles, pending

    def _arrived(self, cloud, memory, arrived):
        flight, stays, _ = landed(memory.frame, memory.flight, _tempered(memory, arrived.place))
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
        # More modes may lie beyond those that the Gaussian was made to cover.
        again = (passes == 1) & (memory.num_widened < _MOST_WIDENED)
        narrow = again & _is_wider(memory.base.enter(place.particles), 1 / self.breadth)
        enough = (passes >= self.num_passes) & (_error_of_mean(memory) <= _EXACT)
        done = (enough | (passes >= len(memory.ends))) & ~narrow
        nothing = jnp.zeros_like(memory.beta)
        memory = memory._replace(
            next=jnp.where(done, _POOL, _DRAW).astype(jnp.int32),
            beta=jnp.where(done, memory.beta, nothing),
            log_evidence=jnp.where(done, memory.log_evidence, nothing),
        )

        def widened():
            return memory._replace(
                base=_broad(place.particles, place.scores, self.breadth),
                passes=jnp.zeros_like(passes),
                log_evidences=_none_yet(len(memory.ends), place.particles.dtype),
                num_widened=memory.num_widened + 1,
            )

        return jax.lax.cond(narrow, widened, lambda: memory)

    def _pooled(self, key, memory):
        """Particles from the ends of all passes, weighted by their evidences."""
        _, num, dim = memory.ends.shape
        every = memory.ends.reshape(-1, dim)
        log_weights = jnp.repeat(memory.log_evidences, num)
        weights = jax.nn.softmax(log_weights)
        order = neighbours_in_order(memory.base.enter(every))
        rows = order[systematic(key, weights[order], num)]
        mean = jax.scipy.special.logsumexp(memory.log_evidences) - jnp.log(memory.passes)
        memory = memory._replace(log_evidence=mean.astype(every.dtype))
        return every[rows], _Pending(memory, jnp.full((), jnp.nan, every.dtype))

    def _next_beta(self, gains, beta):
        """The largest temperature whose weights are worth the share of the particles."""
        wanted = math.log(self.share * gains.shape[0])

        def enough(new):
            weights = _times(new - beta, gains)
            return (
                2 * jax.scipy.special.logsumexp(weights) - jax.scipy.special.logsumexp(2 * weights)
                >= wanted
            )

        def halve(_, bounds):
            low, high = bounds
            middle = 0.5 * (low + high)
            good = enough(middle)
            return jnp.where(good, middle, low), jnp.where(good, high, middle)

        one = jnp.ones_like(beta)
        low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, (beta, one))
        # Where even the smallest step costs too much, it is taken all the same.
        return jnp.where(enough(one), one, jnp.maximum(low, jnp.minimum(high, beta + 1e-6)))


def _none_yet(num: int, dtype: Any) -> Float[Array, " p"]:
    """The log evidences of passes that were not made: their weights are 0."""
    return jnp.full(num, jnp.finfo(dtype).min, dtype)


def _times(factor, gains):
    """The product, with -inf where the gain is."""
    return jnp.where(jnp.isneginf(gains), -jnp.inf, factor * gains)


def _log_normal(base, particles):
    """The log density of the broad Gaussian, with its constant."""
    square = jnp.sum(base.enter(particles) ** 2, axis=1)
    return -0.5 * (square + particles.shape[1] * math.log(2 * math.pi)) - base.log_volume


def _tempered(memory: Tempering, place: Place) -> Place:
    """The place with the scores and log densities of p^b N^(1 - b)."""
    base, beta = memory.base, memory.beta
    towards = -base.push(base.enter(place.particles))
    log_densities = beta * place.log_densities + (1 - beta) * _log_normal(base, place.particles)
    return Place(place.particles, beta * place.scores + (1 - beta) * towards, log_densities)


def _among(particles, modes: Modes):
    """The particles, with equal parts of them moved to the other modes."""
    counts = jnp.isfinite(modes.log_masses)
    order = jnp.argsort(~counts)
    part = jnp.arange(len(particles)) % (jnp.sum(counts) + 1)
    places = jnp.concatenate([jnp.mean(particles, axis=0)[None], modes.places[order]])
    return particles + places[part] - places[0]


def _broad(particles, scores, breadth: float) -> AbstractGaussianFrame:
    """A frame in which N(0, I) is broad: as wide as the particles in every direction, and more.

    Clumps that were found may lie on a line and others beside it. So narrow directions are widened
    until they hold as many clumps as the widest one, or until the volume is large enough. The
    width of a clump is told by the Fisher information.
    """
    if not tells_covariance(particles.shape):
        own = DiagonalFrame.of(particles)
        return DiagonalFrame(own.mean, breadth * own.scale)
    frame = DenseFrame.of(particles)
    scores = frame.pull(scores)
    fisher = scores.T @ scores / len(scores)
    values, vectors = jnp.linalg.eigh((fisher + fisher.T) / 2)
    values = jnp.maximum(values, 1.0)
    missing = 0.5 * jnp.log(jnp.max(values) / values)
    room = jnp.minimum(1.0, _ROOM / jnp.maximum(jnp.sum(missing), 1e-9))
    wider = breadth * jnp.exp(room * missing)
    return DenseFrame(
        frame.mean, frame.factor @ (vectors * wider), (vectors / wider).T @ frame.inverse
    )


def _scaled(base: AbstractGaussianFrame, place: Place) -> AbstractGaussianFrame:
    """The base with every axis scaled so that the scores have mean square 1.

    More than a number for each axis would be fitted to the very particles that fly in it: the
    covariance of 512 particles in 100 dimensions made them 8 % too narrow.
    """
    squares = jnp.mean(base.pull(place.scores) ** 2, axis=0)
    scale = jnp.where(squares > 0, squares, 1.0) ** -0.5
    if isinstance(base, DiagonalFrame):
        return DiagonalFrame(base.mean, base.scale * scale)
    assert isinstance(base, DenseFrame)
    return DenseFrame(base.mean, base.factor * scale, base.inverse / scale[:, None])


def _is_wider(z: Float[Array, "n d"], width: float) -> Bool[Array, ""]:
    """Whether the particles are much wider than this in some direction."""
    centred = z - jnp.mean(z, axis=0)
    widest = jnp.linalg.eigvalsh(centred.T @ centred / len(z))[-1]
    # Both the particles and those that the frame was made of have a widest direction by chance.
    chance = (1 + math.sqrt(z.shape[1] / len(z))) ** 2
    return jnp.sqrt(widest) > _NARROW * width * chance


def _error_of_mean(memory: Tempering) -> Float[Array, ""]:
    """The largest standard error of the pooled mean, in standard deviations, by the passes.

    Masses of modes that differ from pass to pass show in the widest directions.
    """
    shares = jax.nn.softmax(memory.log_evidences)
    means = jnp.mean(memory.ends, axis=1)
    middle = shares @ means
    own = memory.ends - middle
    covariance = jnp.einsum("p,pnd,pne->de", shares, own, own) / own.shape[1]
    values, vectors = jnp.linalg.eigh(covariance)
    along = (means - middle) @ vectors[:, -3:]
    num = memory.passes.astype(means.dtype)
    squares = jnp.sum(shares[:, None] ** 2 * along**2, axis=0) * num / jnp.maximum(num - 1, 1)
    return jnp.sqrt(jnp.max(squares / jnp.maximum(values[-3:], jnp.finfo(means.dtype).tiny)))
