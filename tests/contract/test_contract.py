"""What every sampler keeps, whatever it does."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from contract.members import ALL, BENDING, EQUIVARIANT, KINDS, VARIANTS
from parvi.cloud import Place
from parvi.run.compile.programs import Context, begin, one_step
from parvi.run.run import Run

DIM = 4


def grouped(names, slow=()):
    """The tests of one sampler run in one process, where they share what was compiled."""
    return [
        pytest.param(
            name,
            marks=[pytest.mark.xdist_group(name), *([pytest.mark.slow] if name in slow else [])],
        )
        for name in names
    ]


class Shape(NamedTuple):
    """Data of the target: where its mode is, how much it is bent, and where it becomes NaN."""

    mode: float
    bent: float
    wall: float


# A correlated, slightly non-Gaussian density, and one that is NaN before its mode is reached.
OPEN, WALLED = Shape(0.0, 1.0, np.inf), Shape(20.0, 0.0, 3.0)


class Counted:
    """The log density of all tests, so that each sampler is compiled once for all of them."""

    traces = 0

    def __call__(self, x, shape):
        self.traces += 1
        bent = 0.1 * (x[0] + x[1]) ** 2 + 0.01 * jnp.sum(x**4)
        value = -0.5 * jnp.sum((x - shape.mode) ** 2) - shape.bent * bent
        return jnp.where(jnp.max(x) < shape.wall, value, jnp.nan)


LOG_DENSITY = Counted()


def start(num, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).normal(size=(num, DIM)).astype(dtype)


def target_like(dtype, shape=OPEN):
    return parvi.Target(LOG_DENSITY, like=np.zeros(DIM, dtype), data=shape)


def run_of(name, particles):
    return Run.begin(target_like(particles.dtype), jnp.asarray(particles), ALL[name])


def assert_same_bits(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(_plain(a), _plain(b))


def _plain(array):
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(array))
    return np.asarray(array)


def assert_alike(before, after, dtype):
    """The same structure, shapes and dtypes, and no float of another precision."""
    assert jax.tree.structure(before) == jax.tree.structure(after)
    floats = 0
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(a.dtype, jnp.floating):
            floats += 1
            assert a.dtype == dtype
    assert floats >= 4


@pytest.mark.parametrize("name", grouped(ALL))
def test_carry_keeps_structure_shapes_and_dtypes_in_float32(name):
    """Traced, not run: float64 is run below, and float32 in test_five_targets."""
    with jax.enable_x64(False):
        rows = jax.ShapeDtypeStruct((8, DIM), np.float32)
        place = Place(rows, rows, jax.ShapeDtypeStruct((8,), np.float32))
        context = Context(jax.random.key(0), ALL[name], target_like(np.float32), None)
        before = jax.eval_shape(lambda p: begin(context, 0, p, 0), place)
        after, _ = jax.eval_shape(lambda carry: one_step(context, carry), before)
    assert_alike(before, after, np.float32)


@pytest.mark.parametrize("name", grouped(ALL, slow=VARIANTS))
def test_chunked_and_resumed_equal_unbroken_bitwise(name):
    with jax.enable_x64(True):
        particles = start(8)
        unbroken, chunked = run_of(name, particles), run_of(name, particles)
        before = jax.eval_shape(lambda: unbroken.carry)
        unbroken.advance(7)
        for steps in (1, 2, 1):
            chunked.advance(steps)
        # Through the host and back, as a checkpoint would.
        chunked.carry = jax.tree.map(_through_host, chunked.carry)
        chunked.advance(3)
    assert unbroken.num_steps == 7
    assert np.isfinite(unbroken.particles).all()
    assert not np.array_equal(unbroken.particles, particles)
    assert_same_bits(unbroken.carry, chunked.carry)
    assert_alike(before, unbroken.carry, np.float64)


def _through_host(array):
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(np.asarray(jax.random.key_data(array)))
    return jnp.asarray(np.asarray(array))


@pytest.mark.parametrize("name", grouped(EQUIVARIANT, slow=VARIANTS))
def test_permuted_particles_give_permuted_particles(name):
    particles = start(8)
    order = np.random.default_rng(1).permutation(8)
    with jax.enable_x64(True):
        runs = [run_of(name, particles), run_of(name, particles[order])]
        for run in runs:
            run.advance(3)
    # Sums over the particles in another order differ in the last bits; a few steps amplify them.
    one, other = (np.asarray(run.particles) for run in runs)
    np.testing.assert_allclose(one[order], other, rtol=1e-9, atol=1e-9)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("name", grouped(ALL, slow=VARIANTS))
def test_duplicates_stay_finite(name):
    assert_finite(name, "duplicates")


@pytest.mark.parametrize("name", grouped(ALL, slow=set(ALL) - set(KINDS)))
def test_one_particle_stays_finite(name):
    """Another number of particles is another program."""
    assert_finite(name, "one particle")


def assert_finite(name, kind):
    particles = start(1) if kind == "one particle" else np.repeat(start(2), 4, axis=0)
    with jax.enable_x64(True):
        if kind == "one particle" and name in BENDING:
            with pytest.raises(ValueError, match="too few to bend"):
                run_of(name, particles)
            return
        run = run_of(name, particles)
        run.advance(3)
    assert np.isfinite(run.particles).all()
    if kind == "duplicates" and name in BENDING:
        # Particles that coincide have no frame to fit in: they stay where they are.
        return
    for leaf in jax.tree.leaves(run.carry.memory):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert np.isfinite(leaf).all()


@pytest.mark.parametrize("name", grouped(ALL, slow=VARIANTS))
def test_nan_leaves_the_last_good_particles_and_a_second_run_traces_nothing(name):
    """The density is NaN beyond a wall that the mode lies behind."""

    def run(num_steps):
        return parvi.sample(
            target_like(np.float64, WALLED),
            start(8),
            sampler=ALL[name],
            num_steps=num_steps,
            throw=False,
        )

    result = run(200)
    assert np.isfinite(result.particles).all()
    assert (result.particles.max(axis=1) < 3.0).all()
    assert np.isfinite(result.log_density).all()
    after_first = LOG_DENSITY.traces
    assert after_first > 0
    assert run(3).num_steps <= 3
    assert LOG_DENSITY.traces == after_first
