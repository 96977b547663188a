"""The default: first an affine flow, then one that bends, each at rest before the next.

**Affine.** In coordinates z whitened by the particles' own mean and covariance, the affine map
f(z) = H^-1 (E[s] + (E[s z^T] + I) z) is linear PFG, with H the curvature that the regression of
scores on particles sees, its eigenvalues at least 1. Scores are clipped, in these coordinates, at
``clip`` times their median norm: a few particles where the density is wild do not rule the map,
and where all are far away all are clipped alike. A step is kept where the KL still falls along f
at its end; the trust region, one standard deviation, doubles with every kept step that it
shortened.

**Bending.** In rounds. In each the frame and k tanh features are frozen and f = W psi is solved in
closed form in the metric of the Fisher information, its eigenvalues at least 1. With
B = E[s psi^T + grad psi] and G = E[psi psi^T] the merit

    tr(H^-1 B^T (G + ridge)^-1 B)

is minus the KL rate along f and a Stein discrepancy: it is zero where the particles obey Stein's
identity for every feature, whatever the ridge and the metric. Only steps that decrease it are
kept. A round ends when the merit has fallen tenfold. For n independent draws the merit of fresh
features has a known mean, the *null level*; rounds go on until a fresh merit is below it and no
longer falls: from there on a round only exchanges one set of features' noise for another's.

**Modes.** If the particles at rest lie in separated clumps, their weights are those of the start.
Then once more from a broad Gaussian, along p^b N^(1 - b) with b rising to 1, a round each.

With fewer than 1.5 particles a dimension a covariance cannot be told: the frame is diagonal, the
map f_j = b_j + a_j z_j, and nothing bends. O(n d) memory there, O(n d + n k + d^2) otherwise.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.fields.clumps import separated
from parvi.fields.frame import AbstractFrame, DenseFrame, DiagonalFrame
from parvi.fields.pfg.excess import stein_excess
from parvi.fields.pfg.functions import Linear, Parameters, RandomFeatures, Scaling
from parvi.fields.pfg.metric import AbstractMetric, DenseMetric, DiagonalMetric
from parvi.fields.pfg.objective import Exact, Quadratic
from parvi.fields.pfg.solvers import Problem, ridge_weights
from parvi.interface import AbstractSampler, AbstractStoppingRule, Cloud, Info, State, kl_rate
from parvi.samplers.stopping import AtRest
from parvi.status import Status

_MAX_AFFINE_STEP = 0.5
_MAX_BENT_STEP = 2.0
_MIN_STEP = 1e-8
_FIRST_BETA = 0.01
_MAX_FEATURES = 128
# Of the broad Gaussian, in sds of the particles: its centre then tilts the modes' weights little.
_BREADTH = 2.0


class Round(NamedTuple):
    """What is frozen while a velocity is followed: frame, metric and features."""

    frame: AbstractFrame
    metric: AbstractMetric
    features: Any


class Descent(NamedTuple):
    """A velocity in the round's frame: its weights, its values at the particles, its merit."""

    weights: Float[Array, "d w"]
    values: Float[Array, "n d"]
    merit: Float[Array, ""]


class Control(NamedTuple):
    """Where the run is.

    ``fresh``: a round begins with the next step. ``excess``: the smallest of the fresh ones.
    ``rested``: the run is over; further steps, where some were asked for, change nothing.
    """

    affine: Bool[Array, ""]
    fresh: Bool[Array, ""]
    step_size: Float[Array, ""]
    radius: Float[Array, ""]
    quiet: Int[Array, ""]
    age: Int[Array, ""]
    first_merit: Float[Array, ""]
    excess: Float[Array, ""]
    beta: Float[Array, ""]
    tempered: Bool[Array, ""]
    rested: Bool[Array, ""]


class BendingMemory(NamedTuple):
    """The carry beside the particles."""

    scores: Float[Array, "n d"]
    log_densities: Float[Array, " n"]
    round: Round
    descent: Descent
    broad: AbstractFrame
    control: Control


class AffineThenBend(AbstractSampler):
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
        ends below a hundredth of that, five times in a row.
    fall
        A round of bending ends when the merit is below ``fall`` times its first value,
    max_age
        or after so many steps.
    gain
        The last round is the one after which a fresh excess below 1 is above ``gain`` times the
        smallest before.
    num_temperatures
        Values of b where there are separated clumps; 0 to never temper.
    max_steps
        Ends the run at the latest.
    """

    num_features: int | None
    ridge: float
    clip: float
    share: float
    fall: float
    max_age: int
    gain: float
    num_temperatures: int
    stopping_rule: AbstractStoppingRule
    max_steps: int

    def __init__(
        self,
        num_features: int | None = None,
        ridge: float = 1e-2,
        clip: float = 5.0,
        share: float = 1.0,
        fall: float = 0.1,
        max_age: int = 100,
        gain: float = 0.8,
        num_temperatures: int = 40,
        max_steps: int = 3000,
    ):
        self.num_features = num_features
        self.ridge = ridge
        self.clip = clip
        self.share = share
        self.fall = fall
        self.max_age = max_age
        self.gain = gain
        self.num_temperatures = num_temperatures
        self.stopping_rule = AtRest()
        self.max_steps = max_steps

    def init(self, key, particles, log_density):
        cloud = Cloud.at(log_density, particles)
        dtype = particles.dtype
        zero, never = jnp.zeros((), dtype), jnp.zeros((), bool)
        control = Control(
            affine=jnp.ones((), bool),
            fresh=never,
            step_size=jnp.asarray(_MAX_AFFINE_STEP, dtype),
            radius=jnp.ones((), dtype),
            quiet=jnp.zeros((), jnp.int32),
            age=jnp.zeros((), jnp.int32),
            first_merit=zero,
            excess=jnp.asarray(jnp.finfo(dtype).max, dtype),
            beta=jnp.ones((), dtype),
            tempered=never,
            rested=never,
        )
        frame = self._frame(particles)
        # Only shapes: the first round draws its own.
        functions = self._functions(particles)
        shapes = jax.eval_shape(functions.init, key, particles)
        parameters = jax.tree_util.tree_map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        metric = _metric(frame, particles, particles)
        memory = BendingMemory(
            cloud.scores,
            cloud.log_densities,
            Round(frame, metric, parameters.frozen),
            Descent(parameters.trainable, jnp.zeros_like(particles), zero),
            frame,
            control,
        )
        return State(jnp.zeros((), jnp.int32), particles, memory)

    def step(self, key, state, log_density):
        key_round, key_broad = jax.random.split(_cheap(key))
        x, memory = state.particles, state.memory
        control = memory.control
        scores = self._tempered(x, memory.scores, memory)

        # The velocity: the last step's where its round goes on, else a new one.
        current, descent, excess = jax.lax.switch(
            jnp.where(control.affine, 1, jnp.where(control.fresh, 2, 0)),
            [
                lambda: (memory.round, memory.descent, jnp.full_like(control.excess, jnp.nan)),
                lambda: self._affine(x, scores, memory),
                lambda: self._bent(key_round, x, scores, memory),
            ],
        )

        # A fresh excess that is below 1 and falls no more: what is left is the features' noise.
        at_floor = control.fresh & (control.beta >= 1) & (excess < 1)
        at_floor = at_floor & (excess > self.gain * control.excess)
        again = self._clumped(at_floor & ~control.tempered, x, scores, current.frame)

        # The move, or a new start from a broad Gaussian.
        displacement, limited = self._displacement(descent, control)
        broad = _where(again, current.frame, memory.broad)
        start = broad.leave(_BREADTH * _paired_normal(key_broad, x))
        moved = current.frame.leave(current.frame.enter(x) + displacement)
        moved = jnp.where(again, start, moved)
        proposed = Cloud.at(log_density, moved)
        new_scores = self._tempered(moved, proposed.scores, memory)
        better, following = jax.lax.cond(
            control.affine,
            lambda: self._judge_affine(scores, moved, new_scores, current, descent),
            lambda: self._judge_bent(moved, new_scores, current, descent),
        )
        accepted = proposed.finite & jnp.where(at_floor, again, better) & ~control.rested

        new_control = self._next(control, x, excess, accepted, limited, descent, following)
        new_control = _where(again, self._restarted(new_control), new_control)
        if self._bends(x):
            at_rest = control.rested | (at_floor & ~again)
            new_control = _where(control.rested, control, new_control._replace(rested=at_rest))
        else:
            at_rest = new_control.quiet >= 5
        failure = jnp.where(proposed.finite, Status.STALLED, Status.NONFINITE)
        stalled = control.affine & (new_control.step_size < _MIN_STEP)
        info = Info(
            status=jnp.where(stalled, failure, Status.RUNNING).astype(jnp.int32),
            kl_rate=-descent.merit,
            stein_ratio=Cloud(x, memory.scores, memory.log_densities, log_density).stein_ratio(),
            step_size=control.step_size,
            accepted=accepted,
            extra={"at_rest": at_rest, "beta": control.beta, "excess": excess},
        )
        memory = BendingMemory(
            jnp.where(accepted, proposed.scores, memory.scores),
            jnp.where(accepted, proposed.log_densities, memory.log_densities),
            current,
            _where(accepted, following, descent),
            broad,
            new_control,
        )
        return State(state.step + 1, jnp.where(accepted, moved, x), memory), info

    def _dense(self, x) -> bool:
        num, dim = x.shape
        return num >= 1.5 * dim + 2

    def _num_features(self, x) -> int:
        # Never more than the particles can bear: an eighth of them, and none for fewer than 32.
        most = min(len(x) // 8, _MAX_FEATURES)
        chosen = (most if most >= 4 else 0) if self.num_features is None else self.num_features
        return chosen if self._dense(x) else 0

    def _bends(self, x) -> bool:
        return self._num_features(x) > 0

    def _functions(self, x):
        if not self._dense(x):
            return Scaling()
        if not self._bends(x):
            return Linear()
        return RandomFeatures(self._num_features(x))

    def _frame(self, x) -> AbstractFrame:
        return DenseFrame.of(x) if self._dense(x) else DiagonalFrame.of(x)

    def _tempered(self, x, scores, memory):
        """The scores of p^b N^(1 - b), with N the broad Gaussian of the new start."""
        if not self._tempers(x):
            return scores
        beta, broad = memory.control.beta, memory.broad
        towards = -broad.push(broad.enter(x)) / _BREADTH**2
        mixed = beta * scores + (1 - beta) * towards
        return jnp.where(beta < 1, mixed, scores)

    def _tempers(self, x) -> bool:
        return self._bends(x) and self.num_temperatures > 0

    def _clumped(self, asked, x, scores, frame):
        if not self._tempers(x):
            return jnp.zeros((), bool)
        return jax.lax.cond(
            asked,
            lambda: separated(frame.enter(x), frame.pull(scores)),
            lambda: jnp.zeros((), bool),
        )

    def _affine(self, x, scores, memory):
        """The affine velocity, from clipped scores in the particles' own frame."""
        frame = self._frame(x)
        z, s = frame.enter(x), frame.pull(scores)
        s = _clipped(s, self._limit(s))
        metric = _metric(frame, s, z)
        functions = _affine_functions(frame)
        if isinstance(functions, Scaling):
            weights = metric.solve(functions.closed_form(z, s).T).T
        else:
            weights = self._weights(functions, (), metric, z, s)
        values, divergences = functions.with_divergences(Parameters((), weights), z)
        merit = -kl_rate(values, divergences, s)
        padded = jnp.zeros_like(memory.descent.weights).at[:, : weights.shape[1]].set(weights)
        current = Round(frame, metric, memory.round.features)
        return current, Descent(padded, values, merit), jnp.full_like(merit, jnp.nan)

    def _bent(self, key, x, scores, memory):
        """A new round: frame, metric and features drawn afresh, and frozen from here on."""
        if not self._bends(x):
            return memory.round, memory.descent, jnp.full_like(memory.descent.merit, jnp.nan)
        frame = self._frame(x)
        z, s = frame.enter(x), frame.pull(scores)
        features = self._functions(x).informed(key, z, s)
        current = Round(frame, _metric(frame, s, s), features)
        excess = jnp.mean(stein_excess(self._functions(x), features, z, s, self.ridge))
        return current, self._fit(current, z, s), excess

    def _fit(self, current, z, s):
        functions = self._functions(z)
        weights = self._weights(functions, current.features, current.metric, z, s)
        parameters = Parameters(current.features, weights)
        values, divergences = functions.with_divergences(parameters, z)
        return Descent(weights, values, -kl_rate(values, divergences, s))

    def _weights(self, functions, frozen, metric, z, s):
        problem = Problem(functions, Exact(), Quadratic(), metric, 0.0, z, s)
        return ridge_weights(problem, frozen, self.ridge)

    def _limit(self, s):
        typical = jnp.median(_norms(s))
        return self.clip * jnp.maximum(typical, s.shape[1] ** 0.5)

    def _displacement(self, descent, control):
        """A step, shortened to the trust region; and whether it was."""
        length = control.step_size * jnp.max(jnp.sqrt(jnp.mean(descent.values**2, axis=0)))
        factor = jnp.minimum(1.0, control.radius / jnp.where(length > 0, length, 1.0))
        return control.step_size * factor * descent.values, factor < 1

    def _judge_affine(self, scores, moved, new_scores, current, descent):
        """Kept where the KL, with scores clipped as before, does not rise much along f there."""
        frame = current.frame
        functions = _affine_functions(frame)
        width = moved.shape[1] + 1 if isinstance(frame, DenseFrame) else 2
        parameters = Parameters((), descent.weights[:, :width])
        values, divergences = functions.with_divergences(parameters, frame.enter(moved))
        s = _clipped(frame.pull(new_scores), self._limit(frame.pull(scores)))
        rate = kl_rate(values, divergences, s)
        resolution = 8 * jnp.finfo(moved.dtype).eps * moved.shape[1]
        better = (rate <= 0.5 * jnp.abs(descent.merit)) | (jnp.abs(descent.merit) <= resolution)
        return better, descent

    def _judge_bent(self, moved, new_scores, current, descent):
        """Kept where the merit falls; its velocity is the next step's."""
        if not self._bends(moved):
            return jnp.zeros((), bool), descent
        frame = current.frame
        following = self._fit(current, frame.enter(moved), frame.pull(new_scores))
        return following.merit < descent.merit, following

    def _next(self, control, x, excess, accepted, limited, descent, following):
        """The control after a step that was no new start."""
        num, dim = x.shape
        affine = control.affine
        # The affine phase is over when its rate is small often enough.
        share = self.share if self._bends(x) else 0.01 * self.share
        bound = dim * max(share / num, 8 * float(jnp.finfo(x.dtype).eps))
        quiet = jnp.where(affine & accepted & (descent.merit <= bound), control.quiet + 1, 0)
        rests = (quiet >= 2) if self._bends(x) else jnp.zeros((), bool)
        radius = jnp.where(limited, 2 * control.radius, control.radius)
        radius = jnp.where(accepted, radius, jnp.maximum(control.radius / 4, 1.0))
        limit = jnp.where(affine, _MAX_AFFINE_STEP, _MAX_BENT_STEP).astype(x.dtype)
        step_size = jnp.where(
            accepted, jnp.minimum(1.2 * control.step_size, limit), 0.5 * control.step_size
        )
        # A round ends when its merit has fallen, when it is old, or when no step is short enough.
        first = jnp.where(control.fresh, descent.merit, control.first_merit)
        age = jnp.where(control.fresh, 0, control.age) + 1
        merit = jnp.where(accepted, following.merit, descent.merit)
        # Each temperature has but one round: it comes closer to rest.
        fall = jnp.where(control.beta < 1, 0.3 * self.fall, self.fall)
        ends = (merit <= fall * first) | (age >= self.max_age) | (step_size < 1e-6)
        ends = (~affine & ends) | rests
        # Tempered rounds do not count: each has another target.
        counted = control.fresh & (control.beta >= 1)
        smallest = jnp.where(counted, jnp.minimum(control.excess, excess), control.excess)
        warmer = jnp.minimum(control.beta * self._ratio(), 1.0)
        return Control(
            affine=affine & ~rests,
            fresh=ends,
            step_size=jnp.where(ends, jnp.clip(step_size, 1e-3, 0.5), step_size),
            radius=jnp.where(affine & ~rests, radius, 1.0),
            quiet=quiet,
            age=age,
            first_merit=first,
            excess=smallest,
            beta=jnp.where(ends & ~affine, warmer, control.beta),
            tempered=control.tempered,
            rested=control.rested,
        )

    def _ratio(self):
        return _FIRST_BETA ** (-1 / max(self.num_temperatures - 1, 1))

    def _restarted(self, control):
        """The control after a new start from the broad Gaussian."""
        return control._replace(
            fresh=jnp.ones((), bool),
            step_size=jnp.full_like(control.step_size, 0.5),
            excess=jnp.full_like(control.excess, jnp.finfo(control.excess.dtype).max),
            beta=jnp.full_like(control.beta, _FIRST_BETA),
            tempered=jnp.ones((), bool),
        )


def _cheap(key):
    """The same key for XLA's own generator: JAX's would be a third of the compilation."""
    data = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.tile(data, 4 // data.shape[-1]), impl="rbg")


def _paired_normal(key, x):
    """Normal draws, the second half the negatives of the first: their odd moments are exact."""
    num, dim = x.shape
    half = jax.random.normal(key, ((num + 1) // 2, dim), x.dtype)
    return jnp.concatenate([half, -half])[:num]


def _affine_functions(frame):
    return Linear() if isinstance(frame, DenseFrame) else Scaling()


def _metric(frame, left, right) -> AbstractMetric:
    """E[left right^T], symmetric and at least 1: what a Gaussian at rest has in its own frame."""
    if isinstance(frame, DiagonalFrame):
        return DiagonalMetric(jnp.maximum(jnp.abs(jnp.mean(left * right, axis=0)), 1.0))
    moment = left.T @ right / len(left)
    values, vectors = jnp.linalg.eigh((moment + moment.T) / 2)
    return DenseMetric(jnp.maximum(jnp.abs(values), 1.0), vectors)


def _clipped(scores, limit):
    norms = _norms(scores)[:, None]
    return scores * jnp.minimum(1.0, limit / jnp.where(norms > 0, norms, 1.0))


def _norms(scores):
    """Of every row, also where the squares would overflow."""
    largest = jnp.max(jnp.abs(scores), axis=1)
    scaled = scores / jnp.where(largest > 0, largest, 1.0)[:, None]
    return largest * jnp.linalg.norm(scaled, axis=1)


def _where(condition, new, old):
    return jax.tree_util.tree_map(lambda a, b: jnp.where(condition, a, b), new, old)
