"""Weighted draws: how far a map is from the target, and the evidence."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

# The base of weighted draws: the share of draws that have tails in all coordinates, which is also
# the share that have them in one, and the degrees of freedom, an even number.
_HEAVY, _FREEDOM = 0.1, 4.0
# The share of effective draws below which a map is refused, and by how much the share may fall.
_LEAST, _FALL = 0.1, 0.7
# The number of draws over the number of those of the first look.
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
        The number of effective draws, (sum w)^2 / sum w^2, over the number of draws.
    first_share
        The share of the first eighth, from which ``share`` must not fall far.
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

        It is not a verdict by itself: weights that hardly differ can have a large shape.
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
        """Why the weights cannot be relied on, in words; None if they can."""
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
    """Draws of the heavy-tailed base: a tenth with tails in all coordinates, a tenth in one."""
    key_normals, key_rest = jax.random.split(key)
    normals = jax.random.normal(key_normals, (num, dim), dtype)
    uniforms = 1 - jax.random.uniform(key_rest, (num, 2 + int(_FREEDOM) // 2), dtype)
    # Chi squared with 2 m degrees of freedom is twice a sum of m exponentials; a gamma generator
    # takes half a second to compile.
    squares = -2 * jnp.sum(jnp.log(uniforms[:, 2:]), axis=1, keepdims=True)
    longer = jnp.sqrt(_FREEDOM / squares)
    kind, chosen = uniforms[:, :1], jnp.floor(dim * (1 - uniforms[:, 1:2]))
    one = jnp.where(jnp.arange(dim) == chosen, longer, 1.0)
    return normals * jnp.where(kind <= _HEAVY, longer, jnp.where(kind <= 2 * _HEAVY, one, 1.0))


def log_heavy(z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """The log density of the heavy-tailed base, 0.8 N(0, I) + 0.1 t + 0.1 (one t among normals)."""
    dim, normal = z.shape[1], log_normal(z)
    every = _log_t(jnp.sum(z**2, axis=1), dim) - normal
    one = _log_t(z**2, 1) + 0.5 * (z**2 + math.log(2 * math.pi))
    one = jax.scipy.special.logsumexp(one, axis=1) - math.log(dim)
    parts = jnp.stack([jnp.zeros_like(normal), every, one])
    shares = jnp.asarray([1 - 2 * _HEAVY, _HEAVY, _HEAVY], z.dtype)[:, None]
    return normal + jax.scipy.special.logsumexp(parts, axis=0, b=shares)


def _log_t(squares: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
    """The log density of Student's t in so many dimensions, of squared distances."""
    constant = math.lgamma((_FREEDOM + dim) / 2) - math.lgamma(_FREEDOM / 2)
    constant -= 0.5 * dim * math.log(_FREEDOM * math.pi)
    return constant - 0.5 * (_FREEDOM + dim) * jnp.log1p(squares / _FREEDOM)


def log_normal(z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """The log density of N(0, I)."""
    return -0.5 * jnp.sum(z**2 + math.log(2 * math.pi), axis=1)
