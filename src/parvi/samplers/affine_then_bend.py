"""The default: first an affine flow, then one that bends, each at rest before the next.

**Affine.** In coordinates z whitened by the particles' own mean and covariance, the affine map
f(z) = H^-1 (E[s] + (sym E[s z^T] + I) z) is linear PFG, with H the curvature that the regression of
scores on particles sees, its eigenvalues at least 1. H f is a gradient: the antisymmetric part of
E[s z^T] would turn the particles, and near rest it is nothing but their noise. Scores are clipped,
in these coordinates, at ``clip`` times their median norm: a few particles where the density is wild
do not rule the map, and where all are far away all are clipped alike. A step is kept where the KL
still falls along f at its end; the trust region, one standard deviation, doubles with every kept
step that it shortened.

**Bending.** In rounds. In each the frame and k tanh features are frozen and f = W psi is solved in
closed form in the metric of the Fisher information, its eigenvalues at least 1. With
B = E[s psi^T + grad psi] and G = E[psi psi^T] the merit

    tr(H^-1 B^T (G + ridge)^-1 B)

is minus the KL rate along f and a Stein discrepancy: it is zero where the particles obey Stein's
identity for every feature, whatever the ridge and the metric. Only steps that decrease it are
kept. A round ends when the merit has fallen fivefold. For n independent draws the merit of fresh
features has a known mean; their ratio is the *excess*. Rounds go on until a fresh excess is below 1
and no longer falls: from there on a round only exchanges one set of features' noise for another's.

**Flying.** Where the Fisher information in the particles' own frame is far from that of a Gaussian,
features do not see all that is missing. Then, once, Hamiltonian transitions (``flights``), and
rounds anew.

**Modes.** If the particles at rest lie in separated clumps, their weights are those of the start.
Then once more from a broad Gaussian, along p^b N^(1 - b) with b rising to 1, a round each; and back
to where they were if that does not come to rest.

Flying and modes are a second stage: a program that is compiled, and memory that is taken, only
where they are needed.

From 131 072 particles on they are streamed (``streams``): affine and bent rounds alone, in sums
over blocks, in which a step keeps the particles and their proposals and no scores.

With fewer than 1.5 particles a dimension a covariance cannot be told: the frame is diagonal, the
map f_j = b_j + a_j z_j, and nothing bends. O(n d) memory there, O(n d + n k + d^2) otherwise.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from parvi.fields.clumps import separated
from parvi.fields.frame import AbstractFrame, DenseFrame
from parvi.fields.pfg.metric import DenseMetric
from parvi.interface import AbstractStoppingRule, AbstractTwoPartSampler, Cloud, Info, State
from parvi.samplers import flights, streams
from parvi.samplers.flights import Flight
from parvi.samplers.phases import (
    Control,
    Phases,
    at_the_floor,
    shortened,
    status_after,
    where,
)
from parvi.samplers.rounds import Found, Rounds
from parvi.samplers.stopping import AtRest
from parvi.status import Status

# Rounds after the tempered path within which it must come to rest.
_PATIENCE = 10
# Largest eigenvalue of the Fisher information in the particles' own frame, 1 for a Gaussian, from
# which on bending alone is not trusted. Regressions have 1 to 1.2; banana and funnel 5 to 16.
_FAR_FROM_GAUSSIAN = 3.0
# Of the broad Gaussian, in sds of the particles: its centre then tilts the modes' weights little.
_BREADTH = 3.0


class Home(NamedTuple):
    """The particles before the tempered path, to come back to if it does not end at rest."""

    particles: Float[Array, "n d"]
    scores: Float[Array, "n d"]
    log_densities: Float[Array, " n"]


class BendingMemory(NamedTuple):
    """The carry beside the particles."""

    scores: Float[Array, "n d"]
    log_densities: Float[Array, " n"]
    found: Found
    broad: AbstractFrame
    flight: Flight
    home: Home
    control: Control


class Elsewhere(NamedTuple):
    """Of the second stage: transitions and the tempered path, if the step is taken."""

    flight: Flight
    home: Home
    broad: AbstractFrame
    uniforms: Float[Array, "2 n"] | None


class Proposal(NamedTuple):
    """What a step is about to do, before the log density is asked there."""

    found: Found
    limited: Bool[Array, ""]
    floor: Bool[Array, ""]
    at_floor: Bool[Array, ""]
    takes_off: Bool[Array, ""]
    again: Bool[Array, ""]
    elsewhere: Elsewhere


class AffineThenBend(AbstractTwoPartSampler):
    """The default sampler; see the module. No setting needs a user's hand.

    Parameters
    ----------
    num_features
        k; None for n / 8, at most 128. 0 for the affine phase alone.
    ridge
        On G, whose features are of order 1 in the whitened frame.
    clip
        Of the scores in the affine phase, in units of their median norm.
    share
        The affine phase gives way when its KL rate is below ``share * d / n`` twice in a row; the
        mean of n draws is wrong by a KL of d / (2n). Where nothing bends it is the whole run, and
        ends below a tenth of that, five times in a row.
    fall
        A round of bending ends when the merit is below ``fall`` times its first value,
    max_age
        or after so many steps.
    gain
        The last round is the one after which a fresh excess below 1 is above ``gain`` times the
        smallest before.
    num_temperatures
        Values of b where there are separated clumps; 0 to never temper.
    flies
        Whether Hamiltonian transitions may help where the target is far from Gaussian.
    max_steps
        Ends the run at the latest.
    """

    rounds: Rounds
    phases: Phases
    gain: float
    flies: bool
    stopping_rule: AbstractStoppingRule
    max_steps: int
    # Whether this is the second stage.
    late: bool

    def __init__(
        self,
        num_features: int | None = None,
        ridge: float = 1e-2,
        clip: float = 5.0,
        share: float = 0.1,
        fall: float = 0.2,
        max_age: int = 100,
        gain: float = 0.8,
        num_temperatures: int = 80,
        flies: bool = True,
        max_steps: int = 5000,
    ):
        self.rounds = Rounds(num_features, ridge, clip)
        self.phases = Phases(share, fall, max_age, num_temperatures)
        self.gain = gain
        self.flies = flies
        self.stopping_rule = AtRest()
        self.max_steps = max_steps
        self.late = False

    def init(self, key, particles, log_density):
        if self._streams(particles):
            return self._streamed().init(key, particles, log_density)
        return super().init(key, particles, log_density)

    def begin(self, key, cloud):
        particles = cloud.particles
        control = self.phases.start(particles.dtype)
        found = self.rounds.start(particles)
        # In the first stage there are no transitions and no path: nothing is kept for them.
        kept = slice(None) if self.late else slice(0)
        memory = BendingMemory(
            cloud.scores,
            cloud.log_densities,
            found,
            found.round.frame,
            flights.grounded(particles[kept]),
            Home(particles[kept], cloud.scores[kept], cloud.log_densities[kept]),
            control,
        )
        return State(jnp.zeros((), jnp.int32), particles, memory)

    def onward(self, state):
        x, memory = state.particles, state.memory
        memory = memory._replace(
            flight=flights.grounded(x),
            home=Home(x, memory.scores, memory.log_densities),
        )
        return self.second_stage(), state._replace(memory=memory)

    @property
    def brief(self):
        return not self.late

    def keeps_finite(self, particles):
        return self._streams(particles)

    def second_stage(self) -> "AffineThenBend":
        """The same sampler with transitions and the tempered path at hand."""
        return eqx.tree_at(lambda sampler: sampler.late, self, True)

    def step(self, key, state, log_density):
        if self._streams(state.particles):
            return self._streamed().step(_cheap(key), state, log_density)
        return super().step(key, state, log_density)

    def propose(self, key, state, log_density):
        key_round, key_normal, key_uniform = jax.random.split(_cheap(key), 3)
        x, memory = state.particles, state.memory
        control = memory.control
        scores = self._tempered(x, memory.scores, memory)

        # The velocity: the last step's where its round goes on, else a new one.
        found = jax.lax.switch(
            jnp.where(control.affine, 1, jnp.where(control.fresh, 2, 0)),
            [
                lambda: self.rounds.same(memory.found),
                lambda: self.rounds.affine(x, scores, memory.found),
                lambda: self.rounds.bent(key_round, x, scores, memory.found),
            ],
        )
        frame = found.round.frame

        floor, at_floor = at_the_floor(control, found.excess, self.gain)
        # Clumps are looked for after the transitions: before them a few particles in a thin part
        # are easily taken for one.
        clumped = self._clumped(at_floor & ~control.tempered, x, scores, frame)
        takes_off = at_floor & ~control.flown & ~control.tempered
        takes_off = takes_off & self._far_from_gaussian(found.round.metric)
        again = clumped & ~takes_off

        # The move; or a new start from a broad Gaussian; or a leapfrog.
        displacement, limited = shortened(found.descent, control)
        moved = frame.leave(frame.enter(x) + displacement)
        flight, home, broad, uniforms = memory.flight, memory.home, memory.broad, None
        if self.late:
            cloud = Cloud(x, memory.scores, memory.log_densities, log_density)
            home = where(again, Home(x, memory.scores, memory.log_densities), home)
            normal = _paired_normal(key_normal, x)
            uniforms = jax.random.uniform(key_uniform, (2, len(x)), x.dtype)
            broad = where(again, _broad(found.round), broad)
            moved = jnp.where(again, broad.leave(_BREADTH * normal), moved)
            flight = flights.leapt(control.leapfrogs, flight, cloud, frame, normal, uniforms[0])
            moved = jnp.where(control.leapfrogs > 0, flight.positions, moved)
        elsewhere = Elsewhere(flight, home, broad, uniforms)
        return moved, Proposal(found, limited, floor, at_floor, takes_off, again, elsewhere)

    def conclude(self, state, proposal, proposed):
        x, memory, moved = state.particles, state.memory, proposed.particles
        control, found = memory.control, proposal.found
        at_floor, takes_off, again = proposal.at_floor, proposal.takes_off, proposal.again
        flight, home, broad, uniforms = proposal.elsewhere
        descent, excess = found.descent, found.excess
        returns = control.fresh & (control.late >= _PATIENCE) & ~at_floor & ~control.rested
        at_rest = control.rested | (at_floor & ~again & ~takes_off) | returns
        pauses, flies = takes_off | again, control.leapfrogs > 0

        scores = self._tempered(x, memory.scores, memory)
        new_scores = self._tempered(moved, proposed.scores, memory)
        better, following = jax.lax.cond(
            control.affine,
            lambda: self.rounds.judge_affine(scores, moved, new_scores, found),
            lambda: self.rounds.judge_bent(moved, new_scores, found),
        )
        accepted = proposed.finite & jnp.where(at_floor, again, better) & ~control.rested & ~flies
        taken = jnp.broadcast_to(accepted, len(x))
        new_control = self.phases.following(
            control, x, self.rounds.bends(x), excess, accepted, proposal.limited, descent, following
        )
        if self.rounds.bends(x):
            new_control = new_control._replace(hesitated=control.hesitated | proposal.floor)
        else:
            at_rest = new_control.quiet >= 5
        if self.late:
            frame = found.round.frame
            flight, lands = flights.landed(control.leapfrogs, flight, proposed, frame, uniforms[1])
            taken = taken | (flies & lands)
            new_control = where(flies, self.phases.flying(control), new_control)
            new_control = where(again, self.phases.restarted(new_control), new_control)
            new_control = where(takes_off, self.phases.taking_off(new_control), new_control)
        if self.rounds.bends(x):
            new_control = where(control.rested, control, new_control._replace(rested=at_rest))
        status = status_after(control, new_control, proposed.finite)
        if not self.late:
            status = jnp.where(pauses, Status.PAUSED, status)
        here = Cloud(x, memory.scores, memory.log_densities, proposed.log_density)
        info = Info(
            status=status.astype(jnp.int32),
            kl_rate=-descent.merit,
            stein_ratio=here.stein_ratio(),
            step_size=control.step_size,
            accepted=jnp.any(taken),
            extra={
                "at_rest": at_rest,
                "beta": control.beta,
                "excess": excess,
                "returns": returns,
            },
        )
        there = Home(
            jnp.where(taken[:, None], moved, x),
            jnp.where(taken[:, None], proposed.scores, memory.scores),
            jnp.where(taken, proposed.log_densities, memory.log_densities),
        )
        if self.late:
            there = where(returns, home, there)
        memory = BendingMemory(
            there.scores,
            there.log_densities,
            Found(found.round, where(accepted, following, descent), jnp.zeros_like(excess)),
            broad,
            flight,
            home,
            new_control,
        )
        following_state = State(state.step + 1, there.particles, memory)
        if not self.late and self.rounds.bends(x):
            following_state = where(pauses, state, following_state)
        return following_state, info

    def _streams(self, x):
        return len(x) >= streams.MANY and self.rounds.bends(x)

    def _streamed(self):
        return streams.Streams(self.rounds, self.phases, self.gain)

    def _tempered(self, x, scores, memory):
        """The scores of p^b N^(1 - b), with N the broad Gaussian of the new start."""
        if not self.late:
            return scores
        beta, broad = memory.control.beta, memory.broad
        towards = -broad.push(broad.enter(x)) / _BREADTH**2
        mixed = beta * scores + (1 - beta) * towards
        return jnp.where(beta < 1, mixed, scores)

    def _tempers(self, x) -> bool:
        return self.rounds.bends(x) and self.phases.num_temperatures > 0

    def _clumped(self, asked, x, scores, frame):
        if not self._tempers(x):
            return jnp.zeros((), bool)
        return jax.lax.cond(
            asked,
            lambda: separated(frame.enter(x), frame.pull(scores)),
            lambda: jnp.zeros((), bool),
        )

    def _far_from_gaussian(self, metric):
        if not (self.flies and isinstance(metric, DenseMetric)):
            return jnp.zeros((), bool)
        return jnp.max(metric.values) > _FAR_FROM_GAUSSIAN


def _cheap(key):
    """The same key for XLA's own generator: JAX's would be a third of the compilation."""
    data = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.tile(data, 4 // data.shape[-1]), impl="rbg")


def _broad(current):
    """A frame as wide in every direction as the clumps are in theirs, in units of a clump's width.

    The Fisher information tells that width; the clumps that were met may lie on a line, and those
    that were not beside it.
    """
    if not isinstance(current.metric, DenseMetric):
        return current.frame
    values, vectors = current.metric.values, current.metric.vectors
    wider = jnp.sqrt(jnp.max(values) / values)
    return DenseFrame(
        current.frame.mean,
        current.frame.factor @ (vectors * wider) @ vectors.T,
        (vectors / wider) @ vectors.T @ current.frame.inverse,
    )


def _paired_normal(key, x):
    """Normal draws, every second the negative of the one before: their odd moments are exact."""
    num, dim = x.shape
    half = jax.random.normal(key, ((num + 1) // 2, dim), x.dtype)
    return jnp.stack([half, -half], axis=1).reshape(-1, dim)[:num]
