"""Checks of the metrics' inputs, which become float64 arrays on the host."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key


def as_points(values: ArrayLike, name: str, at_least: int = 1) -> Float[np.ndarray, "n d"]:
    """A finite float64 array of shape (n, d) with n >= ``at_least``."""
    points = _as_finite(values, name)
    if points.ndim != 2 or points.shape[1] == 0:
        hint = (
            f" For n particles in one dimension give {name}[:, None]." if points.ndim == 1 else ""
        )
        raise ValueError(f"{name} must have shape (n, d), got {points.shape}.{hint}")
    if len(points) < at_least:
        raise ValueError(f"{name} must have at least {at_least} row(s), got {len(points)}.")
    return points


def as_two_samples(
    x: ArrayLike, y: ArrayLike, at_least: tuple[int, int] = (1, 1)
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "m d"]]:
    """Two samples in the same dimension."""
    first, second = as_points(x, "x", at_least[0]), as_points(y, "y", at_least[1])
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"x and y must have the same dimension, got shapes {first.shape} and {second.shape}."
        )
    return first, second


def as_scored(
    particles: ArrayLike, scores: ArrayLike, at_least: int = 1
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n d"]]:
    """Particles with the gradient of the log density at each."""
    points, gradients = as_points(particles, "particles", at_least), as_points(scores, "scores")
    if points.shape != gradients.shape:
        raise ValueError(
            f"scores must hold one gradient a particle, shape {points.shape}, "
            f"got {gradients.shape}."
        )
    return points, gradients


def as_shaped(values: ArrayLike, name: str, shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """A finite float64 array of this shape."""
    array = _as_finite(values, name)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
    return array


def as_key(key: int | Key[Array, ""]) -> Key[Array, ""]:
    """A JAX key from an int or a key."""
    return jax.random.key(int(key)) if isinstance(key, (int, np.integer)) else key


def check_at_least(value: int, name: str, least: int = 1) -> None:
    """Raise ``ValueError`` unless a count is large enough."""
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")


def _as_finite(values: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be an array of numbers, got {type(values).__name__}; a pytree of "
            "particles has to be flattened to shape (n, d) first."
        ) from error
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"{name} holds values that are not finite, the first at {tuple(map(int, bad))}; no "
            "metric is defined for them. Leave out those rows, or look at the run's status."
        )
    return array
