"""Checks that say in one sentence what is wrong with a log density, before a long run begins."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from parvi.cloud import LogDensity, Place
from parvi.evaluation import evaluate

_NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


# Number of attempts to move particles before the log density is blamed.
_ATTEMPTS = 5
# Number of particles whose scores are held at once.
_AT_ONCE = 16_384


def check_log_density(log_density: LogDensity, particles: Float[Array, "n d"]) -> None:
    """Raise ``ValueError`` if the log density cannot be sampled from these particles.

    The error names the first of these faults: the log density cannot be traced by JAX, does not
    return one real number, cannot be differentiated, is not finite at some particle, has a
    gradient that is not finite, or has a gradient that is zero everywhere while its values differ.
    """
    _judge(_evaluated(log_density, particles))


def admitted(
    log_density: LogDensity, particles: Float[Array, "n d"], key: Key[Array, ""]
) -> tuple[Place, int]:
    """Check the particles as ``check_log_density`` does, after moving a minority of bad ones.

    If the density is not finite at fewer than half of the particles, these are moved between two
    others. Returns the particles, with their scores and log densities unless they are very many,
    and the number that were moved.
    """
    found = _evaluated(log_density, particles)
    num_moved = int(found.bad.sum()) if 2 * found.bad.sum() < len(particles) else 0
    for _ in range(_ATTEMPTS if num_moved else 0):
        key, key_move = jax.random.split(key)
        particles = _between(key_move, particles, found.bad)
        found = _evaluated(log_density, particles)
        if not found.bad.any():
            break
    _judge(found)
    return found.place, num_moved


class _Found(NamedTuple):
    """The log density at every particle, whether its score is finite, and whether it is nonzero."""

    values: Any
    sound: Any
    moving: Any
    place: Place

    @property
    def bad(self):
        return ~(np.isfinite(self.values) & self.sound)


def _between(key, particles, bad):
    """Put the bad particles at random points between two random good ones."""
    key_pairs, key_shares = jax.random.split(key)
    good, num = np.flatnonzero(~bad), len(bad)
    pairs = good[np.asarray(jax.random.randint(key_pairs, (2, num), 0, len(good)))]
    shares = jax.random.uniform(key_shares, (num, 1), particles.dtype)
    between = shares * particles[pairs[0]] + (1 - shares) * particles[pairs[1]]
    return jnp.where(bad[:, None], between, particles)


def _judge(found):
    values, sound, moving, _ = found
    num = len(values)
    bad = ~np.isfinite(values)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"The log density is not finite at {bad.sum()} of the {num} initial particles "
            f"(particle {first}: {values[first]}): start where the density is positive and finite, "
            "or declare the support with constraints= (parvi.Positive(), parvi.Interval(...))."
        )
    bad = ~sound
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"The gradient of the log density is not finite at {bad.sum()} of the {num} initial "
            f"particles (first: particle {first}) though its value is: look for sqrt, log, norm "
            "or a division at zero, even inside the unused branch of a jnp.where."
        )
    if not moving.any() and np.ptp(values) > 0:
        raise ValueError(
            "The log density is not differentiable in a useful way: its gradient is zero at all "
            f"{num} initial particles though its values differ (rounding, comparisons, integer "
            "casts or stop_gradient do this); give its gradient with parvi.Target(log_density, "
            "score=...)."
        )


def _evaluated(log_density, particles) -> _Found:
    columns: tuple[list[np.ndarray], ...] = [], [], []
    place = Place(particles, None, None)
    for first in range(0, len(particles), _AT_ONCE):
        try:
            values, scores = evaluate(log_density, particles[first : first + _AT_ONCE])
        except Exception:
            # Diagnosing only after a failure lets a good log density be traced and compiled once.
            _diagnose(log_density, jax.ShapeDtypeStruct(particles.shape[1:], particles.dtype))
            raise
        if len(scores) == len(particles):
            place = Place(particles, scores, values)
        rows = np.asarray(scores)
        found = np.asarray(values), np.isfinite(rows).all(axis=1), (rows != 0).any(axis=1)
        for column, part in zip(columns, found, strict=True):
            column.append(part)
    every, sound, moving = (np.concatenate(column) for column in columns)
    return _Found(every, sound, moving, place)


def _diagnose(log_density, one):
    """Raise the ``ValueError`` that says why the log density could not be evaluated."""
    try:
        jax.eval_shape(log_density, one)
    except _NOT_TRACEABLE as error:
        raise ValueError(
            "The log density cannot be traced by JAX: it needs the values of its argument, by "
            "NumPy, float(), an if or a while on them. Write it with jax.numpy, jnp.where and "
            f"jax.lax. JAX says: {_first_line(error)}"
        ) from error
    try:
        jax.eval_shape(jax.grad(log_density), one)
    except Exception as error:
        raise ValueError(
            "The log density cannot be differentiated by JAX (a callback, a while_loop or an "
            "operation without a derivative); give its gradient with parvi.Target(log_density, "
            f"score=...). JAX says: {_first_line(error)}"
        ) from error


def check_scalar(value) -> None:
    """Raise ``ValueError`` unless a log density returned one real number."""
    leaves = jax.tree_util.tree_leaves(value)
    if len(leaves) != 1 or leaves[0] is not value:
        raise ValueError(
            "The log density must return one number for one particle, but it returns a "
            f"{type(value).__name__} of {len(leaves)} values; return the log density alone."
        )
    if jnp.shape(value) != ():
        raise ValueError(
            f"The log density must return one number for one particle, but it returns an array of "
            f"shape {jnp.shape(value)}; it gets one particle at a time, so sum over the "
            "observations and over the coordinates."
        )
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise ValueError(
            f"The log density must return a real number, but it returns {jnp.result_type(value)}; "
            "return a floating-point log density."
        )


def _first_line(error) -> str:
    return str(error).strip().splitlines()[0][:200]
