"""The sliced Wasserstein distance (Bonneel et al. 2015).

    SW_p = ( E_theta W_p(theta . x, theta . y)^p )^(1/p),

with theta uniform on the sphere. On a line the optimal plan matches quantiles:

    W_p^p = int_0^1 |F^-1(u) - G^-1(u)|^p du,

where both quantile functions are step functions, so the integral is a finite sum for any n and m.
"""

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from parvi.results.metrics.inputs import as_key, as_two_samples, check_at_least
from parvi.results.metrics.pairs import blocks


def sliced_wasserstein(
    x: Float[ArrayLike, "n d"],
    y: Float[ArrayLike, "m d"],
    num_projections: int = 200,
    key: int | Key[Array, ""] = 0,
    order: int = 1,
    *,
    block_size: int = 32,
) -> float:
    """SW_p between two samples. O(K (n + m)(d + log(n + m))) time for K projections.

    Parameters
    ----------
    x, y
        The two samples; their sizes may differ.
    num_projections
        K, the number of random directions; their relative error is below about 1/sqrt(K).
    key
        Key that draws the directions. Use the same key for all distances that are compared.
    order
        p, 1 or 2.
    block_size
        Number of projections that are computed at a time.
    """
    x, y = as_two_samples(x, y)
    check_at_least(num_projections, "num_projections")
    check_at_least(block_size, "block_size")
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, got {order}.")
    with jax.enable_x64(True):
        directions = np.array(jax.random.normal(as_key(key), (num_projections, x.shape[1])))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)

    steps_x, steps_y, lengths = _common_steps(len(x), len(y))
    total = 0.0
    for part in blocks(num_projections, block_size):
        quantiles_x = np.sort(directions[part] @ x.T, axis=1)[:, steps_x]
        quantiles_y = np.sort(directions[part] @ y.T, axis=1)[:, steps_y]
        total += float(np.sum(np.abs(quantiles_x - quantiles_y) ** order @ lengths))
    return (total / num_projections) ** (1 / order)


def _common_steps(n, m):
    """Intervals on which both quantile functions are constant: rank in x, rank in y, length."""
    # In units of 1/(n m) all ends are integers, so rounding misses none.
    ends = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)
    starts = np.concatenate([[0], ends[:-1]])
    return starts // m, starts // n, (ends - starts) / (n * m)
