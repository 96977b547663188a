"""Weighted draws: how far a map is from the target, and the evidence."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

# Share and degrees of freedom of the heavy-tailed part of the base of weighted draws.
_HEAVY, _FREEDOM = 0.1, 4.0
# Shares of effective draws below which a map is no map, and by how much one may fall.
_LEAST, _FALL = 0.1, 0.7
# Draws of the first look, over all.
_FIRST = 8


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Importance:
    """Weighted draws of a map. Print it to read it in words.

    Attributes
    ----------
    draws
        Flat and unconstrained.
    log_weights
        log p - log q, not normalised.
    share
        The effective draws, (sum w)^2 / sum w^2, over all.
    first_share
        That of the first eighth, from which it must not fall.
    log_evidence, standard_error
        The log of the density's integral.
    """

    draws: Float[np.ndarray, "n d"]
    log_weights: Float[np.ndarray, " n"]
    share: float
    first_share: float
    log_evidence: float
    standard_error: float

    @classmethod
    def of(cls, draws: Any, log_weights: Any) -> "Importance":
        """Judge draws by their log weights."""
        import scipy.special

        draws, log_weights = np.asarray(draws), np.asarray(log_weights, float)
        log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
        num = len(log_weights)
        if not np.isfinite(log_weights).any():
            return cls(draws, log_weights, 0.0, 0.0, -math.inf, math.inf)
        total = scipy.special.logsumexp(log_weights)
        relative = np.exp(log_weights - total + np.log(num))
        return cls(
            draws=draws,
            log_weights=log_weights,
            share=_share(log_weights),
            first_share=_share(log_weights[: max(num // _FIRST, 1)]),
            log_evidence=float(total - np.log(num)),
            standard_error=float(relative.std() / num**0.5),
        )

    @functools.cached_property
    def khat(self) -> float:
        """Shape of the tail of the weights, by Pareto smoothing (Vehtari et al. 2024).

        It is no verdict by itself: weights that hardly differ can have a large one.
        """
        # Importing ArviZ takes longer than a thousand draws.
        import arviz as az

        finite = self.log_weights[np.isfinite(self.log_weights)]
        if not len(finite):
            return math.inf
        return float(az.psislw(finite)[1]) if np.ptp(finite) > 1e-9 else -math.inf

    @property
    def weights(self) -> Float[np.ndarray, " n"]:
        """The weights, with sum 1."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return weights / weights.sum()

    @property
    def trouble(self) -> str | None:
        """In words, why the weights cannot be relied on; None if they can."""
        if not self.share >= _LEAST:
            return (
                f"the weighted draws are worth {100 * self.share:.1f} % of independent ones, "
                f"less than {100 * _LEAST:.0f} %"
            )
        if self.share < _FALL * self.first_share:
            return (
                f"the share of effective draws falls from {self.first_share:.2f} for an eighth of "
                f"the draws to {self.share:.2f} for all, so the map misses mass"
            )
        return None

    def __bool__(self) -> bool:
        return self.trouble is None

    def __str__(self) -> str:
        trouble = self.trouble
        if trouble is not None:
            return f"There is no good map here: {trouble}."
        return (
            f"{len(self.log_weights)} draws worth {100 * self.share:.0f} % of independent ones; "
            f"log evidence {self.log_evidence:.4f} ± {self.standard_error:.4f}."
        )

    __repr__ = __str__


def _share(log_weights) -> float:
    if not np.isfinite(log_weights).any():
        return 0.0
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights**2).sum() / len(weights))


def heavy_normal(key: Key[Array, ""], num: int, dim: int, dtype: Any) -> Float[Array, "n d"]:
    """Draws of the heavy-tailed base, 0.9 N(0, I) + 0.1 t_4."""
    keys = jax.random.split(key, 3)
    normals = jax.random.normal(keys[0], (num, dim), dtype)
    squares = 2 * jax.random.gamma(keys[1], _FREEDOM / 2, (num, 1), dtype)
    heavy = jax.random.uniform(keys[2], (num, 1), dtype) < _HEAVY
    return normals * jnp.where(heavy, jnp.sqrt(_FREEDOM / squares), 1.0)


def log_heavy(z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """The log density of the heavy-tailed base."""
    dim = z.shape[1]
    constant = math.lgamma((_FREEDOM + dim) / 2) - math.lgamma(_FREEDOM / 2)
    constant -= 0.5 * dim * math.log(_FREEDOM * math.pi)
    student = constant - 0.5 * (_FREEDOM + dim) * jnp.log1p(jnp.sum(z**2, axis=1) / _FREEDOM)
    return jnp.logaddexp(math.log(1 - _HEAVY) + log_normal(z), math.log(_HEAVY) + student)


def log_normal(z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """The log density of N(0, I)."""
    return -0.5 * jnp.sum(z**2 + math.log(2 * math.pi), axis=1)
