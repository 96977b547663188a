"""Energy distance, mean distance and worth against their closed forms."""

import math
import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from parvi import metrics


def mean_gaussian_distance(dim):
    """E|y - y'| for N(0, I): sqrt(2) times the mean of a chi variable, 2 Gamma(...)/Gamma(d/2)."""
    return 2 * math.exp(scipy.special.gammaln((dim + 1) / 2) - scipy.special.gammaln(dim / 2))


def test_two_point_sets_by_hand():
    x = np.array([[0.0, 0.0], [3.0, 4.0]])
    y = np.array([[0.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    between = (0 + 1 + 5 + 5 + math.hypot(3, 3) + 0) / 6
    within_x = 2 * 5 / 4  # over all four pairs
    within_y = (1 + 5 + math.hypot(3, 3)) / 3  # over distinct pairs
    # Distances come from a matrix product, good to the root of the rounding error, 1e-8.
    assert metrics.energy_distance(x, y) == pytest.approx(
        2 * between - within_x - within_y, abs=1e-7
    )
    assert metrics.mean_distance(y) == pytest.approx(within_y, abs=1e-7)


def test_mean_distance_of_gaussian_draws():
    y = np.random.default_rng(0).normal(size=(3000, 4))
    # Projection variance of the mean distance is below 4 Var|y - y'| / m with Var = about 1:
    # standard error 0.02 at most, and 3 of them.
    assert metrics.mean_distance(y) == pytest.approx(mean_gaussian_distance(4), abs=0.06)


def test_expectation_for_independent_draws_is_c_over_n():
    rng = np.random.default_rng(1)
    num, dim, repeats = 50, 3, 200
    values = [
        metrics.energy_distance(rng.normal(size=(num, dim)), rng.normal(size=(200, dim)))
        for _ in range(repeats)
    ]
    # The noise of the reference is taken out, so that c/n is exact in expectation; 4 standard
    # errors of the mean make a false failure less likely than 1e-4.
    error = np.std(values) / repeats**0.5
    assert np.mean(values) == pytest.approx(mean_gaussian_distance(dim) / num, abs=4 * error)
    assert error < 0.1 * mean_gaussian_distance(dim) / num


def test_a_shift_far_away_is_twice_the_shift():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(100, 2)) + np.array([1e6, 0]), rng.normal(size=(100, 2))
    within = 2 * mean_gaussian_distance(2)
    # 2 E|x - y| = 2e6 up to the means (0.1 each) and the curvature; the rest is E|x-x'| + E|y-y'|.
    assert metrics.energy_distance(x, y) == pytest.approx(2e6 - within, abs=2.0)
    # What is common to both samples does not matter, though it costs digits: 1e6 in units of
    # 1e-16 relative is 1e-10 in squares after centring.
    moved = metrics.energy_distance(x + 1e6, y + 1e6)
    assert moved == pytest.approx(metrics.energy_distance(x, y), rel=1e-9)


def test_worth_of_independent_draws_is_one_and_does_not_depend_on_units():
    rng = np.random.default_rng(3)
    num, dim, repeats = 25, 2, 60
    scale, mean = np.array([100.0, 0.01]), np.array([5.0, -3.0])
    reference = mean + scale * rng.normal(size=(1000, dim))
    inverse = []
    for _ in range(repeats):
        x = mean + scale * rng.normal(size=(num, dim))
        inverse.append(1 / metrics.worth(x, reference))
    # 1/worth = D/(c/n) has mean 1 up to the reference's noise, (n/m) = 1/40; 4 standard errors.
    assert np.mean(inverse) == pytest.approx(1.0, abs=4 * np.std(inverse) / repeats**0.5 + 1 / 40)


def test_worth_tells_even_from_clumped_and_shifted():
    rng = np.random.default_rng(4)
    reference = rng.normal(size=(4000, 1))
    num = 100
    even = scipy.special.ndtri((np.arange(num) + 0.5) / num)[:, None]
    # Quantiles are far better than chance: each stands for many draws.
    assert metrics.worth(even, reference) > 5
    # Every draw twenty times: the distribution of the draws, so that each is worth about 1/20;
    # D of one set of draws is seldom below a quarter of its mean.
    assert metrics.worth(np.repeat(rng.normal(size=(num, 1)), 20, axis=0), reference) < 0.2
    assert metrics.worth(even + 1, reference) < 0.1


def test_worth_is_infinite_where_the_reference_resolves_nothing():
    reference = np.random.default_rng(5).normal(size=(20, 1))
    # A set is closer to itself than any independent sample: D is minus E|y - y'|/m.
    assert metrics.worth(reference, reference) == math.inf


def test_blocks_change_nothing_and_bound_the_memory():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(1501, 2)), rng.normal(size=(1200, 2))
    whole = metrics.energy_distance(x, y, block_size=5000)
    tracemalloc.start()
    tiled = metrics.energy_distance(x, y, block_size=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Only the order of summation changes; 1e-12 is 5000 roundings.
    assert tiled == pytest.approx(whole, abs=1e-12)
    # A full matrix is 8 * 1501 * 1200 = 14 MB; tiles of 80 kB and copies of the points are all.
    assert peak < 1e6
    assert metrics.worth(x, y, block_size=100) == pytest.approx(metrics.worth(x, y))


def test_jax_arrays_and_float32():
    x, y = jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [3.0]])
    value = metrics.energy_distance(x, y)
    assert isinstance(value, float)
    assert value == pytest.approx(2 * (0 + 3 + 1 + 2) / 4 - 0.5 - 3, abs=1e-7)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros(3), np.zeros((3, 1)), r"x must have shape \(n, d\), got \(3,\)"),
        (np.zeros((3, 2)), np.zeros((3, 1)), "same dimension"),
        (np.zeros((3, 1)), np.zeros((1, 1)), "y must have at least 2"),
        (np.zeros((0, 1)), np.zeros((2, 1)), "x must have at least 1"),
        (np.full((3, 1), np.nan), np.zeros((3, 1)), "x holds values that are not finite"),
        ({"a": np.zeros(3)}, np.zeros((3, 1)), "x must be an array"),
    ],
)
def test_wrong_inputs(x, y, message):
    with pytest.raises(ValueError, match=message):
        metrics.energy_distance(x, y)
    with pytest.raises(ValueError, match=message):
        metrics.worth(x, y)


def test_wrong_settings():
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        metrics.energy_distance(np.zeros((2, 1)), np.zeros((2, 1)), block_size=0)
    with pytest.raises(ValueError, match="Coordinate 1 of the reference"):
        metrics.worth(np.zeros((2, 2)), np.array([[0.0, 1.0], [1.0, 1.0]]))
