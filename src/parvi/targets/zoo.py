"""Targets with exact draws, on which samplers are compared."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from parvi.targets.gaussian import gaussian
from parvi.targets.target import Target


class Exact(NamedTuple):
    """A target with a function ``draw(rng, n)`` that samples it exactly."""

    target: Target
    draw: Callable[[np.random.Generator, int], Float[np.ndarray, "n d"]]


def rotated_gaussian(dim: int, condition: float, seed: int = 0) -> Exact:
    """A rotated Gaussian with mean 1 and geometric variances, condition^-1/2 to condition^1/2.

    Parameters
    ----------
    dim
        d, the dimension.
    condition
        Condition number of the covariance.
    seed
        Seed of the rotation.
    """
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    scales = np.geomspace(condition**-0.25, condition**0.25, dim)
    factor = rotation * scales
    target = gaussian(np.ones(dim), factor @ factor.T)
    return Exact(target, lambda rng, n: 1 + rng.normal(size=(n, dim)) @ factor.T)


def banana(noise: float = 0.5, turned: float = 0.0) -> Exact:
    """u1 ~ N(0, 1) and u2 | u1 ~ N(u1^2, noise^2), turned by an angle.

    Unless it is turned, a coupling makes it a Gaussian.
    """
    cos, sin = math.cos(turned), math.sin(turned)

    def log_density(x):
        first, second = cos * x[0] + sin * x[1], cos * x[1] - sin * x[0]
        return -0.5 * first**2 - 0.5 * ((second - first**2) / noise) ** 2

    def draw(rng, n):
        first = rng.normal(size=n)
        second = first**2 + noise * rng.normal(size=n)
        return np.column_stack([cos * first - sin * second, sin * first + cos * second])

    return Exact(Target(log_density, like=np.zeros(2)), draw)


def four_modes(dim: int = 2, radius: float = 5.0) -> Exact:
    """Four unit Gaussians of equal weight on a circle in the first two coordinates."""
    angles = np.pi / 4 + np.arange(4) * np.pi / 2
    means = np.zeros((4, dim))
    means[:, 0], means[:, 1] = radius * np.cos(angles), radius * np.sin(angles)

    def log_density(x):
        squares = jnp.sum((x - jnp.asarray(means, x.dtype)) ** 2, axis=1)
        return jax.scipy.special.logsumexp(-0.5 * squares)

    def draw(rng, n):
        return means[rng.integers(0, 4, size=n)] + rng.normal(size=(n, dim))

    return Exact(Target(log_density, like=np.zeros(dim)), draw)


def funnel(dim: int = 10, scale: float = 1.5) -> Exact:
    """Neal's funnel: v ~ N(0, scale^2) comes first, and the others are N(0, exp(v)) given v."""

    def log_density(x):
        spread = -0.5 * jnp.exp(-x[0]) * jnp.sum(x[1:] ** 2) - 0.5 * (dim - 1) * x[0]
        return -0.5 * (x[0] / scale) ** 2 + spread

    def draw(rng, n):
        first = scale * rng.normal(size=n)
        rest = np.exp(first / 2)[:, None] * rng.normal(size=(n, dim - 1))
        return np.column_stack([first, rest])

    return Exact(Target(log_density, like=np.zeros(dim)), draw)


def student_t(dim: int = 5, degrees: float = 5.0) -> Exact:
    """The multivariate Student-t with unit scale."""

    def log_density(x):
        return -0.5 * (degrees + dim) * jnp.log1p(jnp.sum(x**2) / degrees)

    def draw(rng, n):
        mixing = rng.chisquare(degrees, size=n) / degrees
        return rng.normal(size=(n, dim)) / np.sqrt(mixing)[:, None]

    return Exact(Target(log_density, like=np.zeros(dim)), draw)
