"""A spread for coordinates in which all particles start alike and would never move apart."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from parvi.cloud import LogDensity
from parvi.evaluation import evaluate

# The largest number of coordinates whose spread comes from the curvature of the log density.
_MOST = 512
# Share of particles that have to differ from all earlier ones.
_FEWEST = 0.5
# Particles count as pushed alike up to this spread of the scores over their mean. In networks on
# UCI data, noise precisions that stayed behind had 0.004 to 0.12, and first biases 2 and more.
_ALIKE = 0.2
# The largest number of parameters that the warning names.
_MAX_NAMES = 5


def spread_out(
    log_density: LogDensity,
    particles: Float[Array, "n d"],
    names: list[str],
    key: Key[Array, ""],
    by_scores: bool = False,
) -> Float[Array, "n d"]:
    """The particles, with noise in coordinates in which all are alike, and a warning that says so.

    The noise is as wide as the curvature of the log density there says, or, if that says nothing,
    as the other coordinates are on average. ``by_scores`` leaves coordinates alone whose scores
    differ, such as the first biases of networks: these move apart by themselves.
    """
    host = np.asarray(particles)
    spread, centre = host.std(axis=0), host.mean(axis=0)
    alike = spread <= 10 * np.finfo(host.dtype).eps * np.abs(centre)
    if by_scores and alike.any():
        alike &= _alike_scores(log_density, particles)
    repeated = _repeated(host)
    if not alike.any() and not repeated.any():
        return particles
    positive = spread[~alike & (spread > 0)]
    others = np.exp(np.mean(np.log(positive))) if len(positive) else 1.0
    scales = np.where(alike, others, spread)
    rows = np.flatnonzero(alike)
    if len(rows) <= _MOST:
        curvatures = np.asarray(_curvatures(log_density, jnp.asarray(centre), rows))
        known = np.isfinite(curvatures) & (curvatures > 0)
        scales[rows[known]] = curvatures[known] ** -0.5
    noise = np.where(alike | repeated[:, None], np.asarray(_normal(key, particles)), 0.0)
    warnings.warn(_words(names, scales, rows, repeated), UserWarning, stacklevel=5)
    return particles + jnp.asarray(scales * noise, particles.dtype)


def _repeated(particles: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
    """Particles that coincide with an earlier one, if most do; a few repeated rows do no harm."""
    first = np.zeros(len(particles), bool)
    first[np.unique(particles, axis=0, return_index=True)[1]] = True
    return ~first if first.mean() < _FEWEST else np.zeros_like(first)


def _alike_scores(log_density, particles) -> Bool[np.ndarray, " d"]:
    """Coordinates in which all particles take about the same first step."""
    scores = np.asarray(evaluate(log_density, particles)[1])
    return scores.std(axis=0) <= _ALIKE * np.abs(scores.mean(axis=0))


def _normal(key, particles):
    return jax.random.normal(key, particles.shape, particles.dtype)


def _words(names: list[str], scales, rows, repeated) -> str:
    said = []
    if len(rows):
        some = ", ".join(f"{names[i]} ({scales[i]:.2g})" for i in rows[:_MAX_NAMES])
        more = f" and {len(rows) - _MAX_NAMES} others" if len(rows) > _MAX_NAMES else ""
        said.append(
            f"All particles start alike in {some}{more}, and would never move apart there. They "
            "were given the spread in brackets."
        )
    elif repeated.any():
        said.append(
            f"{repeated.sum()} of {len(repeated)} particles start where another one does; they "
            "were spread as widely as all particles are."
        )
    return " ".join([*said, "Give init a spread of its own to choose it."])


def _curvatures(log_density, centre, rows: Int[np.ndarray, " m"]) -> Float[Array, " m"]:
    """Minus the second derivative along some coordinates."""

    def one(row):
        along = jnp.zeros_like(centre).at[row].set(1.0)
        return -jax.jvp(jax.grad(log_density), (centre,), (along,))[1][row]

    return jax.jit(lambda rows: jax.lax.map(one, rows))(jnp.asarray(rows))
