"""Fields that see standardised particles."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from oracle import exact
from parvi.cloud import Cloud
from parvi.geometry.frame import DenseFrame, DiagonalFrame
from parvi.run.step import step

DIM, NUM = 4, 30
# Condition number of the map, 1e2, times that of a fit, over some steps.
ROUNDING = 1e-9

SGD = optax.sgd(0.05)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def log_density(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * x[0] ** 4 + jnp.sin(x[0] + 2 * x[1])


def particles(num=NUM, seed=0):
    return np.random.default_rng(seed).normal(size=(num, DIM))


def mapped_density(matrix, offset):
    """The density of A x + b, up to its constant."""
    inverse = jnp.asarray(np.linalg.inv(matrix))
    return lambda y: log_density(inverse @ (y - jnp.asarray(offset)))


def general_map(seed=1):
    rng = np.random.default_rng(seed)
    left, right = exact.rotation(rng, DIM), exact.rotation(rng, DIM)
    return left * np.geomspace(0.1, 10, DIM) @ right, rng.normal(size=DIM)


def triangular_map():
    matrix, offset = general_map()
    lower = np.tril(matrix)
    np.fill_diagonal(lower, np.geomspace(0.1, 10, DIM))
    return lower, offset


def diagonal_map():
    return np.diag(np.geomspace(0.1, 10, DIM)), general_map()[1]


def final(field, density, start, num_steps=5):
    sampler = parvi.Flow(field, parvi.steppers.Constant(0.2))
    one = eqx.filter_jit(step)
    cloud = Cloud.at(density, jnp.asarray(start))
    memory = sampler.init(jax.random.key(0), cloud)
    for i in range(num_steps):
        cloud, memory, _, _ = one(jax.random.key(i), cloud, memory, sampler)
    return np.asarray(cloud.particles)


def assert_invariant(field, matrix, offset):
    straight = final(field, log_density, particles())
    detour = final(field, mapped_density(matrix, offset), particles() @ matrix.T + offset)
    assert exact.relative_error(detour, straight @ matrix.T + offset) < ROUNDING
    assert exact.relative_error(straight, particles()) > 0.01


ROTATION_EQUIVARIANT = {
    "pfg_identity": parvi.fields.PFG(
        parvi.functions.Linear(), parvi.preconditioners.Identity(), parvi.fields.Ridge(0.1)
    ),
    "pfg_regressed": parvi.fields.PFG(
        parvi.functions.Linear(), parvi.preconditioners.RegressedHessian(), parvi.fields.Ridge(1e-3)
    ),
    "pfg_hessian": parvi.fields.PFG(
        parvi.functions.Linear(), parvi.preconditioners.Hessian(), parvi.fields.Ridge(0.0)
    ),
    "pfg_fisher": parvi.fields.PFG(
        parvi.functions.Linear(), parvi.preconditioners.Fisher(decay=0.0), parvi.fields.Ridge(0.0)
    ),
    "svgd": parvi.fields.SVGD(parvi.kernels.RBF()),
}
ANY = {
    "random_features": parvi.fields.PFG(
        parvi.functions.RandomFeatures(8),
        parvi.preconditioners.FisherDiagonal(),
        parvi.fields.Ridge(0.1),
    ),
    "mlp": parvi.fields.PFG(
        parvi.functions.MLP(6, jnp.tanh),
        parvi.preconditioners.FisherDiagonal(),
        parvi.fields.GradientDescent(SGD, num_steps=3),
    ),
}


@pytest.mark.parametrize("name", ROTATION_EQUIVARIANT)
def test_whitened_is_affine_invariant(name):
    """A field that does not mind rotations of what it sees does not mind any affine map."""
    assert_invariant(parvi.fields.Whitened(ROTATION_EQUIVARIANT[name]), *general_map())


@pytest.mark.parametrize("name", ANY)
def test_whitened_any_field(name):
    """Any field at all: maps with the same Cholesky frame, lower triangular ones."""
    assert_invariant(parvi.fields.Whitened(ANY[name]), *triangular_map())


@pytest.mark.parametrize("name", ANY)
def test_standardised_is_invariant_to_units(name):
    assert_invariant(parvi.fields.Standardised(ANY[name]), *diagonal_map())


def test_without_a_frame_it_is_not_invariant():
    field = ROTATION_EQUIVARIANT["pfg_identity"]
    with pytest.raises(AssertionError):
        assert_invariant(field, *general_map())


FRAMES = {"dense": DenseFrame, "diagonal": DiagonalFrame}
each_frame = pytest.mark.parametrize("name", FRAMES)


@each_frame
def test_moments_in_the_frame(name):
    x = particles() @ general_map()[0].T + 5
    frame = FRAMES[name].of(jnp.asarray(x))
    mean, covariance = exact.moments(frame.enter(jnp.asarray(x)))
    assert np.max(np.abs(mean)) < 1e-12
    off_diagonal = covariance - np.diag(np.diag(covariance))
    # The jitter of the dense frame is 100 eps, over correlations whose condition is some 1e3.
    np.testing.assert_allclose(np.diag(covariance), 1, rtol=1e-9)
    assert name == "diagonal" or np.max(np.abs(off_diagonal)) < 1e-9


@each_frame
def test_operations_of_a_frame(name):
    x = jnp.asarray(particles() @ general_map()[0].T + 5)
    frame = FRAMES[name].of(x)
    factor = np.asarray(frame.stretch(jnp.eye(DIM))).T  # Row i of stretch(I) is L e_i.
    vectors = particles(3, seed=2)
    np.testing.assert_allclose(frame.stretch(jnp.asarray(vectors)), vectors @ factor.T, rtol=1e-9)
    np.testing.assert_allclose(frame.pull(jnp.asarray(vectors)), vectors @ factor, rtol=1e-9)
    back = frame.shrink(frame.stretch(jnp.asarray(vectors)))
    np.testing.assert_allclose(back, vectors, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(frame.leave(frame.enter(x)), x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("wrap", [parvi.fields.Whitened, parvi.fields.Standardised])
def test_velocity_of_a_frame(wrap):
    """Values, divergences and the KL rate in x are those of the velocity as a function of x."""
    field = wrap(ANY["mlp"])
    # Correlated, and not so wide that the quartic term makes the scores explode.
    x = particles() @ (np.eye(DIM) + 0.3 * np.tri(DIM))
    fit = exact.fit(field, log_density, x)
    cloud = exact.cloud_of(log_density, x)

    @eqx.filter_jit
    def found(velocity, cloud):
        values = jax.vmap(velocity)(cloud.particles)
        traces = jax.vmap(lambda p: jnp.trace(jax.jacfwd(velocity)(p)))(cloud.particles)
        return values, traces, velocity.on(cloud), velocity.divergences(cloud)

    values, traces, on, divergences = map(np.asarray, found(fit.velocity, cloud))
    assert exact.relative_error(fit.values, values) < ROUNDING
    assert exact.relative_error(on, values) < ROUNDING
    assert exact.relative_error(divergences, traces) < ROUNDING
    rate = -float(np.mean(np.sum(values * np.asarray(cloud.scores), axis=1) + traces))
    assert float(fit.kl_rate) == pytest.approx(rate, rel=ROUNDING)


def singular(case, dtype):
    x = particles(seed=3)
    if case == "one_particle":
        x = x[:1]
    elif case == "coinciding":
        x = np.repeat(x[:1], NUM, axis=0)
    elif case == "in_a_plane":
        x[:, 2:] = x[:, :2] @ np.array([[1.0, 2.0], [-1.0, 1.0]])
    elif case == "constant_coordinate":
        x[:, 1] = 3.0
    elif case == "fewer_than_dimensions":
        x = x[:3]
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "case",
    ["one_particle", "coinciding", "in_a_plane", "constant_coordinate", "fewer_than_dimensions"],
)
@pytest.mark.parametrize("wrap", [parvi.fields.Whitened, parvi.fields.Standardised])
def test_singular_clouds_stay_finite(case, wrap, dtype):
    field = wrap(
        parvi.fields.PFG(
            parvi.functions.Linear(),
            parvi.preconditioners.RegressedHessian(),
            parvi.fields.Ridge(1e-3),
        )
    )
    fit = exact.fit(field, log_density, singular(case, dtype))
    assert fit.values.dtype == dtype
    assert np.all(np.isfinite(fit.values))
    assert np.isfinite(fit.kl_rate)
    assert np.all(np.isfinite(fit.velocity.precondition(jnp.ones(DIM, dtype))))
