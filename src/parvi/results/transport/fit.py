"""Fits transport maps: bent layers, one after another, each judged by points it has not seen.

Layers that were fitted to one set of points learn its noise. So before every round fresh
scrambled-Sobol points of N(0, I) are pushed through the map so far, and the next layer is fitted to
the velocity of PFG there, in closed form. The exact KL on the next fresh points, with and without
the layer, decides whether it is kept: the map is never worse than its affine part.

``gaussianised`` goes the other way: the same rounds take particles to N(0, I). It serves where no
flow leads from a Gaussian to the target but Hamiltonian transitions have made particles of it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from parvi.cloud import Cloud, LogDensity, View
from parvi.evaluation import quickly
from parvi.fields.pfg.closed_form import NormalEquations
from parvi.fields.pfg.functions import RandomFeatures
from parvi.fields.pfg.preconditioners import at_least_one
from parvi.geometry.frame import DenseFrame, InFrame
from parvi.results.transport.chain import Chain, Stack, sobol_normal
from parvi.results.transport.layers import AbstractLayer, Affine, Bent, Inverted, features

# Fresh points of a round: at least the first number, and at least the second per dimension.
_NUM_POINTS, _PER_DIMENSION = 2048, 8
_NUM_FEATURES, _RIDGE = 128, 0.1
# Dimensions up to which every axis has features for its tails, the steepness of these, and the
# bound in standard deviations.
_MOST_TAILED, _STEEPNESS, _BEYOND = 64, 2.0, 1.0
# Rounds at most, the first step, and the step below which there is nothing left to gain.
_MOST_ROUNDS, _FIRST_STEP, _LAST_STEP = 16, 0.5, 0.1
# Gain in nats below which the fit ends.
_LITTLE = 1e-3


class Judged(NamedTuple):
    """The exact KL, up to a constant, without and with the layer on trial."""

    before: Float[Array, ""]
    after: Float[Array, ""]
    kept: Bool[Array, ""]


class _Fitting(NamedTuple):
    """Bent layers, the first ``used`` of which are in use; the layer on trial; the next step."""

    bent: Bent
    used: Int[Array, ""]
    candidate: Bent
    step: Float[Array, ""]

    @classmethod
    def begun(cls, frame: DenseFrame) -> "_Fitting":
        dim, dtype = len(frame.mean), frame.mean.dtype
        # In NumPy, as JAX would compile a program for every shape.
        num_tails = _num_tails(dim)
        num = _NUM_FEATURES + num_tails
        shapes = (num, dim), (num,), (dim, 1 + dim + num)
        rest: list[Any] = [np.zeros(shape, dtype) for shape in shapes]
        empty = Bent(
            jax.tree_util.tree_map(np.asarray, frame), rest[0], rest[1], rest[2], num_tails
        )
        bent = jax.tree_util.tree_map(lambda a: np.stack([a] * _MOST_ROUNDS), empty)
        numbers: list[Any] = [np.zeros((), np.int32), np.asarray(_FIRST_STEP, dtype)]
        return jax.tree_util.tree_map(jnp.asarray, cls(bent, numbers[0], empty, numbers[1]))

    def moved(self, points: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """The points' images under all layers in use, and the log determinants."""

        def one(i, state):
            points, log_det = state
            layer = jax.tree_util.tree_map(lambda leaf: leaf[i], self.bent)
            points, own = layer.moved(points)
            return points, log_det + own

        start = points, jnp.zeros(points.shape[:1], points.dtype)
        return jax.lax.fori_loop(0, self.used, one, start)

    def settled(self, kept: Bool[Array, ""]) -> "_Fitting":
        """The fitting after the layer on trial was kept or not."""
        bent = jax.tree_util.tree_map(
            lambda every, one: every.at[self.used].set(jnp.where(kept, one, every[self.used])),
            self.bent,
            self.candidate,
        )
        return self._replace(bent=bent, used=self.used + kept)

    def layers(self) -> tuple[AbstractLayer, ...]:
        """The layers in use."""
        count = int(self.used)
        if not count:
            return ()
        return (Stack(jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[:count], self.bent)),)


def streamed(
    log_density: LogDensity, frame: DenseFrame, key: Key[Array, ""]
) -> tuple[Chain, list[Judged]]:
    """The map from N(0, I) whose affine part is a frame, and what was found in every round."""
    dim, dtype = len(frame.mean), frame.mean.dtype
    num = _num_points(dim)
    affine = Affine(frame)
    state, found = _Fitting.begun(frame), []
    for number in range(_MOST_ROUNDS + 1):
        points = jnp.asarray(sobol_normal(key, num, dim, number), dtype)
        state, judged = _forth(log_density, affine, state, key, np.uint32(number), points)
        found.append(judged)
        if number and _is_over(state, judged):
            break
    return Chain((affine, *state.layers())), found


def gaussianised(
    particles: Float[Array, "n d"], held_out: Float[Array, "m d"], key: Key[Array, ""]
) -> tuple[AbstractLayer, list[Judged]]:
    """A map from N(0, I) to about the distribution of the particles, judged by held-out ones."""
    frame = DenseFrame.of(particles)
    identity = DenseFrame(
        jnp.zeros_like(frame.mean), jnp.eye(len(frame.mean)), jnp.eye(len(frame.mean))
    )
    identity = jax.tree_util.tree_map(lambda a: a.astype(frame.mean.dtype), identity)
    affine = Inverted(Affine(frame))
    state, found = _Fitting.begun(identity), []
    for number in range(_MOST_ROUNDS + 1):
        state, judged = _back(affine, state, key, np.uint32(number), particles, held_out)
        found.append(judged)
        if number and _is_over(state, judged):
            break
    return Inverted(Chain((affine, *state.layers()))), found


def _is_over(state: _Fitting, judged: Judged) -> bool:
    little = float(judged.before - judged.after) < _LITTLE
    full = int(state.used) >= _MOST_ROUNDS
    return full or float(state.step) < _LAST_STEP or (bool(judged.kept) and little)


@quickly
def _forth(log_density, affine, state: _Fitting, key, number, z) -> tuple[_Fitting, Judged]:
    """Judge the layer on trial by fresh points, and fit the next one to them."""
    key = jax.random.fold_in(key, number)
    x, first_det = affine.moved(z)
    old, old_det = state.moved(x)
    new, new_det = state.candidate.moved(old)
    clouds = Cloud.at(log_density, jnp.concatenate([old, new]))
    values, scores = clouds.log_densities, clouds.scores
    num = len(z)
    before = -jnp.mean(values[:num] + old_det + first_det)
    after = -jnp.mean(values[num:] + old_det + new_det + first_det)
    judged = _judged(state, before, after, jnp.all(jnp.isfinite(scores[num:])))
    particles, scores, values = jax.tree_util.tree_map(
        lambda rows: jnp.where(judged.kept, rows[num:], rows[:num]),
        (clouds.particles, scores, values),
    )
    cloud = Cloud(particles, scores, values, log_density)
    return _next(key, state, judged, cloud), judged


@quickly
def _back(affine, state: _Fitting, key, number, particles, held_out) -> tuple[_Fitting, Judged]:
    """The same towards N(0, I), judged by the log likelihood of held-out particles."""
    key = jax.random.fold_in(key, number)
    x, first_det = affine.moved(held_out)
    old, old_det = state.moved(x)
    new, new_det = state.candidate.moved(old)
    before = -jnp.mean(_normal(old) + old_det + first_det)
    after = -jnp.mean(_normal(new) + new_det + old_det + first_det)
    judged = _judged(state, before, after, jnp.all(jnp.isfinite(new)))
    own = state.moved(affine(particles))[0]
    own = jnp.where(judged.kept, state.candidate(own), own)
    cloud = Cloud(own, -own, _normal(own), lambda x: -0.5 * jnp.sum(x**2))
    return _next(key, state, judged, cloud), judged


def _normal(z):
    return -0.5 * jnp.sum(z**2, axis=1)


def _judged(state: _Fitting, before, after, finite) -> Judged:
    # The first candidate is the identity; a comparison with NaN is false.
    begun = jnp.any(state.candidate.weights != 0)
    return Judged(before, after, begun & (after < before) & finite)


def _next(key, state: _Fitting, judged: Judged, cloud) -> _Fitting:
    """The fitting with the layer on trial settled, and the next one on trial."""
    begun = jnp.any(state.candidate.weights != 0)
    step = jnp.where(judged.kept | ~begun, state.step, state.step / 2)
    return state.settled(judged.kept)._replace(candidate=_layer(key, cloud, step), step=step)


def _layer(key, cloud, step) -> Bent:
    """A step along the velocity of PFG, as in a round of bending."""
    frame = DenseFrame.of(cloud.particles)
    seen = View(cloud, InFrame(frame))
    num_tails = _num_tails(seen.particles.shape[1])
    bounded = RandomFeatures(_NUM_FEATURES).informed(key, seen.particles, seen.scores)
    directions, offsets = _with_tails(bounded, num_tails)
    functions = features(len(offsets), num_tails)

    def sums(block, weights):
        fisher = block.scores.T @ (weights[:, None] * block.scores)
        return NormalEquations.share(functions, (directions, offsets), block, weights), fisher

    equations, fisher = seen.mean(sums)
    weights = equations.weights(at_least_one(fisher), _RIDGE)
    length = jnp.sqrt(jnp.max(jnp.sum((weights @ equations.gram) * weights, axis=1)))
    # A trust region of one standard deviation.
    weights = weights * step / jnp.maximum(step * length, 1.0)
    return Bent(frame, directions, offsets, weights, num_tails)


def _num_tails(dim: int) -> int:
    """The number of features that grow without an end."""
    return 2 * dim if dim <= _MOST_TAILED else 0


def _with_tails(bounded: tuple[Array, Array], num_tails: int) -> tuple[Array, Array]:
    """Bounded features, and two for every axis that grow to either side, beyond a bound.

    A sum of bounded features has a Gaussian's tails, and the log of a scale has longer ones.
    """
    if not num_tails:
        return bounded
    directions, offsets = bounded
    axes = _STEEPNESS * jnp.eye(num_tails // 2, dtype=directions.dtype)
    bounds = jnp.full(num_tails, -_STEEPNESS * _BEYOND, offsets.dtype)
    return jnp.concatenate([directions, axes, -axes]), jnp.concatenate([offsets, bounds])


def _num_points(dim: int) -> int:
    """A power of two, as Sobol's points want it."""
    return 1 << int(np.ceil(np.log2(max(_NUM_POINTS, _PER_DIMENSION * dim))))
