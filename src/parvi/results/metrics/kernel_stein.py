"""The kernel Stein discrepancy (Liu, Lee & Jordan 2016; Chwialkowski et al. 2016).

    S = E u(x, x'),   u(x, y) = s(x) . s(y) k + s(x) . grad_y k + s(y) . grad_x k
                                + trace grad_x grad_y k               (Theorem 3.6)

with the scores s = grad log p, is zero only if the particles are a sample of p. For a radial
kernel k = phi(r^2),

    u = s(x) . s(y) phi - 2 (s(x) - s(y)) . (x - y) phi' - 2 d phi' - 4 r^2 phi''.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from parvi.evaluation import LIGHT, quickly
from parvi.kernels import IMQ, AbstractKernel, AbstractRadialKernel, Median, square_distances
from parvi.results.metrics.bootstrap import AbstractBootstrap, WildBootstrap
from parvi.results.metrics.inputs import as_key, as_scored, check_at_least
from parvi.results.metrics.mean_discrepancy import MEDIAN_POINTS
from parvi.results.metrics.pairs import BLOCK_SIZE


class GoodnessOfFit(NamedTuple):
    """The outcome of a test of the hypothesis that the particles are draws of the target."""

    statistic: float
    p_value: float


def ksd(
    particles: Float[ArrayLike, "n d"],
    scores: Float[ArrayLike, "n d"],
    kernel: AbstractKernel = IMQ(Median(over_log=False)),
    unbiased: bool = False,
    *,
    block_size: int = BLOCK_SIZE,
) -> float:
    """The (squared) kernel Stein discrepancy E u(x, x'). O(n^2 d) time, in tiles.

    Parameters
    ----------
    particles, scores
        The particles, and the gradient of the log density at each.
    kernel
        Any radial kernel. The inverse multiquadric sees particles that leave the target; kernels
        with light tails do not (Gorham & Mackey 2017, Thm. 6 and 8). A bandwidth that follows the
        particles is taken from at most 512 of them. Fix it to compare two sets of particles:
        ``IMQ(Fixed(h))``.
    unbiased
        Whether to use the U-statistic, over distinct pairs, whose expectation is exact for
        independent draws. Otherwise it is the V-statistic, over all pairs, which is never negative
        and is what SVGD descends.
    block_size
        Side of the tiles in which pairs are computed.

    Examples
    --------
    >>> import numpy as np, parvi
    >>> x = np.array([[3.0]])
    >>> parvi.metrics.ksd(x, -x, kernel=parvi.kernels.RBF(parvi.kernels.Fixed(2.0)))
    10.0
    """
    x, s = as_scored(particles, scores, at_least=2 if unbiased else 1)
    num = len(x)
    weights = np.full((1, num), num**-0.5 if unbiased else 1 / num)
    if unbiased:
        weights /= (num - 1) ** 0.5
    return float(_stein_forms(kernel, x, s, weights, block_size, diagonal=not unbiased)[0])


def ksd_test(
    particles: Float[ArrayLike, "n d"],
    scores: Float[ArrayLike, "n d"],
    kernel: AbstractKernel = IMQ(Median(over_log=False)),
    num_bootstrap: int = 1000,
    bootstrap: AbstractBootstrap = WildBootstrap(),
    key: int | Key[Array, ""] = 0,
    *,
    block_size: int = BLOCK_SIZE,
) -> GoodnessOfFit:
    """Test whether the particles are independent draws of the target.

    The statistic is the U-statistic of ``ksd``. Under the hypothesis its law is that of
    sum_{i != j} w_i w_j u(x_i, x_j) / (n (n - 1)) with the bootstrap's weights w, and the p-value
    is the share of these that are at least as large, (1 + count) / (1 + num_bootstrap). Particles
    that repel each other are spread more evenly than independent draws. If they fit, their p-value
    tends to 1, and no rejection rate can be read from it.

    O(n^2 (d + num_bootstrap)) time, O(block_size^2 + n (d + num_bootstrap)) memory.

    Parameters
    ----------
    particles, scores
        The particles, and the gradient of the log density at each.
    kernel
        See ``ksd``.
    num_bootstrap
        Number of bootstrap samples; the smallest p-value is 1 / (1 + num_bootstrap).
    bootstrap
        ``WildBootstrap()``, with a smaller ``flip_probability`` for the ordered states of a chain,
        or ``MultinomialBootstrap()``.
    key
        Key that draws the weights.
    block_size
        Side of the tiles in which pairs are computed.
    """
    x, s = as_scored(particles, scores, at_least=2)
    check_at_least(num_bootstrap, "num_bootstrap")
    num = len(x)
    with jax.enable_x64(True):
        drawn = np.asarray(_drawn_weights(bootstrap, as_key(key), num_bootstrap, num))
    weights = np.concatenate([np.ones((1, num)), drawn]) / (num * (num - 1)) ** 0.5
    forms = _stein_forms(kernel, x, s, weights, block_size, diagonal=False)
    p_value = (1 + np.sum(forms[1:] >= forms[0])) / (1 + num_bootstrap)
    return GoodnessOfFit(float(forms[0]), float(p_value))


@quickly
def _drawn_weights(bootstrap, key, num_bootstrap, num):
    return bootstrap.weights(key, num_bootstrap, num)


def _stein_forms(kernel, x, s, weights, block_size, diagonal) -> np.ndarray:
    """sum_ij w_i u(x_i, x_j) w_j for each row of weights, with or without i = j."""
    check_at_least(block_size, "block_size")
    if not isinstance(kernel, AbstractRadialKernel):
        raise ValueError(
            f"ksd needs a radial kernel such as parvi.kernels.IMQ or parvi.kernels.RBF, got "
            f"{type(kernel).__name__}."
        )
    with jax.enable_x64(True):
        # Only differences of points count, and they lose least by rounding near zero.
        x = jnp.asarray(x - x.mean(axis=0))
        side = min(block_size, len(x))
        # A few points take less time than a careful compilation.
        forms = _quick_forms if len(x) ** 2 <= LIGHT // 20 else _careful_forms
        return np.asarray(forms(kernel, x, jnp.asarray(s), jnp.asarray(weights), side, diagonal))


def _tiled_forms(kernel, x, s, weights, side, diagonal):
    kernel = kernel.adapted(x, MEDIAN_POINTS)
    num_blocks = -(-x.shape[0] // side)
    extra = num_blocks * side - x.shape[0]
    # The last block is padded with points of weight zero.
    x, s = jnp.pad(x, ((0, extra), (0, 0))), jnp.pad(s, ((0, extra), (0, 0)))
    weights = jnp.pad(weights, ((0, 0), (0, extra)))
    others = 1 - jnp.eye(side, dtype=x.dtype)

    def add(total, tile):
        i, j = tile

        def block(array, number):
            return jax.lax.dynamic_slice_in_dim(array, number * side, side)

        own = i == j
        mask = jnp.where(own, others, 1.0)
        u = _stein_kernel(kernel, block(x, i), block(s, i), block(x, j), block(s, j), mask)
        if not diagonal:
            u = u * mask
        form = jnp.sum((block(weights.T, i).T @ u) * block(weights.T, j).T, axis=1)
        return total + jnp.where(own, 1, 2) * form, None

    tiles = np.triu_indices(num_blocks)
    zero = jnp.zeros(weights.shape[0], x.dtype)
    return jax.lax.scan(add, zero, tuple(map(jnp.asarray, tiles)))[0]


_quick_forms = quickly(_tiled_forms)
_careful_forms = eqx.filter_jit(_tiled_forms)


def _stein_kernel(kernel, x, s, y, t, mask):
    """u(x_i, y_j); ``mask`` is zero where both are one point, whose distance is exactly zero."""
    dim = x.shape[1]
    square = square_distances(x, y) * mask
    value, first, second = kernel.profile(square, dim)
    own = jnp.sum(x * s, axis=1)[:, None] + jnp.sum(y * t, axis=1)
    inner = own - s @ y.T - x @ t.T
    return (s @ t.T) * value - 2 * (inner + dim) * first - 4 * square * second
