"""Bend: rounds of flow along random features that are frozen for a round.

Each round freezes the frame, the metric and k tanh features, and solves f = W psi in closed form.
The metric is the Fisher information with eigenvalues raised to at least 1. With
B = E[s psi^T + grad psi] and G = E[psi psi^T], the merit

    tr(H^-1 B^T (G + ridge)^-1 B)

is minus the KL rate along f and a Stein discrepancy: whatever the ridge and the metric, it is zero
if the particles obey Stein's identity for every feature. Only steps that decrease it are kept, and
a round ends when it has fallen. For n independent draws the merit of fresh features has a known
mean; the ratio to it is the *excess* (``fields.pfg.excess``). Rounds go on until a fresh excess is
below 1 and no longer falls: from there on, a round only exchanges one set of features' noise for
another's.

The stage needs only means over the particles, so a step is one pass, in blocks.
It costs O(n k (k + d) + d^3).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.cloud import View
from parvi.fields.pfg.closed_form import NormalEquations
from parvi.fields.pfg.excess import excess_of
from parvi.fields.pfg.functions import Parameters, RandomFeatures
from parvi.fields.pfg.metric import DenseMetric
from parvi.fields.pfg.preconditioners import at_least_one
from parvi.geometry.frame import DenseFrame, InFrame, tells_covariance
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info
from parvi.samplers.keys import cheap
from parvi.status import Status
from parvi.stopping import Never

# More gained nothing at n = 512 (docs/decisions/0009-affine-then-bend.md).
_MAX_FEATURES = 128
# A fresh excess that no longer falls ends the stage at once if below this, else the second time.
_SURE = 0.6
# A round takes at least this many steps: the first may lower the merit of its own features only.
_MIN_AGE = 3
_FIRST_STEP, _LONGEST_STEP, _SHORTEST_STEP = 0.5, 2.0, 1e-6


class Round(NamedTuple):
    """The frame, metric and features that are frozen during a round."""

    frame: DenseFrame
    metric: DenseMetric
    features: tuple[Float[Array, "k d"], Float[Array, " k"]]


class Descent(NamedTuple):
    """The velocity: its weights, its root mean square in the frame, and its merit."""

    weights: Float[Array, "d w"]
    length: Float[Array, ""]
    merit: Float[Array, ""]


class Bending(NamedTuple):
    """The state of the rounds.

    ``fresh``: the next step begins a round. ``smallest``: the smallest fresh excess so far.
    ``hesitated``: an excess has already failed to fall once. ``num_rounds``: the rounds begun.
    """

    round: Round
    descent: Descent
    fresh: Bool[Array, ""]
    step_size: Float[Array, ""]
    age: Int[Array, ""]
    first_merit: Float[Array, ""]
    smallest: Float[Array, ""]
    hesitated: Bool[Array, ""]
    num_rounds: Int[Array, ""]


class _Pending(NamedTuple):
    old: Bending
    excess: Float[Array, ""]
    at_rest: Bool[Array, ""]
    hesitates: Bool[Array, ""]


class Bend(AbstractSampler):
    """Moves particles along functions that bend, until only the features' noise is left.

    Parameters
    ----------
    num_features
        Number of features k; None for n / 8, at most 128.
    ridge
        Ridge on G, whose features are of order 1 in the whitened frame.
    fall
        A round ends when the merit is below ``fall`` times its first value.
    max_age
        The largest number of steps in a round.
    gain
        The stage rests when a fresh excess below 1 is above ``gain`` times the smallest before.
        With infinity it never rests by itself.
    patience
        Number of rounds after which the stage gives up, as ``NOT_AT_REST``.
    max_steps
        The largest number of steps of the stage.
    """

    num_features: int | None = None
    ridge: float = 1e-2
    fall: float = 0.2
    max_age: int = 100
    gain: float = 0.8
    patience: int | None = None
    stopping_rule: AbstractStoppingRule = Never()
    max_steps: int = 5000

    @property
    def asks_means_only(self):
        return True

    def num_features_for(self, shape: tuple[int, ...]) -> int:
        """The number of features for n particles: n / 8, or 0 for fewer than 32 particles."""
        if not tells_covariance(shape):
            return 0
        most = min(shape[0] // 8, _MAX_FEATURES)
        return (most if most >= 4 else 0) if self.num_features is None else self.num_features

    def init(self, key, cloud):
        (_, dim), dtype = cloud.shape, cloud.dtype
        num_features = self.num_features_for(cloud.shape)
        if num_features < 1:
            raise ValueError(
                f"{cloud.shape[0]} particles in {dim} dimensions are too few to bend: it takes at "
                "least 32, and 1.5 per dimension. Run the affine stage alone with "
                "parvi.pfg(num_features=0), or give more particles."
            )
        square, zero = jnp.zeros((dim, dim), dtype), jnp.zeros((), dtype)
        # This round is a placeholder: the first step draws its own.
        features = jnp.zeros((num_features, dim), dtype), jnp.zeros(num_features, dtype)
        return Bending(
            round=Round(
                DenseFrame(square[0], square, square), DenseMetric(square[0], square), features
            ),
            descent=Descent(jnp.zeros((dim, 1 + dim + num_features), dtype), zero, zero),
            fresh=jnp.ones((), bool),
            step_size=jnp.asarray(_FIRST_STEP, dtype),
            age=jnp.zeros((), jnp.int32),
            first_merit=zero,
            smallest=jnp.asarray(jnp.finfo(dtype).max, dtype),
            hesitated=jnp.zeros((), bool),
            num_rounds=jnp.zeros((), jnp.int32),
        )

    def propose(self, key, cloud, memory):
        memory, excess = jax.lax.cond(
            memory.fresh,
            lambda: self._begun(cheap(key), cloud, memory),
            lambda: (memory, jnp.full((), jnp.nan, cloud.dtype)),
        )
        # If a fresh excess below 1 no longer falls, only the features' noise is left. This is sure
        # when it is far below 1, or the second time.
        floor = memory.fresh & (excess < 1) & (excess > self.gain * memory.smallest)
        at_rest = floor & ((excess < _SURE) | memory.hesitated)
        frame, descent = memory.round.frame, memory.descent
        functions = RandomFeatures(len(memory.round.features[1]))
        # A trust region of one standard deviation.
        step = memory.step_size / jnp.maximum(memory.step_size * descent.length, 1.0)
        parameters = Parameters(memory.round.features, step * descent.weights)

        def moved(block):
            z = frame.enter(block.particles)
            return frame.leave(z + functions.values(parameters, z))

        points = cloud.values(moved)
        return points, _Pending(memory, excess, at_rest, floor)

    def conclude(self, cloud, pending, arrived):
        old, excess, at_rest, hesitates = pending
        functions = RandomFeatures(len(old.round.features[1]))
        seen = View(arrived, InFrame(old.round.frame))
        found = NormalEquations.of(functions, old.round.features, seen)
        new = self._solved(old.round, found)
        accepted = (new.merit < old.descent.merit) & ~at_rest
        first = jnp.where(old.fresh, old.descent.merit, old.first_merit)
        longer = jnp.minimum(1.2 * old.step_size, _LONGEST_STEP)
        step_size = jnp.where(accepted, longer, 0.5 * old.step_size)
        age = jnp.where(old.fresh, 0, old.age) + 1
        descent = jax.tree_util.tree_map(lambda a, b: jnp.where(accepted, a, b), new, old.descent)
        # A round ends when its merit has fallen, when it is old, or when even short steps fail.
        ends = (descent.merit <= self.fall * first) & (age >= _MIN_AGE)
        ends = ends | (age >= self.max_age) | (step_size < _SHORTEST_STEP)
        memory = Bending(
            round=old.round,
            descent=descent,
            fresh=ends,
            step_size=jnp.where(ends, jnp.clip(step_size, 1e-3, _FIRST_STEP), step_size),
            age=age,
            first_merit=first,
            smallest=jnp.where(old.fresh, jnp.minimum(old.smallest, excess), old.smallest),
            hesitated=old.hesitated | hesitates,
            num_rounds=old.num_rounds + old.fresh,
        )
        status = jnp.where(at_rest, Status.CONVERGED, Status.RUNNING)
        if self.patience is not None:
            status = jnp.where(
                ~at_rest & ends & (memory.num_rounds >= self.patience), Status.NOT_AT_REST, status
            )
        info = Info.of(
            cloud,
            old.step_size,
            status=status,
            kl_rate=-old.descent.merit,
            gradients=0 if cloud.is_held else jnp.where(old.fresh, cloud.shape[0], 0),
            extra={"excess": excess},
        )
        return accepted, memory, info

    def _begun(self, key, cloud, memory):
        """A new round with its own frame, metric and features, and the excess of the features."""
        frame = DenseFrame.of(cloud.particles)
        seen = View(cloud, InFrame(frame))
        few = seen.some()
        functions = RandomFeatures(len(memory.round.features[1]))
        features = functions.informed(key, few.particles, few.scores)

        def sums(block, weights):
            fisher = block.scores.T @ (weights[:, None] * block.scores)
            return NormalEquations.share(functions, features, block, weights), fisher

        equations, fisher = seen.mean(sums)
        current = Round(frame, at_least_one(fisher), features)
        excess = jnp.mean(excess_of(functions, features, equations, fisher, seen, self.ridge))
        return memory._replace(round=current, descent=self._solved(current, equations)), excess

    def _solved(self, current: Round, equations: NormalEquations) -> Descent:
        """The velocity in a round; its merit is minus the KL rate along it."""
        weights = equations.weights(current.metric, self.ridge)
        squares = jnp.sum((weights @ equations.gram) * weights, axis=1)
        return Descent(weights, jnp.sqrt(jnp.max(squares)), jnp.sum(weights * equations.wanted))
