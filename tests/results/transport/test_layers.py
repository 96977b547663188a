"""Layers against automatic differentiation, and densities that integrate to one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parvi.geometry.frame import DenseFrame
from parvi.geometry.straightening import fitted
from parvi.results.transport.chain import Chain, Stack, sobol_normal
from parvi.results.transport.importance import heavy_normal, log_heavy, log_normal
from parvi.results.transport.layers import Affine, Bent, Coupled, Inverted
from parvi.results.transport.transport import Transport
from parvi.targets.flatten import Layout


def frame_of(rng, dim):
    return DenseFrame.of(jnp.asarray(rng.normal(size=(50, dim)) @ rng.normal(size=(dim, dim)) + 1))


def bent_of(rng, dim, num_features, size=0.3):
    """A layer whose slopes are so small that it has an inverse everywhere."""
    directions = rng.normal(size=(num_features, dim)) / dim**0.5
    weights = rng.normal(size=(dim, 1 + dim + num_features))
    scale = size / np.linalg.norm(weights[:, 1:], 2) / max(1.0, np.linalg.norm(directions, 2))
    return Bent(
        frame_of(rng, dim),
        jnp.asarray(directions),
        jnp.asarray(rng.normal(size=num_features)),
        jnp.asarray(weights * scale),
        num_tails=2,
    )


def chain_of(rng, dim, num_features):
    bent = [bent_of(rng, dim, num_features) for _ in range(3)]
    stacked = jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *bent)
    return Chain((Affine(frame_of(rng, dim)), Stack(stacked)))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


# More features than dimensions, and fewer: the determinant lemma is used in the smaller of both.
@pytest.mark.first_quick
@pytest.mark.parametrize(
    ("dim", "num_features", "inverted"),
    [
        (3, 7, False),
        (7, 3, True),
        pytest.param(7, 3, False, marks=pytest.mark.slow),
        pytest.param(3, 7, True, marks=pytest.mark.slow),
    ],
)
def test_moves_determinants_and_inverses(dim, num_features, inverted):
    rng = np.random.default_rng(dim)
    layer = chain_of(rng, dim, num_features)
    layer = Inverted(layer) if inverted else layer
    points = rng.normal(size=(5, dim))

    @jax.jit
    def found(layer, points):
        jacobians = jax.vmap(jax.jacfwd(lambda x: layer(x[None])[0]))(points)
        images, log_det = layer.moved(points)
        own = layer(points), layer.log_det(points)
        return jacobians, images, log_det, *own, layer.inverse(images)

    jacobians, images, log_det, alone, own, back = map(np.asarray, found(layer, points))
    expected = np.linalg.slogdet(jacobians)[1]
    np.testing.assert_allclose(own, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(images, alone, rtol=1e-12)
    np.testing.assert_allclose(log_det, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(back, points, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_a_coupling_as_a_layer():
    """A funnel of three: given the first, the others are Gaussian of that log scale."""
    rng = np.random.default_rng(0)
    first, rest = rng.normal(size=(200, 1)), rng.normal(size=(200, 2))
    x = np.column_stack([first, np.exp(first) * rest])
    slope = -first + np.sum(rest**2, axis=1, keepdims=True) - 2
    coupling = fitted(x, np.column_stack([slope, -rest * np.exp(-first)]), [0])
    layer = Chain((chain_of(rng, 3, 5), Coupled(coupling.astype(np.float64))))
    points = jnp.asarray(rng.normal(size=(5, 3)))
    jacobians = jax.vmap(jax.jacfwd(lambda x: layer(x[None])[0]))(points)
    expected = np.linalg.slogdet(np.asarray(jacobians))[1]
    images, log_det = layer.moved(points)
    np.testing.assert_allclose(log_det, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(layer.inverse(images), points, rtol=1e-8, atol=1e-8)


def test_a_planar_flow():
    """x = z + u tanh(w z + b), whose density Rezende and Mohamed (2015) have in closed form."""
    u, w, b = np.array([0.4, -0.3]), np.array([1.0, 0.5]), 0.2
    weights = np.column_stack([np.zeros((2, 3)), u])
    frame = DenseFrame(np.zeros(2), np.eye(2), np.eye(2))
    layer = Bent(frame, w[None], np.array([b]), weights)
    z = np.random.default_rng(0).normal(size=(20, 2))
    bend = np.tanh(z @ w + b)
    x = z + bend[:, None] * u
    expected = -0.5 * np.sum(z**2 + np.log(2 * np.pi), axis=1)
    expected -= np.log(np.abs(1 + (1 - bend**2) * (u @ w)))
    transport = Transport((layer,), np.zeros(1), Layout.of(np.zeros(2)), None)
    np.testing.assert_allclose(layer(z), x, rtol=1e-12)
    np.testing.assert_allclose(transport.log_prob(x), expected, rtol=1e-9)


def density_of(layer):
    def density(x):
        z = layer.inverse(x[None])
        return (log_normal(z) - layer.log_det(z))[0]

    return density


def differences(function, point, step=1e-4):
    offsets = step * np.eye(len(point))
    return [(function(point + o) - function(point - o)) / (2 * step) for o in offsets]


@pytest.mark.slow
def test_the_inverse_can_be_differentiated():
    rng = np.random.default_rng(0)
    density = jax.jit(density_of(bent_of(rng, 2, 5)))
    point = jnp.asarray(rng.normal(size=2))
    slope = differences(density, point)
    np.testing.assert_allclose(jax.grad(density)(point), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_the_inverse_can_be_differentiated_twice():
    rng = np.random.default_rng(0)
    density = density_of(bent_of(rng, 2, 5))
    point = jnp.asarray(rng.normal(size=2))
    bend = differences(jax.jit(jax.grad(density)), point)
    np.testing.assert_allclose(jax.hessian(density)(point), bend, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_point_without_an_inverse_is_nan():
    # x - 2 tanh(x) goes back on itself, so Newton's method may end where the slope is zero.
    frame = DenseFrame(jnp.zeros(1), jnp.eye(1), jnp.eye(1))
    flat = Bent(frame, jnp.ones((1, 1)), jnp.zeros(1), jnp.asarray([[0.0, -1.0, 1.0]]))
    # tanh alone has no image beyond 1.
    assert np.isnan(flat.inverse(jnp.asarray([[3.0]]))).all()


@pytest.mark.first_quick
@pytest.mark.parametrize("dim", [1, 2])
def test_densities_integrate_to_one(dim):
    layer = chain_of(np.random.default_rng(3), dim, 4)
    points = np.random.default_rng(0).normal(size=(2000, dim))
    # The first is the image of zero.
    both = np.asarray(jax.jit(lambda z: layer(z))(np.concatenate([np.zeros((1, dim)), points])))
    centre, images = both[0], both[1:]
    width = 8 * images.std(axis=0)
    num = 4000 if dim == 1 else 300
    axes = [np.linspace(c - w, c + w, num) for c, w in zip(centre, width, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, dim)
    density = np.exp(np.asarray(jax.jit(jax.vmap(density_of(layer)))(grid)))
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert density.sum() * cell == pytest.approx(1, abs=2e-3)


def test_the_heavy_base_is_what_it_says():
    import scipy.stats

    z = np.random.default_rng(0).normal(size=(6, 3)) * 3
    normal, student = scipy.stats.norm, scipy.stats.t(4)
    one = [
        normal.pdf(np.delete(z, j, axis=1)).prod(axis=1) * student.pdf(z[:, j]) for j in (0, 1, 2)
    ]
    mixture = (
        0.8 * normal.pdf(z).prod(axis=1)
        + 0.1 * scipy.stats.multivariate_t(np.zeros(3), df=4).pdf(z)
        + 0.1 * np.mean(one, axis=0)
    )
    np.testing.assert_allclose(jax.jit(log_heavy)(jnp.asarray(z)), np.log(mixture), rtol=1e-12)
    num = 200_000
    draws = np.abs(np.asarray(heavy_normal(jax.random.key(0), num, 2, jnp.float64)))
    # The kurtosis of t_4 is infinite, so probabilities are compared: P(|z| > 4) of either number,
    # which is a t in all of a tenth of the draws and in half of another.
    tails = 0.85 * 2 * normal.sf(4) + 0.15 * 2 * student.sf(4)
    assert np.mean(draws > 4, axis=0) == pytest.approx(tails, abs=4 * (tails / num) ** 0.5)
    # Both together, only where both have tails; an independent pair would be much rarer.
    grid = np.linspace(4, 300, 2000)
    slices = scipy.stats.multivariate_t([0, 0], df=4).pdf(
        np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    )
    both = 0.1 * 4 * np.trapezoid(np.trapezoid(slices, grid), grid)
    assert np.mean((draws > 4).all(axis=1)) == pytest.approx(both, abs=4 * (both / num) ** 0.5)


def test_sobol_points_are_normal_and_even():
    points = sobol_normal(jax.random.key(0), 500, 3)
    assert points.shape == (500, 3)
    # Independent points would be off by 0.045.
    assert np.abs(points.mean(axis=0)).max() < 0.01
    np.testing.assert_array_equal(points, sobol_normal(jax.random.key(0), 500, 3))
    assert not np.array_equal(points, sobol_normal(jax.random.key(1), 500, 3))
