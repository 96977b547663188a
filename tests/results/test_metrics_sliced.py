"""The sliced Wasserstein distance against shifts, scales and linear programming."""

import math
import tracemalloc

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats

from parvi import metrics


def test_shift_of_the_same_points():
    """W_p of a shift along theta is |theta . shift|: known means over the sphere."""
    dim, num_projections = 5, 2000
    x = np.random.default_rng(0).normal(size=(40, dim))
    shift = np.array([3.0, 0.0, 4.0, 0.0, 0.0])
    length = 5.0
    first = (
        length
        * math.exp(scipy.special.gammaln(dim / 2) - scipy.special.gammaln((dim + 1) / 2))
        / math.pi**0.5
    )
    second = length / dim**0.5
    # Relative standard deviations of |theta . e| and (theta . e)^2 are below 0.8 and 1.4 (d = 5):
    # 4 standard errors over 2000 directions are 7 % and, halved by the root, 6 %.
    for order, exact in ((1, first), (2, second)):
        value = metrics.sliced_wasserstein(x, x + shift, num_projections, key=1, order=order)
        assert value == pytest.approx(exact, rel=0.07)


def test_one_dimension_is_the_wasserstein_distance_with_different_sizes():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(31, 1)), 0.5 + 2 * rng.normal(size=(47, 1))
    exact = scipy.stats.wasserstein_distance(x[:, 0], y[:, 0])
    # In one dimension every direction is +1 or -1: no error from the projections.
    assert metrics.sliced_wasserstein(x, y, 3) == pytest.approx(exact, rel=1e-12)


def test_second_order_with_different_sizes():
    """Equal to each sample repeated to the least common size, matched in order."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(6, 1)), rng.normal(size=(9, 1))
    long_x, long_y = np.sort(np.repeat(x, 3)), np.sort(np.repeat(y, 2))
    exact = np.sqrt(np.mean((long_x - long_y) ** 2))
    assert metrics.sliced_wasserstein(x, y, 2, order=2) == pytest.approx(exact, rel=1e-12)


def test_a_scale_in_every_direction():
    """x against 3x: |theta . x| doubled, so SW_1 is 2 E|theta . x| for points even in theta."""
    x = np.array([[1.0, 0.0], [-1.0, 0.0]])
    # E|cos| = 2/pi over the circle; 4 standard errors of 0.48 relative over 4000 directions.
    value = metrics.sliced_wasserstein(x, 3 * x, 4000)
    assert value == pytest.approx(2 * 2 / math.pi, rel=0.04)


def test_directions_follow_the_key():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=(30, 3))
    value = metrics.sliced_wasserstein(x, y, 10, 7)
    assert metrics.sliced_wasserstein(x, y, 10, jax.random.key(7)) == value
    assert metrics.sliced_wasserstein(x, y, 10, 8) != value


def test_blocks_change_nothing_and_bound_the_memory():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(800, 2)), rng.normal(size=(801, 2))
    whole = metrics.sliced_wasserstein(x, y, 300, order=2, block_size=300)
    tracemalloc.start()
    tiled = metrics.sliced_wasserstein(x, y, 300, order=2, block_size=7)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Only the order of summation changes.
    assert tiled == pytest.approx(whole, abs=1e-12)
    # All projections of one sample are 1.9 MB, and twice that in common steps; a block is 7/300.
    assert peak < 1e6


def test_wrong_inputs():
    x = np.zeros((3, 2))
    with pytest.raises(ValueError, match="order must be 1 or 2, got 3"):
        metrics.sliced_wasserstein(x, x, order=3)
    with pytest.raises(ValueError, match="num_projections"):
        metrics.sliced_wasserstein(x, x, 0)
    with pytest.raises(ValueError, match="same dimension"):
        metrics.sliced_wasserstein(x, np.zeros((3, 1)))
