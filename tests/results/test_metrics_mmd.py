"""The squared MMD against its closed form between Gaussians."""

import tracemalloc

import numpy as np
import pytest

import parvi
from parvi import metrics


def expected_kernel(shift, variance, h):
    """E exp(-|x - y|^2 / h) where x - y is N(shift, variance) in each coordinate."""
    factor = (1 + 2 * variance / h) ** -0.5
    return np.prod(factor * np.exp(-(shift**2) / (h + 2 * variance)))


def gaussian_mmd(mean, sd, h):
    """The squared MMD between N(mean, sd^2) and N(0, 1), coordinates independent."""
    zero, one = np.zeros_like(mean), np.ones_like(sd)
    return (
        expected_kernel(zero, 2 * sd**2, h)
        + expected_kernel(zero, 2 * one, h)
        - 2 * expected_kernel(mean, sd**2 + 1, h)
    )


MEAN, SD = np.array([0.5, 0.0, -0.2]), np.array([1.0, 0.6, 1.5])


def repeated(num, repeats, scales, unbiased):
    rng = np.random.default_rng(0)
    return np.array(
        [
            metrics.mmd(
                MEAN + SD * rng.normal(size=(num, 3)),
                rng.normal(size=(num + 10, 3)),
                parvi.kernels.Fixed(3.0),
                scales,
                unbiased,
            )
            for _ in range(repeats)
        ]
    )


@pytest.mark.parametrize("scales", [(1.0,), (0.25, 1.0, 4.0)])
def test_unbiased_has_the_closed_form_as_expectation(scales):
    values = repeated(50, 200, scales, True)
    exact = sum(gaussian_mmd(MEAN, SD, 3.0 * scale) for scale in scales)
    error = np.std(values) / len(values) ** 0.5
    # 4 standard errors: a false failure is less likely than 1e-4.
    assert np.mean(values) == pytest.approx(exact, abs=4 * error)
    assert error < 0.1 * exact


def test_biased_is_larger_by_the_diagonal():
    n, m, h = 50, 60, 3.0
    values = repeated(n, 200, (1.0,), False)
    within_x = expected_kernel(np.zeros(3), 2 * SD**2, h)
    within_y = expected_kernel(np.zeros(3), 2 * np.ones(3), h)
    exact = gaussian_mmd(MEAN, SD, h) + (1 - within_x) / n + (1 - within_y) / m
    assert np.mean(values) == pytest.approx(exact, abs=4 * np.std(values) / len(values) ** 0.5)


def test_two_points_by_hand():
    x, y = np.array([[0.0]]), np.array([[2.0]])
    # k(0, 2) = exp(-4/h); with itself 1.
    value = metrics.mmd(x, y, parvi.kernels.Fixed(2.0))
    assert value == pytest.approx(2 - 2 * np.exp(-2.0), rel=1e-12)
    assert metrics.mmd(x, x, parvi.kernels.Fixed(2.0)) == pytest.approx(0.0, abs=1e-12)


def test_median_bandwidth_is_taken_from_the_reference():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 2)), 10 * rng.normal(size=(61, 2))
    squares = np.sum((y[:, None] - y) ** 2, axis=-1)[np.triu_indices(61, 1)]
    # 1830 pairs: the search for the median stops between two of them.
    expected = metrics.mmd(x, y, parvi.kernels.Fixed(float(np.median(squares))))
    assert metrics.mmd(x, y) == pytest.approx(expected, rel=1e-2)
    assert metrics.mmd(x, y) != pytest.approx(metrics.mmd(y, x), rel=1e-2)


def test_blocks_change_nothing_and_bound_the_memory():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(1501, 2)), rng.normal(size=(1200, 2))
    whole = metrics.mmd(x, y, parvi.kernels.Fixed(1.0), unbiased=True, block_size=5000)
    tracemalloc.start()
    tiled = metrics.mmd(x, y, parvi.kernels.Fixed(1.0), unbiased=True, block_size=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Only the order of summation changes.
    assert tiled == pytest.approx(whole, abs=1e-12)
    # A full matrix is 14 MB; a handful of tiles of 80 kB and copies of the points are all.
    assert peak < 2e6


def test_wrong_inputs():
    x = np.zeros((3, 1))
    with pytest.raises(ValueError, match="x must have at least 2"):
        metrics.mmd(x[:1], x, unbiased=True)
    with pytest.raises(ValueError, match="scales must be positive"):
        metrics.mmd(x, x, scales=())
    with pytest.raises(ValueError, match="same dimension"):
        metrics.mmd(x, np.zeros((3, 2)))
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        metrics.mmd(x, x, parvi.kernels.Fixed(-1.0))
