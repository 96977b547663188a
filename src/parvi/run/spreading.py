"""A spread for coordinates in which all particles start alike, and which would never move apart."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from parvi.cloud import LogDensity

# The largest number of coordinates whose spread comes from the curvature of the log density.
_MOST = 512
# The largest number of parameters that the warning names.
_MAX_NAMES = 5


def spread_out(
    log_density: LogDensity,
    particles: Float[Array, "n d"],
    names: list[str],
    key: Key[Array, ""],
) -> Float[Array, "n d"]:
    """The particles, with noise in coordinates in which all are alike, and a warning that says so.

    The noise is as wide as the curvature of the log density there says, or, if that says nothing,
    as the other coordinates are on average.
    """
    spread = np.asarray(jnp.std(particles, axis=0))
    centre = jnp.mean(particles, axis=0)
    rounding = 10 * np.finfo(spread.dtype).eps
    alike = spread <= rounding * np.abs(np.asarray(centre))
    if not alike.any():
        return particles
    others = np.exp(np.mean(np.log(spread[~alike]))) if not alike.all() else 1.0
    scales = np.where(alike, others, 0.0)
    rows = np.flatnonzero(alike)
    if len(rows) <= _MOST:
        curvatures = np.asarray(_curvatures(log_density, centre, rows))
        known = np.isfinite(curvatures) & (curvatures > 0)
        scales[rows[known]] = curvatures[known] ** -0.5
    noise = jax.random.normal(key, particles.shape, particles.dtype)
    some = ", ".join(f"{names[i]} ({scales[i]:.2g})" for i in rows[:_MAX_NAMES])
    more = f" and {len(rows) - _MAX_NAMES} others" if len(rows) > _MAX_NAMES else ""
    warnings.warn(
        f"All particles start alike in {some}{more}, and would never move apart there. They were "
        "given the spread in brackets. Give init a spread of its own to choose it.",
        UserWarning,
        stacklevel=4,
    )
    return particles + jnp.asarray(scales, particles.dtype) * noise


def _curvatures(log_density, centre, rows: Bool[np.ndarray, " m"]) -> Float[Array, " m"]:
    """Minus the second derivative along some coordinates."""

    def one(row):
        along = jnp.zeros_like(centre).at[row].set(1.0)
        return -jax.jvp(jax.grad(log_density), (centre,), (along,))[1][row]

    return jax.jit(lambda rows: jax.lax.map(one, rows))(jnp.asarray(rows))
