"""SVGD is the functional gradient with the RKHS norm as regulariser (Dong et al. 2023, Sec. 3.2).

And its closed forms: kernels against their definition, the KL rate against the kernel Stein
discrepancy, the variance to which it collapses in high dimension, the median of its bandwidth.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from oracle import exact
from parvi.cloud import Cloud
from parvi.fields.svgd import SVGD
from parvi.interface import kl_rate
from parvi.kernels import (
    IMQ,
    RBF,
    CallableKernel,
    Fixed,
    LinearKernel,
    Median,
    median_square_distance,
)
from parvi.run.step import step
from parvi.samplers.flow import Flow
from parvi.steppers import Constant

# Sums of 25 x 25 terms of order one in float64; each side rounds in its own order.
ROUNDING = 1e-11
H = 1.7


def log_density(x):
    """Not Gaussian, so that no symmetry hides an error."""
    return -0.5 * jnp.sum(x**2) - 0.1 * x[0] ** 4 + jnp.sin(x[0] + 2 * x[1])


def some_particles(num=25, dim=3, seed=0):
    return np.random.default_rng(seed).normal(size=(num, dim))


# The functional gradient on a finite feature map.


def feature_map(dim, seed=1):
    rng = np.random.default_rng(seed)
    directions, offsets = jnp.asarray(rng.normal(size=(7, dim))), jnp.asarray(rng.normal(size=7))

    def psi(x):
        return jnp.concatenate([jnp.ones(1), x, jnp.tanh(directions @ x + offsets)])

    return psi


def test_finite_feature_map():
    """W = E[(grad psi)^T + s psi^T] minimises the objective, and W psi is SVGD with psi . psi."""
    particles = jnp.asarray(some_particles())
    psi = feature_map(3)
    cloud = Cloud.at(log_density, particles)

    def objective(weights):
        def term(x, score):
            velocity = lambda point: weights @ psi(point)  # noqa: E731
            return jnp.trace(jax.jacfwd(velocity)(x)) + velocity(x) @ score

        gain = jnp.mean(jax.vmap(term)(particles, cloud.scores))
        return -gain + 0.5 * jnp.sum(weights**2)

    def weight(x, score):
        return jax.jacfwd(psi)(x).T + jnp.outer(score, psi(x))

    best = jnp.mean(jax.jit(jax.vmap(weight))(particles, cloud.scores), axis=0)
    assert np.max(np.abs(jax.jit(jax.grad(objective))(best))) < ROUNDING

    kernel = CallableKernel(lambda x, y: psi(x) @ psi(y))
    fit = exact.fit(SVGD(kernel), log_density, particles)
    assert exact.relative_error(fit.values, jax.vmap(psi)(particles) @ best.T) < ROUNDING
    # The minimum is minus half of the squared norm, and the KL falls with the whole of it.
    minimum = float(jax.jit(objective)(best))
    assert minimum == pytest.approx(-0.5 * float(jnp.sum(best**2)), rel=ROUNDING)
    assert float(fit.kl_rate) == pytest.approx(-float(jnp.sum(best**2)), rel=ROUNDING)


@pytest.mark.parametrize(
    "kernel",
    [RBF(), RBF(Fixed(H)), IMQ()],
    ids=["rbf_median", "rbf_fixed", "imq"],
)
def test_one_particle_is_gradient_ascent(kernel):
    particles = jnp.asarray(some_particles(num=1))
    sampler = Flow(SVGD(kernel), Constant(0.1))
    move = eqx.filter_jit(step)
    cloud = Cloud.at(log_density, particles)
    memory = sampler.init(jax.random.key(0), cloud)
    ascent = jax.jit(lambda x: x + 0.1 * jax.grad(log_density)(x))
    x = particles[0]
    for _ in range(10):
        cloud, memory, *_ = move(jax.random.key(0), cloud, memory, sampler)
        x = ascent(x)
    assert exact.relative_error(cloud.particles[0], x) < ROUNDING


# Kernels in closed form against their definition, differentiated by JAX.

KERNELS = {
    "rbf": (RBF(Fixed(H)), lambda x, y: jnp.exp(-jnp.sum((x - y) ** 2) / H)),
    "rbf_normalised": (
        RBF(Fixed(H), normalised=True),
        # h = 2 sigma^2 and the factor is 1 / sigma.
        lambda x, y: jnp.exp(-jnp.sum((x - y) ** 2) / H) / jnp.sqrt(H / 2),
    ),
    "imq": (
        IMQ(Fixed(H), beta=0.7),
        lambda x, y: (1 + jnp.sum((x - y) ** 2) / H) ** -0.7,
    ),
    "linear": (
        LinearKernel(jnp.diag(jnp.array([1.0, 2.0, 3.0])) + 0.5),
        lambda x, y: x @ (jnp.diag(jnp.array([1.0, 2.0, 3.0])) + 0.5) @ y + 1,
    ),
}

each_kernel = pytest.mark.parametrize("name", KERNELS)


@eqx.filter_jit
def both(fit, points):
    """Values and divergences of a fitted velocity at other points."""
    cloud = exact.cloud_of(log_density, points)
    return fit.velocity.on(cloud), fit.velocity.divergences(cloud)


@eqx.filter_jit
def forward_mode(velocity, points):
    return jax.vmap(lambda x: jnp.trace(jax.jacfwd(velocity)(x)))(points)


@each_kernel
def test_closed_form_is_the_generic_one(name):
    kernel, function = KERNELS[name]
    particles = some_particles()
    closed = exact.fit(SVGD(kernel), log_density, particles)
    generic = exact.fit(SVGD(CallableKernel(function)), log_density, particles)
    assert exact.relative_error(closed.values, generic.values) < ROUNDING
    assert float(closed.kl_rate) == pytest.approx(float(generic.kl_rate), rel=ROUNDING)
    # Where no particle is, too: values and divergences.
    elsewhere = some_particles(num=6, seed=2)
    for one, other in zip(both(closed, elsewhere), both(generic, elsewhere), strict=True):
        assert exact.relative_error(one, other) < ROUNDING


@each_kernel
def test_kl_rate_is_minus_the_squared_stein_discrepancy(name):
    """Forward mode gives the same divergences, and the Stein kernel the same rate."""
    kernel, function = KERNELS[name]
    particles = some_particles()
    cloud = exact.cloud_of(log_density, particles)
    fit = exact.fit(SVGD(kernel), log_density, particles)
    trace = forward_mode(fit.velocity, cloud.particles)
    assert exact.relative_error(both(fit, particles)[1], trace) < ROUNDING
    rate = kl_rate(fit.values, trace, cloud.scores)
    assert float(fit.kl_rate) == pytest.approx(float(rate), rel=ROUNDING)

    def stein_kernel(x, s, y, t):
        mixed = jnp.trace(jax.jacfwd(jax.grad(function, argnums=0), argnums=1)(x, y))
        cross = t @ jax.grad(function, argnums=0)(x, y) + s @ jax.grad(function, argnums=1)(x, y)
        return function(x, y) * (s @ t) + cross + mixed

    over_y = jax.vmap(stein_kernel, in_axes=(None, None, 0, 0))
    over_both = jax.jit(jax.vmap(over_y, in_axes=(0, 0, None, None)))
    x, s = cloud.particles, cloud.scores
    discrepancy = float(jnp.mean(over_both(x, s, x, s)))
    assert discrepancy > 0
    assert float(fit.kl_rate) == pytest.approx(-discrepancy, rel=ROUNDING)


@pytest.mark.parametrize("block_size", [1, 7, 25, 100])
def test_blocks_change_nothing(block_size):
    particles = some_particles()
    kernel = RBF(Fixed(H))
    whole = exact.fit(SVGD(kernel), log_density, particles)
    blocked = exact.fit(SVGD(kernel, block_size), log_density, particles)
    assert exact.relative_error(blocked.values, whole.values) < ROUNDING
    assert float(blocked.kl_rate) == pytest.approx(float(whole.kl_rate), rel=ROUNDING)


# Collapse in high dimension. For d >= n - 1 the particles can be a regular simplex with centre
# zero, all squared distances r^2; then on N(0, I) the velocity of x_i is
# (k - 1 + 2 n k / h) x_i / n with k = exp(-r^2 / h), and rest asks for h = 2 n k / (1 - k).
#   h = r^2 / log n: k = 1/n, the variance |x|^2 / d is log(n) / d.
#   h = r^2:         k = 1/e, the variance is (n - 1) / ((e - 1) d), about 0.582 n / d.

BANDWIDTHS = {
    "over_log": (Median(), lambda num: np.log(num)),
    "median": (Median(over_log=False), lambda num: (num - 1) / (np.e - 1)),
}

each_bandwidth = pytest.mark.parametrize("bandwidth", BANDWIDTHS)


@each_bandwidth
def test_simplex_is_at_rest(bandwidth):
    num = 12
    median, square_length = BANDWIDTHS[bandwidth]
    corners = np.eye(num) - 1 / num
    simplex = corners * np.sqrt(square_length(num) / np.sum(corners[0] ** 2))

    def outward(factor):
        field = SVGD(RBF(median))
        fit = exact.fit(field, lambda x: -0.5 * jnp.sum(x**2), factor * simplex)
        return float(np.sum(np.asarray(fit.values) * simplex) / np.sum(simplex**2))

    # All distances are equal: the search for the median stops within 1e-6 of the jump.
    assert abs(outward(1.0)) < 1e-6
    # Smaller simplices grow and larger ones shrink: it attracts.
    assert outward(0.9) > 1e-3
    assert outward(1.1) < -1e-3


@each_bandwidth
@pytest.mark.parametrize(("num", "dim"), [(20, 200), (40, 100)])
def test_variance_collapses_in_high_dimension(bandwidth, num, dim):
    median, square_length = BANDWIDTHS[bandwidth]
    sampler = Flow(SVGD(RBF(median)), Constant(2.0))
    result = parvi.sample(
        lambda x: -0.5 * jnp.sum(x**2), some_particles(num, dim), sampler=sampler, num_steps=600
    )
    variance = np.mean(np.var(result.particles, axis=0))
    # What is left: the last modes decay like (1 - step / n)^600 < 1e-12, and the median is found
    # to 1e-4 of its rank, among distances that have become equal.
    assert variance * dim / square_length(num) == pytest.approx(1, abs=1e-4)


# The fast median against NumPy, over distinct pairs. Where their number is even any value between
# the middle two is a median.


def middle_two(particles):
    first, second = np.triu_indices(len(particles), 1)
    squares = np.sort(np.sum((particles[first] - particles[second]) ** 2, axis=1))
    return squares[(len(squares) - 1) // 2], squares[len(squares) // 2]


def clumps(sizes, width):
    rng = np.random.default_rng(3)
    centres = 5 * rng.normal(size=(len(sizes), 2))
    return np.repeat(centres, sizes, axis=0) + width * rng.normal(size=(sum(sizes), 2))


SETS = {
    "two": some_particles(2),
    "three": some_particles(3),
    "few": some_particles(11),
    "lattice": np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0)), -1).reshape(-1, 2),
    "clumps": clumps([5, 5], 1e-3),
    "uneven_clumps": clumps([10, 2, 1], 1e-3),
    # 18 pairs within and 18 between: the middle two are far apart.
    "balanced_clumps": clumps([6, 3], 1e-3),
    "few_duplicates": np.repeat(some_particles(10), 2, axis=0),
    "far_away": 1e4 + some_particles(20),
}


@pytest.mark.parametrize("name", SETS)
def test_median_against_numpy(name):
    particles = SETS[name]
    low, high = middle_two(particles)
    median = float(median_square_distance(jnp.asarray(particles)))
    # The search stops within 1e-6 of a jump of the rank; distances 1e4 away from zero keep 1e-8.
    assert low * (1 - 1e-5) <= median <= high * (1 + 1e-5)


def test_median_of_many():
    particles = some_particles(400, 5)
    first, second = np.triu_indices(400, 1)
    squares = np.sum((particles[first] - particles[second]) ** 2, axis=1)
    median = float(median_square_distance(jnp.asarray(particles)))
    # The rank is right to 1e-4, and so the value to about that.
    assert np.mean(squares <= median) == pytest.approx(0.5, abs=1.1e-4)
    assert median == pytest.approx(np.median(squares), rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("coinciding", [9, 12])
def test_more_than_half_of_the_pairs_coincide(dtype, shift, coinciding):
    """The median is zero, not the rounding of a distance: the bandwidth is then 1."""
    particles = np.array(some_particles(12))
    particles[:coinciding] = 0.0
    particles = jnp.asarray((particles + shift).astype(dtype))
    assert float(median_square_distance(particles)) == 0.0
    assert float(Median().of(particles, None)) == 1.0
    fit = exact.fit(SVGD(), log_density, particles)
    assert np.all(np.isfinite(fit.values))
    assert fit.kl_rate < 0


def test_median_of_one_particle():
    assert float(median_square_distance(jnp.ones((1, 3)))) == 0.0
