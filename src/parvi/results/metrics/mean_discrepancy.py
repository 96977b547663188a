"""The maximum mean discrepancy (Gretton et al. 2012).

    MMD^2 = E k(x, x') + E k(y, y') - 2 E k(x, y)                       (Lemma 6)

with k = sum over scales s of exp(-|x - y|^2 / (s h)).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from parvi.kernels import AbstractBandwidth, Median
from parvi.results.metrics.inputs import as_two_samples, check_at_least
from parvi.results.metrics.pairs import BLOCK_SIZE, mean_over_own_pairs, mean_over_pairs

# Number of points from which the median is taken: 130 000 pairs give it to about 0.5 %, in 2 MB.
MEDIAN_POINTS = 512


def mmd(
    x: Float[ArrayLike, "n d"],
    y: Float[ArrayLike, "m d"],
    bandwidth: AbstractBandwidth = Median(over_log=False),
    scales: Sequence[float] = (1.0,),
    unbiased: bool = False,
    *,
    block_size: int = BLOCK_SIZE,
) -> float:
    """The squared maximum mean discrepancy with Gaussian kernels. O((n + m)^2 d) time, in tiles.

    Parameters
    ----------
    x, y
        The two samples.
    bandwidth
        h of exp(-|x - y|^2 / h), as in ``parvi.kernels.RBF``: ``Fixed(2 * sigma**2)``, or the
        median of squared distances (of at most 512 points). It is taken from ``y``, so that all
        comparisons with one reference use the same bandwidth.
    scales
        Multiples of h whose kernels are summed, for instance ``(0.25, 0.5, 1, 2, 4)`` if no single
        scale is known to matter.
    unbiased
        Whether to average over distinct pairs within each sample (Eq. 3). The expectation is then
        exact for independent draws, and the value may be negative. Otherwise the averages are over
        all pairs (Eq. 5) and give the distance between the two sets of points themselves, which is
        never negative and is larger by about (1 - E k)(1/n + 1/m) for each scale.
    block_size
        Side of the tiles in which distances are computed.
    """
    least = 2 if unbiased else 1
    x, y = as_two_samples(x, y, at_least=(least, least))
    check_at_least(block_size, "block_size")
    if len(scales) == 0 or min(scales) <= 0:
        raise ValueError(f"scales must be positive numbers, at least one, got {scales}.")
    with jax.enable_x64(True):
        h = float(_adapted(bandwidth, jnp.asarray(y)))
    if not h > 0:
        raise ValueError(f"The bandwidth must be positive, got {h}.")

    def kernel(squares):
        return sum(np.exp(squares * (-1 / (scale * h))) for scale in scales)

    within_x = mean_over_own_pairs(kernel, x, block_size, distinct=unbiased)
    within_y = mean_over_own_pairs(kernel, y, block_size, distinct=unbiased)
    return within_x + within_y - 2 * mean_over_pairs(kernel, x, y, block_size)


@eqx.filter_jit
def _adapted(bandwidth, points):
    return bandwidth.of(points, MEDIAN_POINTS)
