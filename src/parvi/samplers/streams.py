"""The default for very many particles: two arrays of their size, and sums over blocks of them.

Affine and bent rounds need of particles and scores nothing but means: with the features
psi = (1, z, bent) in a round's frame E[psi psi^T], E[s psi^T], E[s s^T] and the mean slopes give
the velocity, its merit, the trust region and the next frame. So a step is one pass: each block is
moved, its scores are taken, its share is added up, and the scores are forgotten. Beside the
particles and their proposals nothing of size n is kept.

What differs from ``AffineThenBend``: an affine step clips scores in the last step's frame instead
of its own, what n draws would have as excess is taken from some of the particles, and there are no
flights and no tempered path.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from parvi.evaluation import even_blocks, values_and_scores
from parvi.fields.frame import DenseFrame
from parvi.fields.pfg.excess import stein_noise
from parvi.fields.pfg.functions import RandomFeatures
from parvi.fields.pfg.metric import DenseMetric
from parvi.interface import Info, State
from parvi.samplers.phases import Control, Phases, at_the_floor, status_after, where
from parvi.samplers.rounds import Round, Rounds, clipped, median, norms

# Particles in a block, and from how many on they are streamed.
_BLOCK = 8192
MANY = 131_072
# Particles that stand for all where a mean need not be exact.
_SOME = 8192


class Sums(NamedTuple):
    """Means over the particles in a round's frame; psi = (1, z, bent)."""

    gram: Float[Array, "w w"]
    target: Float[Array, "d w"]
    fisher: Float[Array, "d d"]
    slopes: Float[Array, " k"]
    finite: Bool[Array, ""]


class StreamMemory(NamedTuple):
    """The carry beside the particles: nothing in it grows with their number."""

    round: Round
    sums: Sums
    control: Control


class Streams(eqx.Module):
    """``AffineThenBend`` in sums; parameters as there."""

    rounds: Rounds
    phases: Phases
    gain: float

    def init(self, key, particles, log_density) -> State:
        """The state before the first step."""
        dim, dtype = particles.shape[1], particles.dtype
        num_features = self.rounds.num_features_of(particles)
        features = jnp.zeros((num_features, dim), dtype), jnp.zeros(num_features, dtype)
        identity = jnp.eye(dim, dtype=dtype)
        metric = DenseMetric(jnp.ones(dim, dtype), identity)
        frame = _first_frame(particles)
        first = Round(frame, metric, features)
        limit = self._limit(particles, log_density, frame)
        _, sums = _passed(particles, None, first, log_density, limit)
        memory = StreamMemory(first, sums, self.phases.start(dtype))
        return State(jnp.zeros((), jnp.int32), particles, memory)

    def step(self, key, state, log_density) -> tuple[State, Info]:
        """One pass over the particles; a second where features are drawn afresh."""
        x, (last, sums, control) = state.particles, state.memory
        dim = x.shape[1]

        def affine():
            current, known = _reframed(last, sums)
            return current, known, jnp.full((), jnp.nan, x.dtype)

        def fresh():
            return self._fresh(key, x, last, sums, log_density)

        def same():
            return last, sums, jnp.full((), jnp.nan, x.dtype)

        which = jnp.where(control.affine, 0, jnp.where(control.fresh, 1, 2))
        current, sums, excess = jax.lax.switch(which, [affine, fresh, same])
        # An affine velocity has its metric from the regression of scores on particles.
        affine_metric = _metric(sums.target[:, 1 : dim + 1])
        metric = where(control.affine, affine_metric, current.metric)
        current = current._replace(metric=metric)
        weights = self._weights(current, sums, control.affine)
        merit = _along(weights, current, sums)

        floor, at_floor = at_the_floor(control, excess, self.gain)
        rested = control.rested | at_floor

        length = jnp.sqrt(jnp.max(jnp.sum((weights @ sums.gram) * weights, axis=1)))
        length = control.step_size * length
        factor = jnp.minimum(1.0, control.radius / jnp.where(length > 0, length, 1.0))
        limit = jnp.where(control.affine, self._limit(x, log_density, current.frame), jnp.inf)
        shift = control.step_size * factor * weights
        moved, proposed = _passed(x, shift, current, log_density, limit)

        new_weights = self._weights(current, proposed, control.affine)
        new_merit = _along(new_weights, current, proposed)
        rate = -_along(weights, current, proposed)
        resolution = 8 * jnp.finfo(x.dtype).eps * dim
        better = jnp.where(
            control.affine,
            (rate <= 0.5 * jnp.abs(merit)) | (jnp.abs(merit) <= resolution),
            new_merit < merit,
        )
        accepted = proposed.finite & better & ~rested
        descent, following = _Merit(merit), _Merit(jnp.where(control.affine, merit, new_merit))
        new = self.phases.following(
            control, x, True, excess, accepted, factor < 1, descent, following
        )
        new = new._replace(hesitated=control.hesitated | floor, rested=rested)
        new = where(control.rested, control, new)
        info = Info(
            status=status_after(control, new, proposed.finite).astype(jnp.int32),
            kl_rate=-merit,
            stein_ratio=-jnp.trace(sums.target[:, 1 : dim + 1]) / dim,
            step_size=control.step_size,
            accepted=accepted,
            extra={
                "at_rest": rested,
                "beta": control.beta,
                "excess": excess,
                "returns": jnp.zeros((), bool),
            },
        )
        memory = StreamMemory(current, where(accepted, proposed, sums), new)
        return State(state.step + 1, jnp.where(accepted, moved, x), memory), info

    def _fresh(self, key, x, last, sums, log_density):
        """A new round: frame and metric from the sums, features from some particles."""
        current, known = _reframed(last, sums)
        some = x[_rows(x)]
        s = current.frame.pull(values_and_scores(log_density, some)[1])
        z = current.frame.enter(some)
        functions = RandomFeatures(self.rounds.num_features_of(x))
        features = functions.informed(key, z, s)
        current = Round(current.frame, _metric(known.fisher), features)
        _, sums = _passed(x, None, current, log_density, jnp.asarray(jnp.inf, x.dtype))
        inverse = jnp.linalg.inv(_damped(sums.gram, self.rounds.ridge))
        basis = jnp.linalg.eigh(sums.fisher)[1]
        wanted = (sums.target + _mean_gradient(current, sums).T).T @ basis
        size = jnp.sum(wanted * (inverse @ wanted), axis=0)
        noise = stein_noise(functions, features, z, s, inverse, basis) / len(x)
        return current, sums, jnp.mean(size / noise)

    def _weights(self, current, sums, affine):
        dim = len(sums.target)
        moment = sums.target[:, 1 : dim + 1]
        lin = (moment + moment.T) / 2 + jnp.eye(dim, dtype=moment.dtype)
        plain = jnp.concatenate([sums.target[:, :1], lin], axis=1)
        plain = jnp.zeros_like(sums.target).at[:, : dim + 1].set(plain)
        bent = sums.target + _mean_gradient(current, sums).T
        factor = jax.scipy.linalg.cho_factor(_damped(sums.gram, self.rounds.ridge))
        bent = jax.scipy.linalg.cho_solve(factor, bent.T).T
        return current.metric.solve(jnp.where(affine, plain, bent).T).T

    def _limit(self, x, log_density, frame):
        _, scores = values_and_scores(log_density, x[_rows(x)])
        typical = median(norms(frame.pull(scores)))
        return self.rounds.clip * jnp.maximum(typical, x.shape[1] ** 0.5)


class _Merit(NamedTuple):
    merit: Float[Array, ""]


def _rows(x):
    """Of some particles, evenly over all."""
    return np.arange(min(len(x), _SOME)) * len(x) // min(len(x), _SOME)


def _damped(gram, ridge):
    return gram + ridge * jnp.eye(len(gram), dtype=gram.dtype)


def _metric(moment):
    values, vectors = jnp.linalg.eigh((moment + moment.T) / 2)
    return DenseMetric(jnp.maximum(jnp.abs(values), 1.0), vectors)


def _mean_gradient(current, sums):
    directions, _ = current.features
    dim = directions.shape[1]
    zero = jnp.zeros((1, dim), directions.dtype)
    identity = jnp.eye(dim, dtype=directions.dtype)
    return jnp.concatenate([zero, identity, sums.slopes[:, None] * directions])


def _along(weights, current, sums):
    """Minus the KL rate along W psi: E[f . s + div f]."""
    return jnp.sum(weights * (sums.target + _mean_gradient(current, sums).T))


def _passed(x, shift, current, log_density, limit):
    """Move every block by W psi (None: not at all), and add up its share of the sums."""
    num, dim = x.shape
    count = even_blocks(num, _BLOCK, within=8)
    size = -(-num // count)
    even = size * count == num
    functions = RandomFeatures(current.features[0].shape[0])
    frame = current.frame

    def psi(z):
        return functions.features_and_slopes(current.features, z)

    def body(i, carry):
        moved, sums = carry
        # Every count-th particle, so that each device of a mesh has its part of every block; the
        # last block of an odd number begins early, and what was there before counts nothing.
        if even:
            block = jax.lax.dynamic_index_in_dim(x.reshape(size, count, dim), i, 1, False)
            counts = jnp.ones(size, x.dtype)
        else:
            first = jnp.minimum(i * size, num - size)
            block = jax.lax.dynamic_slice_in_dim(x, first, size)
            counts = (first + jnp.arange(size) >= i * size).astype(x.dtype)
        z = frame.enter(block)
        if shift is not None:
            z = z + psi(z)[0] @ shift.T
            block = frame.leave(z)
            if even:
                moved = jax.lax.dynamic_update_index_in_dim(moved, block, i, 1)
            else:
                moved = _put(moved, block, counts, first)
        values, scores = values_and_scores(log_density, block)
        finite = jnp.all(jnp.isfinite(scores)) & jnp.all(jnp.isfinite(values))
        finite = finite & jnp.all(jnp.isfinite(block))
        s = clipped(frame.pull(scores), limit)
        features, slopes = psi(z)
        weighted = counts[:, None] * features
        sums = Sums(
            sums.gram + weighted.T @ features / num,
            sums.target + s.T @ weighted / num,
            sums.fisher + s.T @ (counts[:, None] * s) / num,
            sums.slopes + counts @ slopes / num,
            sums.finite & finite,
        )
        return moved, sums

    wide = 1 + dim + current.features[0].shape[0]
    zeros = Sums(
        jnp.zeros((wide, wide), x.dtype),
        jnp.zeros((dim, wide), x.dtype),
        jnp.zeros((dim, dim), x.dtype),
        jnp.zeros(wide - 1 - dim, x.dtype),
        jnp.ones((), bool),
    )
    if shift is None:
        moved = jnp.zeros((), x.dtype)
    else:
        moved = jnp.zeros((size, count, dim) if even else x.shape, x.dtype)
    moved, sums = jax.lax.fori_loop(0, count, body, (moved, zeros))
    return (x if shift is None else moved.reshape(num, dim)), sums


def _put(moved, block, counts, first):
    before = jax.lax.dynamic_slice_in_dim(moved, first, len(block))
    block = jnp.where(counts[:, None] > 0, block, before)
    return jax.lax.dynamic_update_slice_in_dim(moved, block, first, 0)


def _first_frame(x):
    """From some of the particles: it only has to be near."""
    return DenseFrame.of(x[_rows(x)])


def _reframed(last, sums):
    """The particles' own frame, and the affine sums in it; nothing bent is known there."""
    dim = len(sums.target)
    affine = slice(1, dim + 1)
    mean = sums.gram[0, affine]
    square = sums.gram[affine, affine] - jnp.outer(mean, mean)
    identity = jnp.eye(dim, dtype=mean.dtype)
    jitter = 100 * jnp.finfo(mean.dtype).eps * jnp.mean(jnp.diag(square))
    change = jnp.linalg.cholesky(square + jitter * identity)
    back = jax.scipy.linalg.solve_triangular(change, identity, lower=True)
    factor = last.frame.factor @ change
    inverse = jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
    frame = DenseFrame(last.frame.leave(mean), factor, inverse)
    score = change.T @ sums.target[:, 0]
    cross = sums.target[:, affine] - jnp.outer(sums.target[:, 0], mean)
    cross = change.T @ cross @ back.T
    gram = jnp.zeros_like(sums.gram).at[: dim + 1, : dim + 1].set(jnp.eye(dim + 1))
    target = jnp.zeros_like(sums.target).at[:, 0].set(score).at[:, affine].set(cross)
    features = jax.tree_util.tree_map(jnp.zeros_like, last.features)
    fisher = change.T @ sums.fisher @ change
    known = Sums(gram, target, fisher, jnp.zeros_like(sums.slopes), sums.finite)
    return Round(frame, last.metric, features), known
