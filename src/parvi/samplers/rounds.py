"""How ``AffineThenBend`` finds a velocity, and whether a step along it was good.

A velocity lives in a *round*: a frame, a metric and features, in which f = H^-1 W psi(z) is solved
in closed form. An affine round lasts one step; a bent one is frozen until its merit has fallen.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from parvi.fields.frame import AbstractFrame, DiagonalFrame, own_frame, tells_covariance
from parvi.fields.pfg.excess import stein_excess
from parvi.fields.pfg.functions import (
    AbstractFunctions,
    Linear,
    Parameters,
    RandomFeatures,
    Scaling,
)
from parvi.fields.pfg.metric import AbstractMetric, DenseMetric, DiagonalMetric
from parvi.fields.pfg.objective import Exact, Quadratic
from parvi.fields.pfg.solvers import Problem, ridge_weights
from parvi.interface import kl_rate

# More gained nothing at n = 512 (docs/decisions/0009-affine-then-bend.md).
_MAX_FEATURES = 128
# From the widest range of float32 to a hundred thousandth.
_HALVINGS = 24


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


class Found(NamedTuple):
    """A velocity with its round; ``excess`` is NaN unless the features are fresh."""

    round: Round
    descent: Descent
    excess: Float[Array, ""]


class Rounds(eqx.Module):
    """Finds velocities, affine or bent, and judges steps along them.

    Parameters
    ----------
    num_features
        k; None for n / 8, at most 128. 0 for affine ones alone.
    ridge
        On G, whose features are of order 1 in the whitened frame.
    clip
        Of the scores of affine velocities, in units of their median norm.
    """

    num_features: int | None
    ridge: float
    clip: float

    def bends(self, x: Float[Array, "n d"]) -> bool:
        """Whether there are particles enough to bend, and features asked for."""
        return self.num_features_of(x) > 0

    def start(self, x: Float[Array, "n d"]) -> Found:
        """A velocity of zero in a round of the right shapes."""

        def shapes(x):
            frame = own_frame(x)
            parameters = self._functions(x).init(jax.random.key(0), x)
            zero = jnp.zeros((), x.dtype)
            current = Round(frame, _metric(frame, x, x), parameters.frozen)
            return Found(current, Descent(parameters.trainable, x, zero), zero)

        # Nothing of it is used before the first step has found its own: nothing to compile.
        wanted = jax.eval_shape(shapes, x)
        return jax.tree_util.tree_map(lambda a: jnp.zeros(a.shape, a.dtype), wanted)

    def affine(self, x: Float[Array, "n d"], scores: Float[Array, "n d"], last: Found) -> Found:
        """The affine velocity, from clipped scores in the particles' own frame."""
        frame = own_frame(x)
        z, s = frame.enter(x), frame.pull(scores)
        s = clipped(s, self._limit(s))
        metric = _metric(frame, s, z)
        functions = _affine_functions(x)
        if isinstance(functions, Scaling):
            weights = metric.solve(functions.closed_form(z, s).T).T
        else:
            moment = s.T @ z / len(z)
            lin = (moment + moment.T) / 2 + jnp.eye(z.shape[1], dtype=z.dtype)
            weights = jnp.concatenate([jnp.mean(s, axis=0)[:, None], lin], axis=1)
            weights = metric.solve(weights.T).T
        values, divergences = functions.with_divergences(Parameters((), weights), z)
        # The affine features are the first of all: the weights of the others are zero.
        padded = jnp.zeros_like(last.descent.weights).at[:, : weights.shape[1]].set(weights)
        descent = Descent(padded, values, -kl_rate(values, divergences, s))
        return Found(Round(frame, metric, last.round.features), descent, _unknown(last))

    def bent(
        self, key: Key[Array, ""], x: Float[Array, "n d"], scores: Float[Array, "n d"], last: Found
    ) -> Found:
        """The velocity of a new round: frame, metric and features drawn afresh."""
        if not self.bends(x):
            return self.same(last)
        frame = own_frame(x)
        z, s = frame.enter(x), frame.pull(scores)
        functions = RandomFeatures(self.num_features_of(x))
        features = functions.informed(key, z, s)
        current = Round(frame, _metric(frame, s, s), features)
        excess = jnp.mean(stein_excess(functions, features, z, s, self.ridge))
        return Found(current, self._fit(current, z, s), excess)

    def same(self, last: Found) -> Found:
        """The velocity that is there, for a round that goes on."""
        return last._replace(excess=_unknown(last))

    def judge_affine(
        self,
        scores: Float[Array, "n d"],
        moved: Float[Array, "n d"],
        new_scores: Float[Array, "n d"],
        found: Found,
    ) -> tuple[Bool[Array, ""], Descent]:
        """Kept where the KL, with scores clipped as before, does not rise much along f there."""
        frame, descent = found.round.frame, found.descent
        functions = _affine_functions(moved)
        parameters = Parameters((), descent.weights[:, : _width(functions, moved)])
        values, divergences = functions.with_divergences(parameters, frame.enter(moved))
        s = clipped(frame.pull(new_scores), self._limit(frame.pull(scores)))
        rate = kl_rate(values, divergences, s)
        resolution = 8 * jnp.finfo(moved.dtype).eps * moved.shape[1]
        better = (rate <= 0.5 * jnp.abs(descent.merit)) | (jnp.abs(descent.merit) <= resolution)
        return better, descent

    def judge_bent(
        self, moved: Float[Array, "n d"], new_scores: Float[Array, "n d"], found: Found
    ) -> tuple[Bool[Array, ""], Descent]:
        """Kept where the merit falls; the velocity there is the next step's."""
        if not self.bends(moved):
            return jnp.zeros((), bool), found.descent
        frame = found.round.frame
        following = self._fit(found.round, frame.enter(moved), frame.pull(new_scores))
        return following.merit < found.descent.merit, following

    def num_features_of(self, x: Float[Array, "n d"]) -> int:
        """How many features so many particles bear."""
        # Never more than the particles can bear: an eighth of them, and none for fewer than 32.
        most = min(len(x) // 8, _MAX_FEATURES)
        chosen = (most if most >= 4 else 0) if self.num_features is None else self.num_features
        return chosen if tells_covariance(x) else 0

    def _functions(self, x) -> AbstractFunctions:
        return RandomFeatures(self.num_features_of(x)) if self.bends(x) else _affine_functions(x)

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
        typical = median(norms(s))
        return self.clip * jnp.maximum(typical, s.shape[1] ** 0.5)


def _shapes(functions, x):
    return jax.eval_shape(functions.init, jax.random.key(0), x)


def _width(functions, x) -> int:
    return _shapes(functions, x).trainable.shape[1]


def _unknown(last):
    return jnp.full_like(last.excess, jnp.nan)


def _affine_functions(x):
    return Linear() if tells_covariance(x) else Scaling()


def _metric(frame, left, right) -> AbstractMetric:
    """E[left right^T], symmetric and at least 1: what a Gaussian at rest has in its own frame."""
    if isinstance(frame, DiagonalFrame):
        return DiagonalMetric(jnp.maximum(jnp.abs(jnp.mean(left * right, axis=0)), 1.0))
    moment = left.T @ right / len(left)
    values, vectors = jnp.linalg.eigh((moment + moment.T) / 2)
    return DenseMetric(jnp.maximum(jnp.abs(values), 1.0), vectors)


def clipped(scores: Float[Array, "n d"], limit: Float[Array, ""]) -> Float[Array, "n d"]:
    """Scores, none longer than this."""
    lengths = norms(scores)[:, None]
    return scores * jnp.minimum(1.0, limit / jnp.where(lengths > 0, lengths, 1.0))


def median(positive: Float[Array, " n"]) -> Float[Array, ""]:
    """By halving on a log scale: a sort would gather what lies on several devices."""
    logs = jnp.log(jnp.maximum(positive, jnp.finfo(positive.dtype).tiny))

    def halve(_, bounds):
        middle = (bounds[0] + bounds[1]) / 2
        above = 2 * jnp.sum(logs <= middle) >= len(logs)
        return jnp.where(above, bounds[0], middle), jnp.where(above, middle, bounds[1])

    _, median = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.min(logs), jnp.max(logs)))
    return jnp.exp(median)


def norms(scores: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Of every row, also where the squares would overflow."""
    largest = jnp.max(jnp.abs(scores), axis=1)
    scaled = scores / jnp.where(largest > 0, largest, 1.0)[:, None]
    return largest * jnp.linalg.norm(scaled, axis=1)
