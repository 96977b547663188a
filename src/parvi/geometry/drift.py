"""Drift: whether transitions that leave the target invariant leave the particles where they are.

Every particle is a chain of its own, so the change of a moment has a standard error from the n
changes. A moment that moves by more than chance was wrong, or is still on its way.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from parvi.cloud import Place
from parvi.geometry.frame import (
    AbstractGaussianFrame,
    DenseFrame,
    frame_for_flights,
    tells_covariance,
)

# A drift of more than this is not chance.
BOUND = 1.0
# A normal score of this size, of a sum of all squared changes or of a tail, is not chance: 5 in
# 10 000.
_UNLIKELY = 3.3
# Number of particles at which skewness doubles the largest errors.
_SKEW = 10.0
# Tails are tested from this many particles per dimension on.
_MANY = 5
# A correlation between two places of a particle of this many standard errors is not chance.
_REMEMBERED = 2.0


class Axes(NamedTuple):
    """The directions along which moments are taken.

    ``frame``: the frame of the particles. ``crossed``: the frame of every second particle, if
    these determine their covariance. It is used for the squares of the others: in a frame that is
    fitted to the particles themselves, even independent draws have variances that are too small.
    """

    frame: AbstractGaussianFrame
    crossed: DenseFrame | None

    @classmethod
    def of(cls, place: Place) -> "Axes":
        """The axes of these particles."""
        frame = frame_for_flights(place.particles, place.scores)
        half = place.particles[::2]
        return cls(frame, DenseFrame.of(half) if tells_covariance(half.shape) else None)


class Moments(NamedTuple):
    """For every particle, sums over its transitions.

    ``z``: the place in the frame. ``squares``: the square of each standardised coordinate.
    ``crossed``: the squares of every second particle in the crossed frame.
    """

    z: Float[Array, "n d"]
    squares: Float[Array, "n d"]
    crossed: Float[Array, "h d"] | None

    @classmethod
    def at(cls, axes: Axes, particles: Float[Array, "n d"]) -> "Moments":
        """The moments of one visit."""
        frame, crossed = axes
        squares = ((particles - frame.mean) / frame.sds) ** 2
        other = None if crossed is None else crossed.enter(particles[1::2]) ** 2
        return cls(frame.enter(particles), squares, other)


def added(total: Moments, moments: Moments, when: Bool[Array, ""]) -> Moments:
    """The sum, if these moments count."""
    return jax.tree_util.tree_map(lambda a, b: jnp.where(when, a + b, a), total, moments)


def scaled(moments: Moments, factor: Any) -> Moments:
    """All moments times a number."""
    return jax.tree_util.tree_map(lambda a: (factor * a).astype(a.dtype), moments)


class Moved(NamedTuple):
    """How far each direction has moved between two times: 0 for no move, 1 for a new place.

    ``framed``: along the axes of the frame. ``own``: the coordinates themselves.
    """

    framed: Float[Array, " d"]
    own: Float[Array, " d"]

    @classmethod
    def between(
        cls, frame: AbstractGaussianFrame, start: Float[Array, "n d"], end: Float[Array, "n d"]
    ) -> "Moved":
        """From the start to the end of a window."""
        moved, tiny = end - start, jnp.finfo(end.dtype).tiny
        own = jnp.mean(moved**2, axis=0) / (2 * jnp.var(end, axis=0) + tiny)
        framed = jnp.mean(frame.shrink(moved) ** 2, axis=0)
        framed = framed / (2 * jnp.var(frame.enter(end), axis=0) + tiny)
        return cls(framed, own)

    @property
    def least(self) -> Float[Array, ""]:
        """How far the slowest direction has moved."""
        return jnp.minimum(jnp.min(self.framed), jnp.min(self.own))


class Drift(NamedTuple):
    """The outcome of a comparison.

    ``drift``: the largest change in standard errors, minus what chance would give. ``changes``:
    the larger change, of mean and variance, of every coordinate.
    """

    drift: Float[Array, ""]
    changes: Float[Array, " d"]


def compared(
    axes: Axes,
    before: Moments,
    after: Moments,
    strict: bool = False,
    moved: Moved | None = None,
) -> Drift:
    """Compare the mean moments of every particle before and after.

    ``strict`` takes the moments before as exact. As a sample of n independent draws they would
    have an error of their own; particles that claim to be better than that have to show it.

    ``moved``: how far each direction has moved in between. Those that move slowly are where a
    moment can be on its way, so they get most of the chance of a false alarm. If one of d
    directions is slow, it is tested almost as if it were alone.
    """
    frame = axes.frame

    def every(moments):
        # All at once: each further comparison is a tenth of a second of compilation.
        along = frame.stretch(moments.z) / frame.sds
        return jnp.concatenate([moments.z, along, moments.squares], axis=1)

    new = every(after)
    gaps = new - every(before)
    found = jnp.abs(_errors(gaps, new if strict else gaps)).reshape(3, -1)
    means, changes = found[0], jnp.maximum(found[1], found[2])
    errors, slow = found.reshape(-1), jnp.zeros(0, found.dtype)
    if moved is not None:
        slow = jnp.concatenate([moved.framed, moved.own, moved.own])
    if before.crossed is not None and after.crossed is not None:
        # Half of the particles is a sample of its own, however exact all of them together are.
        crossed = after.crossed - before.crossed
        errors = jnp.concatenate([errors, jnp.abs(_errors(crossed, crossed))])
        slow = slow if moved is None else jnp.concatenate([slow, moved.framed])
    weights = jnp.full_like(errors, 1 / len(errors))
    if moved is not None:
        slow = jnp.clip(1 - slow - _REMEMBERED * len(gaps) ** -0.5, 0.0, 1.0)
        weights = (weights + slow) / (1 + jnp.sum(slow))
    # The largest of that many normal errors, by chance.
    drift = jnp.max(errors - jnp.sqrt(2 * jnp.log(2 / weights)))
    if isinstance(frame, DenseFrame):
        # Coordinates of the frame are uncorrelated, so small changes of all of them add up.
        drift = jnp.maximum(drift, _score(means) - _UNLIKELY + BOUND)
    drift = jnp.maximum(drift, _common(before.squares, after.squares) - _UNLIKELY + BOUND)
    return Drift(drift, changes)


def _common(before: Float[Array, "n d"], after: Float[Array, "n d"]) -> Float[Array, ""]:
    """The change that the squares of all coordinates have in common, in standard errors.

    No coordinate by itself need change by more than chance. Squares are in units of the particles'
    own variances. These are too small, so the squares of even exact draws grow by 3 / n.
    """
    num = len(before)
    gaps = jnp.mean(after - before, axis=1)
    excess = jnp.maximum(jnp.abs(jnp.mean(gaps)) - 3 / num, 0.0)
    return excess / (jnp.std(gaps) * num**-0.5 + jnp.finfo(gaps.dtype).tiny)


def _errors(changes: Float[Array, "n d"], values: Float[Array, "n d"]) -> Float[Array, " d"]:
    """Mean changes in the standard errors of the values."""
    num = len(changes)
    error = jnp.std(values, axis=0) * num**-0.5 + jnp.finfo(changes.dtype).tiny
    ratios = jnp.mean(changes, axis=0) / error
    # From Student's distribution to about a normal one. The squares of few particles are also
    # skewed, which shows in the largest of many errors.
    return jnp.sign(ratios) * jnp.sqrt(num * jnp.log1p(ratios**2 / num)) / (1 + _SKEW / num)


def _score(errors: Float[Array, " d"]) -> Float[Array, ""]:
    """The normal score of a sum of d squared normals (Wilson & Hilferty 1931)."""
    unit = 2 / (9 * errors.shape[0])
    return (jnp.mean(errors**2) ** (1 / 3) - (1 - unit)) / unit**0.5


def tails_beyond(frame: AbstractGaussianFrame, place: Place) -> Float[Array, ""]:
    """``tail_error``, or nothing if there are too few particles to tell."""
    if place.particles.shape[0] < _MANY * place.particles.shape[1]:
        return jnp.asarray(jnp.finfo(place.particles.dtype).min, place.particles.dtype)
    return tail_error(frame, place)


def tail_error(frame: AbstractGaussianFrame, place: Place) -> Float[Array, ""]:
    """How far the tails are from Stein's identity, in standard errors beyond chance.

    The functions z r^2 / (r^2 + q^2) of the radius r count what lies beyond q. Transitions would
    take long to show that a heavy tail is missing.
    """
    z, scores = frame.enter(place.particles), frame.pull(place.scores)
    squares, pulls = jnp.sum(z**2, axis=1), jnp.sum(scores * z, axis=1)
    bounds = jnp.quantile(squares, jnp.asarray([0.8, 0.95], z.dtype))[:, None]
    beyond = squares / (squares + bounds)
    slopes = 2 * squares * bounds / (squares + bounds) ** 2
    values = ((pulls + z.shape[1]) * beyond + slopes).T
    errors = _errors(values, values)
    return jnp.max(jnp.abs(errors)) - _UNLIKELY + BOUND
