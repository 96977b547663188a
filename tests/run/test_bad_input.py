"""Each mistake gets one paragraph: what was got, what was wanted, what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi


def log_density(x):
    return -0.5 * jnp.sum(x**2)


def begin(num=8, dim=3):
    return np.random.default_rng(0).normal(size=(num, dim))


def message(excinfo):
    text = str(excinfo.value)
    assert "\n" not in text
    assert len(text) > 40
    return text


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: -0.5 * x**2, ["shape (3,)", "one number", "sum"]),
        (lambda x: (log_density(x), x), ["of 2 values", "log density alone"]),
        (lambda x: jnp.sum(x > 0), ["int", "floating"]),
        (lambda x: log_density(x) + jnp.nan, ["8 of the 8", "nan", "constraints"]),
        (lambda x: jnp.sum(jnp.log(x)), ["not finite", "of the 8", "Positive"]),
        (lambda x: float(x[0]), ["cannot be traced", "jax.numpy"]),
        (lambda x: np.sum(np.asarray(x)), ["cannot be traced", "jax.numpy"]),
        (lambda x: -x[0] if x[0] > 0 else x[0], ["cannot be traced", "jnp.where"]),
        (lambda x: -jnp.sum(jnp.round(x)), ["gradient is zero", "score="]),
        (lambda x: -jnp.linalg.norm(x - x), ["gradient", "not finite", "jnp.where"]),
        (
            lambda x: jax.lax.while_loop(lambda c: c > 1, lambda c: c / 2, jnp.sum(x**2)),
            ["cannot be differentiated", "score="],
        ),
    ],
)
def test_log_density(function, words):
    with pytest.raises(ValueError, match="log density") as excinfo:
        parvi.sample(function, begin())
    for word in words:
        assert word in message(excinfo)


def test_error_of_the_users_own_is_not_hidden():
    def broken(x):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        parvi.sample(broken, begin())


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ({"a": np.zeros((8, 2)), "b": np.zeros(7)}, ["[7, 8]", "leading axes"]),
        (begin(1), ["1 particle", "at least 2"]),
        (np.zeros((8, 3), int), ["int64", "float32 or float64", "astype"]),
        (np.zeros(8), ["(8,)", "(n, d)"]),
        ({"a": np.zeros((8, 2)), "b": 1.0}, ["without axes", "leading axis"]),
        ({"a": np.zeros(8, np.float32), "b": np.zeros(8)}, ["mixes", "one dtype"]),
        ({}, ["empty", "(n, d)"]),
        (None, ["left out", "like="]),
    ],
)
def test_init(init, words):
    with pytest.raises(ValueError, match=r"init|particle") as excinfo:
        parvi.sample(log_density, init)
    for word in words:
        assert word in message(excinfo)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_particles": 5}, ["num_particles=5", "8 particles"]),
        ({"sampler": parvi.pfg}, ["brackets", "parvi.pfg()"]),
        ({"num_steps": -1}, ["-1", "at least 0"]),
        ({"num_steps": 2.5}, ["2.5", "int"]),
        ({"key": "seed"}, ["'seed'", "int"]),
        ({"mesh": object()}, ["jax.sharding.Mesh", "make_mesh"]),
    ],
)
def test_settings(settings, words):
    with pytest.raises(ValueError, match=r"\w") as excinfo:
        parvi.sample(log_density, begin(), **settings)
    for word in words:
        assert word in message(excinfo)


def test_target_and_init_disagree():
    target = parvi.Target(log_density, like=np.zeros(4))
    with pytest.raises(ValueError, match="declared with") as excinfo:
        parvi.sample(target, begin())
    assert "(3,)" in message(excinfo)
    assert "(4,)" in message(excinfo)


def test_init_outside_the_support():
    target = parvi.Target(lambda p: -p["rate"], constraints={"rate": parvi.Positive()})
    with pytest.raises(ValueError, match="rate at 1 of 4 particles") as excinfo:
        parvi.sample(target, {"rate": np.array([1.0, 2.0, -1.0, 3.0])})
    assert "positive numbers" in message(excinfo)


@pytest.mark.parametrize("throw", [True, False])
def test_nan_at_step_50_keeps_the_particles_before_it(throw):
    """A wall of NaN that a unit drift from -5 reaches near step 50."""

    def log_density(x):
        return jnp.where(x[0] < 0.0, x[0], jnp.nan) - 0.5 * x[1] ** 2

    init = begin(16, 2) * 0.01 + np.array([-5.0, 0.0])
    sampler = parvi.Flow(
        parvi.fields.SVGD(parvi.kernels.LinearKernel(np.diag([1e-9, 1.0]))),
        parvi.steppers.Constant(0.1),
    )
    arguments = {"sampler": sampler, "num_steps": 900}
    if throw:
        with pytest.raises(parvi.SamplingError, match="NONFINITE") as excinfo:
            parvi.sample(log_density, init, **arguments)
        assert "shorter step" in message(excinfo)
        result = excinfo.value.result
    else:
        result = parvi.sample(log_density, init, throw=False, **arguments)
    assert result.status == parvi.Status.NONFINITE
    assert 45 <= result.num_steps <= 55
    assert np.isfinite(result.particles).all()
    # They had come most of the way: the last good ones, not the first.
    assert (result.particles[:, 0] > -0.2).all()
    assert (result.particles[:, 0] < 0.0).all()
    assert np.isfinite(result.log_density).all()
    assert np.isfinite(result.history["kl_rate"]).all()


def test_runaway_particles_are_called_diverged():
    """Uphill without end: a convex log density pushes the particles out exponentially."""
    sampler = parvi.Flow(
        parvi.fields.SVGD(parvi.kernels.LinearKernel()), parvi.steppers.Constant(1.0)
    )
    result = parvi.sample(
        lambda x: 0.5 * jnp.sum(jnp.abs(x)), begin(), sampler=sampler, num_steps=2000, throw=False
    )
    assert result.status in (parvi.Status.DIVERGED, parvi.Status.NONFINITE)
    assert np.isfinite(result.particles).all()


def test_a_minority_outside_the_support_is_moved():
    """x > -1 is not declared, and some start points are below it."""

    def log_density(x):
        return jnp.sum(jnp.where(x > -1, 2 * jnp.log1p(x) - 4 * x, jnp.nan))

    start = np.random.default_rng(0).normal(size=(200, 1))
    outside = int((start <= -1).sum())
    result = parvi.sample(log_density, start, num_steps=0)
    assert result.num_moved == outside > 0
    assert (result.particles > -1).all()
    np.testing.assert_array_equal(result.particles[start > -1], start[start > -1])
