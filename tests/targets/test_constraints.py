"""Bijections: inverse, support, and Jacobian against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.samplers.default import affine
from parvi.stopping import exactly
from parvi.targets import further_constraints as further
from parvi.targets.constraints import Real
from parvi.targets.flatten import Layout

CASES = {
    "real": (Real(), (3,)),
    "positive": (parvi.Positive(), (3,)),
    "interval": (parvi.Interval(-2.0, 5.0), (3,)),
    "ordered": (parvi.Ordered(), (4,)),
    "simplex": (parvi.Simplex(), (4,)),
    "simplices": (parvi.Simplex(), (2, 3)),
}


def draw(constraint, shape, seed=0):
    return np.random.default_rng(seed).normal(size=constraint.unconstrained_shape(shape))


def there_and_back(constraint, entries, u):
    """Values, their inverse, the Jacobian of the entries and its log, in one program."""

    def every(u):
        x = constraint.constrain(u)
        jacobian = jax.jacfwd(entries)(u.reshape(-1))
        return x, constraint.unconstrain(x), jacobian, constraint.log_jacobian(u)

    return jax.jit(every)(jnp.asarray(u))


@pytest.mark.parametrize("name", CASES)
def test_inverse_and_jacobian(name):
    constraint, shape = CASES[name]
    u = draw(constraint, shape)
    with jax.enable_x64(True):

        def free(v):
            """The entries that determine the rest: all but the last of a simplex."""
            value = constraint.constrain(v.reshape(u.shape))
            return value[..., : u.shape[-1]].reshape(-1)

        x, back, jacobian, log_jacobian = there_and_back(constraint, free, u)
    assert x.shape == shape
    # Two exponentials and two logarithms lose a few digits of float64's sixteen.
    np.testing.assert_allclose(back, u, rtol=0, atol=1e-12)
    np.testing.assert_allclose(log_jacobian, np.linalg.slogdet(jacobian)[1], atol=1e-12)


FURTHER = {
    "lower bound": (further.LowerBound(2.0), (3,), None),
    "upper bound": (further.UpperBound(-1.0), (2, 2), None),
    "covariance": (further.CovarianceCholesky(), (3, 3), np.tril_indices(3)),
    "covariances": (further.CovarianceCholesky(), (2, 2, 2), np.tril_indices(2)),
    "correlation": (further.CorrelationCholesky(), (4, 4), np.tril_indices(4, -1)),
}


@pytest.mark.parametrize("name", FURTHER)
def test_further_bijections(name):
    constraint, shape, free = FURTHER[name]
    u = draw(constraint, shape)
    with jax.enable_x64(True):

        def entries(v):
            value = constraint.constrain(v.reshape(u.shape))
            return (value if free is None else value[..., *free]).reshape(-1)

        x, back, jacobian, log_jacobian = there_and_back(constraint, entries, u)
    assert x.shape == shape
    np.testing.assert_allclose(back, u, rtol=0, atol=1e-10)
    np.testing.assert_allclose(log_jacobian, np.linalg.slogdet(jacobian)[1], atol=1e-10)
    if name.startswith("correlation"):
        np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1, rtol=1e-12)
        assert (np.diag(x) > 0).all()


def test_zero_sums_keep_lengths():
    constraint = further.ZeroSum()
    u = draw(constraint, (2, 5))
    with jax.enable_x64(True):

        @jax.jit
        def found(u):
            x = constraint.constrain(u)
            back, off = constraint.unconstrain(x), constraint.unconstrain(x + 1)
            return x, back, off, gram(constraint.constrain, u), constraint.log_jacobian(u)

        x, back, off, stretch, log_jacobian = map(np.asarray, found(u))
    np.testing.assert_allclose(x.sum(axis=-1), 0, atol=1e-12)
    np.testing.assert_allclose(np.sum(x**2), np.sum(u**2), rtol=1e-12)
    np.testing.assert_allclose(back, u, atol=1e-12)
    assert np.isnan(off).all()
    np.testing.assert_allclose(log_jacobian, volume(stretch), atol=1e-12)


def test_correlations_far_out_keep_their_density():
    """tanh is 1 from 9 on in float32, and 1 - tanh^2 has a few digits well before."""
    constraint = further.CorrelationCholesky()
    u = np.array([12.0, -8.0, 0.5])
    with jax.enable_x64(True):
        expected = float(jax.jit(constraint.log_jacobian)(jnp.asarray(u)))
    narrow = jnp.asarray(u, jnp.float32)
    np.testing.assert_allclose(jax.jit(constraint.log_jacobian)(narrow), expected, rtol=1e-6)
    assert np.isfinite(jax.jit(jax.jacfwd(constraint.constrain))(narrow)).all()
    # Another number follows the second in its row, so that the second counts half as much again.
    slopes = np.log(1 / np.cosh(u) ** 2)
    np.testing.assert_allclose(expected, slopes[0] + 1.5 * slopes[1] + slopes[2], rtol=1e-9)


def gram(function, u):
    """J^T J of a map to more numbers, by automatic differentiation."""
    jacobian = jax.jacfwd(lambda v: function(v.reshape(u.shape)).reshape(-1))(u.reshape(-1))
    return jacobian.T @ jacobian


def volume(stretch):
    """The log of how much a map with this J^T J stretches volumes."""
    return 0.5 * np.linalg.slogdet(stretch)[1]


@pytest.mark.parametrize(
    ("constraint", "shape"), [(further.UnitVector(), (3,)), (further.Circular(), ())]
)
def test_jacobians_of_directions(constraint, shape):
    """The length is a further parameter with the density r^(k - 1) exp(-r^2 / 2)."""
    with jax.enable_x64(True):
        u = draw(constraint, shape)

        def whole(v):
            return jnp.append(constraint.constrain(v), jnp.linalg.norm(v))

        length = np.linalg.norm(u)
        chi = (u.size - 1) * np.log(length) - 0.5 * length**2
        found, stretch = jax.jit(lambda u: (constraint.log_jacobian(u), gram(whole, u)))(u)
        np.testing.assert_allclose(found, chi + volume(np.asarray(stretch)), atol=1e-12)


@pytest.mark.parametrize(
    ("constraint", "shape"), [(further.UnitVector(), (3,)), (further.Circular(), ())]
)
def test_directions(constraint, shape):
    """Normal numbers have uniform directions, so a flat density is the normal one."""
    free = constraint.unconstrained_shape(shape)
    u = jnp.asarray(np.random.default_rng(0).normal(size=(4000, *free)))
    x = np.asarray(jax.jit(jax.vmap(constraint.constrain))(u))
    if shape:
        np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1, rtol=1e-5)
        np.testing.assert_allclose(x.T @ x / len(x), np.eye(3) / 3, atol=0.03)
    else:
        np.testing.assert_allclose(np.histogram(x, 8, (-np.pi, np.pi))[0] / 4000, 1 / 8, atol=0.03)
    again = jax.vmap(lambda value: constraint.constrain(constraint.unconstrain(value)))
    back = jax.jit(again)(x)
    np.testing.assert_allclose(back, x, atol=1e-4)
    slopes = jax.jit(jax.grad(constraint.log_jacobian))(u[0])
    np.testing.assert_allclose(slopes, -u[0], rtol=1e-5)


def test_constraints_that_do_not_fit():
    for constraint, shape in (
        (further.CovarianceCholesky(), (3, 2)),
        (further.CorrelationCholesky(), (1, 1)),
        (further.ZeroSum(), (1,)),
        (further.UnitVector(), ()),
    ):
        with pytest.raises(ValueError, match="needs"):
            constraint.unconstrained_shape(shape)


def test_supports():
    with jax.enable_x64(True):
        u = {name: draw(*case) * 5 for name, case in CASES.items()}
        each = jax.jit(lambda u: {name: CASES[name][0].constrain(u[name]) for name in CASES})
        x = jax.tree.map(np.asarray, each(u))
    assert (x["positive"] > 0).all()
    assert ((x["interval"] > -2) & (x["interval"] < 5)).all()
    assert (np.diff(x["ordered"]) > 0).all()
    assert (x["simplex"] > 0).all()
    np.testing.assert_allclose(x["simplices"].sum(axis=-1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(parvi.Simplex().constrain(jnp.zeros(3)), 0.25, rtol=1e-6)


def test_interval_needs_room():
    with pytest.raises(ValueError, match="low < high"):
        parvi.Interval(1.0, 1.0)


def test_layout_of_a_pytree():
    like = {"w": np.zeros((2, 2)), "p": np.zeros(3), "s": np.zeros(())}
    layout = Layout.of(like, {"p": parvi.Simplex(), "s": parvi.Positive()})
    assert layout.dim == 4 + 2 + 1
    assert layout.scalar_names() == [
        *("p[0]", "p[1]", "p[2]", "s"),
        *("w[0,0]", "w[0,1]", "w[1,0]", "w[1,1]"),
    ]
    flat = np.random.default_rng(0).normal(size=layout.dim).astype(np.float32)
    particle = layout.constrain(flat)
    assert jax.tree.structure(particle) == jax.tree.structure(like)
    np.testing.assert_allclose(layout.unconstrain(particle), flat, atol=1e-5)


def test_constraints_that_do_not_fit_are_refused():
    like = {"a": np.zeros(2), "b": np.zeros(2)}
    with pytest.raises(ValueError, match=r"\['c'\]"):
        Layout.of(like, {"c": parvi.Positive()})
    with pytest.raises(ValueError, match="not a constraint"):
        Layout.of(like, {"a": jnp.exp})
    with pytest.raises(ValueError, match="structure of a particle"):
        Layout.of(like, [parvi.Positive()])
    nested = Layout.of((like, np.zeros(1)), (parvi.Positive(), None))
    assert [type(c).__name__ for c in nested.constraints] == ["Positive", "Positive", "Real"]


def test_constrained_run_has_the_right_moments():
    """Gamma(4, rate 2): mean 2, sd 1. Linear PFG matches Stein moments on the log scale, where

    E[u-score] = 0 reads 4 - 2 E[x] = 0: the mean on the constrained scale is exact at rest.
    """
    target = parvi.Target(
        lambda x: 3 * jnp.log(x[0]) - 2 * x[0], like=np.ones(1), constraints=parvi.Positive()
    )
    init = np.exp(np.random.default_rng(0).normal(size=(200, 1)))
    result = parvi.sample(target, init, sampler=exactly(affine(), 100))
    np.testing.assert_allclose(result.particles.mean(), 2.0, rtol=1e-6)
    assert 0.8 < result.particles.std() < 1.2
    # Without the Jacobian: the user's own log density.
    np.testing.assert_allclose(
        result.log_density, (3 * np.log(result.particles) - 2 * result.particles)[:, 0], rtol=1e-9
    )
