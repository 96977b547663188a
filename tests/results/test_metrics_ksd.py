"""The kernel Stein discrepancy: closed forms, autodiff, calibration and power of its test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import parvi
from parvi import metrics
from parvi.kernels import AbstractRadialKernel, Profile

KERNELS = [
    parvi.kernels.IMQ(parvi.kernels.Fixed(1.7)),
    parvi.kernels.RBF(parvi.kernels.Fixed(2.3)),
    parvi.kernels.IMQ(parvi.kernels.Fixed(3.0), 0.8),
]


def stein_matrix(kernel, x, s):
    """u(x_i, x_j) from its definition, every derivative by JAX."""

    def u(a, s_a, b, s_b):
        mixed = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(a, b)
        first = s_a @ jax.grad(kernel, argnums=1)(a, b) + s_b @ jax.grad(kernel, argnums=0)(a, b)
        return s_a @ s_b * kernel(a, b) + first + jnp.trace(mixed)

    with jax.enable_x64(True):
        rows = jax.vmap(jax.vmap(u, (None, None, 0, 0)), (0, 0, None, None))
        return np.asarray(rows(*map(jnp.asarray, (x, s, x, s))))


@pytest.fixture
def cloud():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(23, 3)) + 0.3
    return x, -x * np.array([1.0, 0.5, 2.0]) + 0.1 * np.sin(x)


@pytest.mark.first_quick
@pytest.mark.parametrize("kernel", KERNELS)
def test_against_the_definition_by_autodiff(kernel, cloud):
    u = stein_matrix(kernel, *cloud)
    num = len(u)
    # Both are float64 sums of 529 terms of order one.
    assert metrics.ksd(*cloud, kernel) == pytest.approx(u.mean(), abs=1e-12)
    distinct = (u.sum() - np.trace(u)) / (num * (num - 1))
    assert metrics.ksd(*cloud, kernel, unbiased=True) == pytest.approx(distinct, abs=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_particle(kernel):
    x, s = np.array([[1.0, 2.0, 3.0]]), np.array([[0.5, -1.0, 2.0]])
    at_zero = kernel.profile(jnp.zeros(()), 3)
    # |s|^2 phi(0) - 2 d phi'(0); the profile here is in float32.
    expected = 5.25 * float(at_zero.value) - 2 * 3 * float(at_zero.first)
    assert metrics.ksd(x, s, kernel) == pytest.approx(expected, rel=1e-6)


def test_expectation_between_gaussians():
    """S = E[(s_p - s_q) . (s_p - s_q)' k] = a^2 E k for particles of q = N(a, 1), p = N(0, 1).

    With k = exp(-r^2/h) and r ~ N(0, 2), E k = (1 + 4/h)^(-1/2).
    """
    shift, h, num, repeats = 0.7, 2.0, 50, 200
    rng = np.random.default_rng(1)
    values = []
    for _ in range(repeats):
        x = shift + rng.normal(size=(num, 1))
        values.append(metrics.ksd(x, -x, parvi.kernels.RBF(parvi.kernels.Fixed(h)), unbiased=True))
    exact = shift**2 * (1 + 4 / h) ** -0.5
    error = np.std(values) / repeats**0.5
    # 4 standard errors: a false failure is less likely than 1e-4.
    assert np.mean(values) == pytest.approx(exact, abs=4 * error)
    assert error < 0.05 * exact


def test_is_minus_the_kl_rate_of_svgd(cloud):
    x, s = (jnp.asarray(part, jnp.float32) for part in cloud)
    kernel = parvi.kernels.RBF(parvi.kernels.Fixed(2.3))
    field = parvi.fields.SVGD(kernel)
    linear = parvi.interface.Cloud(x, s, jnp.zeros(len(x)), lambda z: jnp.zeros(()))
    fit, _ = field.fit(jax.random.key(0), linear, ())
    # float32 in the field.
    assert metrics.ksd(*cloud, kernel) == pytest.approx(-float(fit.kl_rate), rel=1e-4)


@pytest.mark.first_quick
@pytest.mark.parametrize("unbiased", [False, True])
def test_blocks_change_nothing(cloud, unbiased):
    whole = metrics.ksd(*cloud, unbiased=unbiased)
    for block_size in (1, 7):
        tiled = metrics.ksd(*cloud, unbiased=unbiased, block_size=block_size)
        # Only the order of summation changes.
        assert tiled == pytest.approx(whole, abs=1e-12)


def test_no_array_is_larger_than_a_block(cloud):
    shapes = []

    class Recording(AbstractRadialKernel):
        """An RBF kernel with h = 1 that writes down the shapes at which it is asked."""

        def adapted(self, particles, max_points):
            return self

        def profile(self, square, dim):
            shapes.append(square.shape)
            value = jnp.exp(-square)
            return Profile(value, -value, value)

    value = metrics.ksd(*cloud, Recording(), block_size=5)
    assert set(shapes) == {(5, 5)}
    assert value == pytest.approx(
        metrics.ksd(*cloud, parvi.kernels.RBF(parvi.kernels.Fixed(1.0))), abs=1e-12
    )


def test_default_bandwidth_makes_it_free_of_units_up_to_the_score(cloud):
    x, s = cloud
    # In units of 1/10 the particles are ten times larger and the scores ten times smaller.
    assert metrics.ksd(10 * x, s / 10) == pytest.approx(metrics.ksd(x, s) / 100, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("bootstrap", [metrics.WildBootstrap(), metrics.MultinomialBootstrap()])
def test_rejects_at_its_level_under_the_null(bootstrap):
    num, repeats, level = 40, 200, 0.05
    rng = np.random.default_rng(2)
    rejected = 0
    for seed in range(repeats):
        x = rng.normal(size=(num, 2))
        test = metrics.ksd_test(x, -x, num_bootstrap=99, bootstrap=bootstrap, key=seed)
        rejected += test.p_value <= level
    # The central 99.8 % of the binomial: [2, 20] of 200.
    low, high = scipy.stats.binom.ppf([0.001, 0.999], repeats, level)
    assert low <= rejected <= high


@pytest.mark.parametrize("bootstrap", [metrics.WildBootstrap(), metrics.MultinomialBootstrap()])
def test_has_power_against_a_shift_and_a_collapse(bootstrap):
    rng = np.random.default_rng(3)
    z = rng.normal(size=(100, 2))
    fits = metrics.ksd_test(z, -z, bootstrap=bootstrap)
    assert fits.p_value > 0.05
    assert fits.statistic == pytest.approx(metrics.ksd(z, -z, unbiased=True), abs=1e-12)
    # A shift of half a standard deviation is 5 standard errors of the mean in each coordinate;
    # half the standard deviation is as far out. The smallest p-value is 1/1001.
    for x in (z + 0.5, 0.5 * z):
        test = metrics.ksd_test(x, -x, bootstrap=bootstrap)
        assert test.p_value < 0.01
        assert test.statistic > 5 * abs(fits.statistic)


def test_wild_bootstrap_of_a_chain():
    """Correlated draws are rejected as if independent, not where neighbours share their signs."""
    num, repeats, memory = 200, 40, 0.9
    rng = np.random.default_rng(4)
    rejected = {0.5: 0, 0.02: 0}
    for seed in range(repeats):
        noise = rng.normal(size=num)
        x = np.empty((num, 1))
        x[0] = noise[0]
        for t in range(1, num):
            x[t] = memory * x[t - 1] + (1 - memory**2) ** 0.5 * noise[t]
        for flip in rejected:
            bootstrap = metrics.WildBootstrap(flip)
            test = metrics.ksd_test(x, -x, num_bootstrap=99, bootstrap=bootstrap, key=seed)
            rejected[flip] += test.p_value <= 0.05
    # The chain holds about 10 independent draws: the naive test rejects most of the time. Signs
    # that last 25 draws are longer than its memory (19 draws): near the level, at most 10 of 40
    # (a binomial at 5 % exceeds 10 with probability 1e-6; at 10 %, with 1e-3).
    assert rejected[0.5] > 20
    assert rejected[0.02] <= 10


def test_wrong_inputs(cloud):
    x, s = cloud
    with pytest.raises(ValueError, match=r"scores must hold one gradient a particle"):
        metrics.ksd(x, s[:, :2])
    with pytest.raises(ValueError, match="at least 2"):
        metrics.ksd(x[:1], s[:1], unbiased=True)
    with pytest.raises(ValueError, match="radial kernel"):
        metrics.ksd(x, s, parvi.kernels.LinearKernel())
    with pytest.raises(ValueError, match="block_size"):
        metrics.ksd(x, s, block_size=0)
    with pytest.raises(ValueError, match="num_bootstrap"):
        metrics.ksd_test(x, s, num_bootstrap=0)
    with pytest.raises(ValueError, match="flip_probability"):
        metrics.WildBootstrap(0.7)
