"""Preconditioners: each estimate of H against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from oracle import exact
from parvi.fields.pfg.preconditioners import AbstractPreconditioner

# Estimates of condition number 1e2 in float64.
ROUNDING = 1e-11
DIM, NUM = 6, 20
SHAPES = ((2, 2), (2,))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def log_density(x):
    """Strictly concave and not Gaussian: its Hessian differs from particle to particle."""
    curvatures = jnp.arange(1.0, x.shape[0] + 1)
    return -0.5 * jnp.sum(curvatures * x**2) - 0.2 * (x[0] - x[1]) ** 2 - 0.05 * jnp.sum(x**4)


def saddle(x):
    """Curvatures 1, 2, ... but the first is of the wrong sign."""
    curvatures = jnp.arange(1.0, x.shape[0] + 1).at[0].set(-1.0)
    return -0.5 * jnp.sum(curvatures * x**2)


def a_cloud(seed=0, num=NUM, density=log_density):
    return exact.cloud_of(density, np.random.default_rng(seed).normal(size=(num, DIM)))


def estimated(preconditioner: AbstractPreconditioner, cloud):
    memory = preconditioner.init(cloud.particles)
    return preconditioner.update(cloud, memory)[0]


def dense(metric):
    """H as a matrix."""
    return np.asarray(metric.apply(jnp.eye(DIM)))


def power(matrix, exponent, damping):
    """Eigenvalues by size, clipped at ``damping`` times the largest, to ``exponent``."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(np.abs(values), damping * np.max(np.abs(values)))
    return vectors * values**exponent @ vectors.T


def fisher(cloud):
    return np.asarray(cloud.scores).T @ np.asarray(cloud.scores) / len(cloud.scores)


def hessian(cloud):
    return -np.mean(jax.vmap(jax.hessian(cloud.log_density))(cloud.particles), axis=0)


def covariance(cloud):
    return exact.moments(cloud.particles)[1]


DENSE = {
    "fisher": (parvi.preconditioners.Fisher, fisher),
    "hessian": (parvi.preconditioners.Hessian, hessian),
    "covariance": (parvi.preconditioners.InverseCovariance, covariance),
}
each_dense = pytest.mark.parametrize("name", DENSE)
each_exponent = pytest.mark.parametrize("exponent", [0.0, 0.1, 0.5, 1.0])


@each_dense
@each_exponent
def test_dense_estimates(name, exponent):
    make, reference = DENSE[name]
    cloud = a_cloud()
    expected = power(reference(cloud), exponent, 1e-6)
    if name == "covariance":
        expected = np.linalg.inv(expected)
    metric = estimated(make(exponent=exponent, damping=1e-6), cloud)
    assert exact.relative_error(dense(metric), expected) < ROUNDING


@each_exponent
def test_fisher_diagonal(exponent):
    cloud = a_cloud()
    squares = np.mean(np.asarray(cloud.scores) ** 2, axis=0)
    expected = np.diag((squares + 0.01 * squares.mean()) ** exponent)
    metric = estimated(parvi.preconditioners.FisherDiagonal(exponent=exponent, damping=0.01), cloud)
    assert exact.relative_error(dense(metric), expected) < ROUNDING


def test_identity():
    assert np.array_equal(
        dense(estimated(parvi.preconditioners.Identity(), a_cloud())), np.eye(DIM)
    )


def test_regressed_hessian():
    """Stein's lemma: -C^-1 E[(x - m) s^T], symmetrised where C = I, and at least C^-1."""
    cloud = a_cloud()
    x, s = np.asarray(cloud.particles), np.asarray(cloud.scores)
    mean, own_covariance = exact.moments(x)
    factor = np.linalg.cholesky(own_covariance)
    z = np.linalg.solve(factor, (x - mean).T).T
    slope = -(s @ factor).T @ z / NUM
    values, vectors = np.linalg.eigh((slope + slope.T) / 2)
    inner = vectors * np.maximum(values, 1) @ vectors.T
    inverse = np.linalg.inv(factor)
    expected = inverse.T @ inner @ inverse
    # The frame has a jitter of 100 eps on its correlations, of condition number below 1e2.
    metric = estimated(parvi.preconditioners.RegressedHessian(), cloud)
    assert exact.relative_error(dense(metric), expected) < ROUNDING


def test_regressed_hessian_of_a_gaussian_is_its_precision():
    """Where the cloud is wider than the target in every direction; else the inverse covariance."""
    rng = np.random.default_rng(1)
    target = exact.covariance_of(rng, np.geomspace(0.1, 1, DIM))
    density = exact.gaussian(np.ones(DIM), target)
    wide = exact.particles_with(rng, NUM, np.zeros(DIM), 2 * target)
    metric = estimated(parvi.preconditioners.RegressedHessian(), exact.cloud_of(density, wide))
    assert exact.relative_error(dense(metric), np.linalg.inv(target)) < ROUNDING
    narrow = exact.particles_with(rng, NUM, np.zeros(DIM), target / 3)
    metric = estimated(parvi.preconditioners.RegressedHessian(), exact.cloud_of(density, narrow))
    assert exact.relative_error(dense(metric), np.linalg.inv(target / 3)) < ROUNDING


def kronecker_reference(scores, exponent, damping):
    """Block by block, from the definition."""
    out = np.zeros((DIM, DIM))
    matrices = np.asarray(scores)[:, :4].reshape(-1, 2, 2)
    left = np.mean([S @ S.T for S in matrices], axis=0)
    right = np.mean([S.T @ S for S in matrices], axis=0)
    left = left / np.mean([np.sum(S**2) for S in matrices])
    out[:4, :4] = np.kron(power(left, exponent, damping), power(right, exponent, damping))
    squares = np.mean(np.asarray(scores)[:, 4:] ** 2, axis=0)
    out[4:, 4:] = np.diag((squares + damping * squares.mean()) ** exponent)
    return out


@each_exponent
def test_kronecker(exponent):
    cloud = a_cloud()
    metric = estimated(
        parvi.preconditioners.Kronecker(SHAPES, exponent=exponent, damping=0.01), cloud
    )
    expected = kronecker_reference(cloud.scores, exponent, 0.01)
    assert exact.relative_error(dense(metric), expected) < ROUNDING


def test_kronecker_is_exact_for_a_kronecker_fisher():
    rng = np.random.default_rng(2)
    left = exact.covariance_of(rng, [1.0, 3.0])
    right = exact.covariance_of(rng, [0.5, 1.0, 2.0])
    information = np.kron(left, right)
    # Scores with mean zero and exactly this covariance: for N(0, information) they are -A^-1 x.
    particles = exact.particles_with(rng, NUM, np.zeros(DIM), np.linalg.inv(information))
    cloud = exact.cloud_of(exact.gaussian(np.zeros(DIM), np.linalg.inv(information)), particles)
    assert exact.relative_error(fisher(cloud), information) < ROUNDING
    metric = estimated(parvi.preconditioners.Kronecker(((2, 3),), damping=1e-6), cloud)
    assert exact.relative_error(dense(metric), information) < ROUNDING


def test_kronecker_like_a_particle():
    particle = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(2), "c": jnp.zeros(())}
    assert parvi.preconditioners.Kronecker.like(particle, decay=0.5).shapes == ((2, 2), (2,), ())
    with pytest.raises(ValueError, match=r"7 numbers, but the particles have 6"):
        parvi.preconditioners.Kronecker.like(particle).init(jnp.zeros((3, DIM)))


ALL = {
    "identity": parvi.preconditioners.Identity(),
    "fisher_diagonal": parvi.preconditioners.FisherDiagonal(),
    "fisher": parvi.preconditioners.Fisher(),
    "hessian": parvi.preconditioners.Hessian(),
    "inverse_covariance": parvi.preconditioners.InverseCovariance(),
    "regressed_hessian": parvi.preconditioners.RegressedHessian(),
    "kronecker": parvi.preconditioners.Kronecker(SHAPES),
}
each = pytest.mark.parametrize("name", ALL)


@each
def test_solve_undoes_apply(name):
    metric = estimated(ALL[name], a_cloud())
    vectors = jnp.asarray(np.random.default_rng(3).normal(size=(5, DIM)))
    assert exact.relative_error(metric.solve(metric.apply(vectors)), vectors) < ROUNDING
    assert exact.relative_error(metric.apply(metric.solve(vectors)), vectors) < ROUNDING
    # One vector is treated as a row of many.
    one = metric.apply(vectors[2])
    assert exact.relative_error(one, metric.apply(vectors)[2]) < ROUNDING


@each
@pytest.mark.parametrize("case", ["saddle", "one_particle", "coinciding", "few"])
def test_always_positive_definite(name, case):
    """An indefinite Hessian, and clouds whose moments are singular."""
    cloud = {
        "saddle": lambda: a_cloud(density=saddle),
        "one_particle": lambda: a_cloud(num=1),
        "coinciding": lambda: exact.cloud_of(log_density, np.ones((NUM, DIM))),
        "few": lambda: a_cloud(num=3),
    }[case]()
    metric = estimated(ALL[name], cloud)
    matrix = dense(metric)
    assert exact.relative_error(matrix, matrix.T) < 1e-8
    assert np.all(np.isfinite(matrix))
    assert np.linalg.eigvalsh((matrix + matrix.T) / 2)[0] > 0
    assert np.all(np.isfinite(metric.solve(jnp.ones(DIM))))


def test_indefinite_hessian_is_taken_by_size():
    metric = estimated(parvi.preconditioners.Hessian(), a_cloud(density=saddle))
    expected = np.diag(np.arange(1.0, DIM + 1))
    assert exact.relative_error(dense(metric), expected) < ROUNDING
    clipped = dense(estimated(parvi.preconditioners.Hessian(damping=0.5), a_cloud(density=saddle)))
    assert exact.relative_error(np.diag(clipped), [3, 3, 3, 4, 5, 6]) < ROUNDING


AVERAGED = {
    "fisher_diagonal": (
        parvi.preconditioners.FisherDiagonal(decay=0.7, damping=0.01),
        lambda cloud: np.diag(fisher(cloud)),
        lambda average: np.diag(average + 0.01 * average.mean()),
    ),
    "fisher": (
        parvi.preconditioners.Fisher(decay=0.7, damping=0.01),
        fisher,
        lambda average: power(average, 1.0, 0.01),
    ),
    "hessian": (
        parvi.preconditioners.Hessian(decay=0.7, damping=0.01),
        hessian,
        lambda average: power(average, 1.0, 0.01),
    ),
    "inverse_covariance": (
        parvi.preconditioners.InverseCovariance(decay=0.7, damping=0.01),
        covariance,
        lambda average: np.linalg.inv(power(average, 1.0, 0.01)),
    ),
}


@pytest.mark.parametrize("name", AVERAGED)
def test_moving_average(name):
    """Weights decay^k (1 - decay), divided by their sum: no pull towards the start at zero."""
    preconditioner, estimate, finish = AVERAGED[name]
    clouds = [a_cloud(seed) for seed in range(4)]
    memory = preconditioner.init(clouds[0].particles)
    total, weight = 0.0, 0.0
    for cloud in clouds:
        metric, memory = preconditioner.update(cloud, memory)
        total = 0.7 * total + 0.3 * estimate(cloud)
        weight = 0.7 * weight + 0.3
        assert exact.relative_error(dense(metric), finish(total / weight)) < ROUNDING


def test_kronecker_averages_its_factors():
    preconditioner = parvi.preconditioners.Kronecker(SHAPES, decay=0.7)
    first, second = a_cloud(0), a_cloud(1)
    memory = preconditioner.init(first.particles)
    _, memory = preconditioner.update(first, memory)
    metric, _ = preconditioner.update(second, memory)
    # Two steps weigh 0.7 and 1 of 1.7: the same as one cloud with 7 copies of the first and 10
    # of the second.
    scores = jnp.concatenate([first.scores] * 7 + [second.scores] * 10)
    expected = kronecker_reference(scores, 1.0, 1e-3)
    assert exact.relative_error(dense(metric), expected) < ROUNDING


@pytest.mark.parametrize(
    "make",
    [
        parvi.preconditioners.FisherDiagonal,
        parvi.preconditioners.Fisher,
        parvi.preconditioners.Hessian,
        parvi.preconditioners.InverseCovariance,
    ],
)
def test_errors(make):
    with pytest.raises(ValueError, match="exponent must be between 0 and 1"):
        make(exponent=1.5)
    with pytest.raises(ValueError, match="decay must be at least 0 and below 1"):
        make(decay=1.0)
    with pytest.raises(ValueError, match="damping must be positive"):
        make(damping=0.0)
