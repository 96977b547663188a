"""What every sampler keeps, whatever it does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from contract.members import ALL, EQUIVARIANT
from parvi.run.advance import advance, start

DIM = 4
DTYPES = (np.float32, np.float64)


def grouped(names):
    """The tests of one sampler run in one process, where they share what was compiled."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names]


def log_density(x):
    """A correlated, slightly non-Gaussian density."""
    return -0.5 * jnp.sum(x**2) - 0.1 * (x[0] + x[1]) ** 2 - 0.01 * jnp.sum(x**4)


def begin(num, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).normal(size=(num, DIM)).astype(dtype)


def run_of(sampler, particles, target):
    return start(jax.random.key(0), particles, sampler, target, sampler.stopping_rule)


def steps(sampler, run, target, until, capacity=16):
    rule, stops = sampler.stopping_rule, np.bool_(False)
    key = jax.random.key(0)
    return advance(key, run, sampler, target, rule, np.int32(until), stops, capacity)[0]


def target_like(dtype):
    return parvi.Target(log_density, like=np.zeros(DIM, dtype))


def assert_same_bits(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(_plain(a), _plain(b))


def _plain(array):
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(array))
    return np.asarray(array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", grouped(ALL))
def test_carry_keeps_structure_shapes_and_dtypes(name, dtype):
    """Traced, not run: what is computed is tested below and, in float32, in test_five_targets."""
    with jax.enable_x64(dtype == np.float64):
        target, particles = target_like(dtype), jax.ShapeDtypeStruct((8, DIM), dtype)
        before = jax.eval_shape(lambda x: run_of(ALL[name], x, target), particles)
        after = jax.eval_shape(lambda run: steps(ALL[name], run, target, 2), before)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    floats = 0
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(a.dtype, jnp.floating):
            floats += 1
            assert a.dtype == dtype
    assert floats >= 2


@pytest.mark.parametrize("name", grouped(ALL))
def test_chunked_and_resumed_equal_unbroken_bitwise(name):
    with jax.enable_x64(True):
        target = target_like(np.float64)
        run = run_of(ALL[name], jnp.asarray(begin(8)), target)
        unbroken = steps(ALL[name], run, target, 7)
        chunked = run
        for until in (1, 3, 4):
            chunked = steps(ALL[name], chunked, target, until)
        # Through the host and back, as a checkpoint would.
        resumed = jax.tree.map(_through_host, chunked)
        resumed = steps(ALL[name], resumed, target, 7)
    assert int(unbroken.state.step) == 7
    assert np.isfinite(unbroken.state.particles).all()
    assert not np.array_equal(unbroken.state.particles, run.state.particles)
    assert_same_bits(unbroken, resumed)


def _through_host(array):
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(np.asarray(jax.random.key_data(array)))
    return jnp.asarray(np.asarray(array))


@pytest.mark.parametrize("name", grouped(EQUIVARIANT))
def test_permuted_particles_give_permuted_particles(name):
    particles = begin(8)
    order = np.random.default_rng(1).permutation(8)
    with jax.enable_x64(True):
        target = target_like(np.float64)
        after = [
            np.asarray(
                steps(ALL[name], run_of(ALL[name], start_, target), target, 3).state.particles
            )
            for start_ in (jnp.asarray(particles), jnp.asarray(particles[order]))
        ]
    # Sums over the particles in another order differ in the last bits; a few steps amplify them.
    np.testing.assert_allclose(after[0][order], after[1], rtol=1e-9, atol=1e-9)
    assert not np.allclose(after[0], after[1])


@pytest.mark.parametrize("kind", ["one particle", "duplicates"])
@pytest.mark.parametrize("name", grouped(ALL))
def test_one_particle_and_duplicates_stay_finite(name, kind):
    particles = begin(1) if kind == "one particle" else np.repeat(begin(2), 4, axis=0)
    with jax.enable_x64(True):
        target = target_like(np.float64)
        run = run_of(ALL[name], jnp.asarray(particles), target)
        after = steps(ALL[name], run, target, 3)
    for leaf in jax.tree.leaves(after):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert np.isfinite(leaf).all()


@pytest.mark.parametrize("name", grouped(ALL))
def test_nan_leaves_the_last_good_particles_and_a_second_run_traces_nothing(name):
    """The density is NaN beyond a wall that the mode lies behind."""
    traces = 0

    def walled(x):
        nonlocal traces
        traces += 1
        return jnp.where(jnp.max(x) < 3.0, -0.5 * jnp.sum((x - 20.0) ** 2), jnp.nan)

    def run(num_steps):
        return parvi.sample(walled, begin(8), sampler=ALL[name], num_steps=num_steps, throw=False)

    result = run(200)
    assert np.isfinite(result.particles).all()
    assert (result.particles.max(axis=1) < 3.0).all()
    assert np.isfinite(result.log_density).all()
    after_first = traces
    assert after_first > 0
    assert run(3).num_steps <= 3
    assert traces == after_first
