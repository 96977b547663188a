"""What ``sample`` promises beside the arithmetic."""

import _thread
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
import parvi.run.run
from parvi.run.interrupts import noted_interrupts

# The default without its bending: a third of the compilation.
AFFINE = parvi.pfg(num_features=0)


def log_density(x):
    return -0.5 * jnp.sum((x - 1) ** 2)


def begin(num=64, dim=3, dtype=np.float64):
    return np.random.default_rng(0).normal(size=(num, dim)).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "flag"),
    [
        (np.float32, True),
        (np.float64, False),
        # The global flag says the same.
        pytest.param(np.float32, False, marks=pytest.mark.slow),
        pytest.param(np.float64, True, marks=pytest.mark.slow),
    ],
)
def test_numpy_dtype_is_the_dtype_of_the_run(dtype, flag):
    seen = set()

    def watched(x):
        seen.add(x.dtype)
        return log_density(x)

    with jax.enable_x64(flag):
        result = parvi.sample(watched, begin(dtype=dtype), sampler=AFFINE)
        assert jnp.zeros(()).dtype == (jnp.float64 if flag else jnp.float32)
    assert seen == {jnp.dtype(dtype)}
    assert result.particles.dtype == dtype
    assert result.log_density.dtype == dtype
    assert result.history["kl_rate"].dtype == dtype
    # Rounding of the run's own dtype, not of the other one: float64 gets closer than float32 can.
    error = abs(result.particles.mean(axis=0) - 1).max()
    assert error < 1e-2


def test_float64_is_really_used():
    """A difference that float32 cannot represent decides the answer."""
    far = lambda x: -0.5 * jnp.sum((x - 1e9) ** 2)  # noqa: E731
    result = parvi.sample(far, begin() + 1e9, sampler=AFFINE, num_steps=40)
    np.testing.assert_allclose(result.particles.mean(axis=0), 1e9, rtol=0, atol=1e-3)
    np.testing.assert_allclose(result.particles.std(axis=0), 1.0, rtol=1e-3)


@pytest.mark.slow
def test_one_log_density_with_numpy_data_runs_in_both_precisions():
    """JAX 0.9.2 mixes them up where one compiled function meets both (docs/decisions/0008)."""
    data = np.random.default_rng(1).normal(size=(20, 3))
    signs = np.sign(data[:, 0])

    def logistic(x):
        return -jnp.sum(jax.nn.softplus(-(data @ x) * signs)) - 0.5 * jnp.sum(x**2)

    dtypes = (np.float32, np.float64, np.float32)
    runs = [parvi.sample(logistic, begin(dtype=t), sampler=AFFINE) for t in dtypes]
    assert [run.particles.dtype for run in runs] == [np.float32, np.float64, np.float32]
    np.testing.assert_array_equal(runs[0].particles, runs[2].particles)
    # The same posterior: what differs is rounding, and where the rule ends each run.
    difference = runs[0].particles.mean(axis=0) - runs[1].particles.mean(axis=0)
    assert np.abs(difference).max() < 0.02


@pytest.mark.slow
def test_jax_array_keeps_its_dtype():
    init = jnp.asarray(begin(dtype=np.float32))
    assert parvi.sample(log_density, init, sampler=AFFINE).particles.dtype == np.float32
    with jax.enable_x64(True):
        init = jnp.asarray(begin())
    assert parvi.sample(log_density, init, sampler=AFFINE).particles.dtype == np.float64


def test_same_key_same_bits_and_other_key_other_bits():
    def run(key):
        init = lambda key, n: jax.random.normal(key, (n, 2))  # noqa: E731
        run = parvi.sample(log_density, init, key=key, num_particles=32, sampler=AFFINE)
        return run.particles

    np.testing.assert_array_equal(run(3), run(3))
    np.testing.assert_array_equal(run(3), run(jax.random.key(3)))
    np.testing.assert_array_equal(run(3), run(jax.random.PRNGKey(3)))
    assert not np.array_equal(run(3), run(4))


def test_init_left_out_where_the_target_knows_its_shape():
    target = parvi.Target(
        lambda p: -p["rate"] - 0.5 * jnp.sum(p["x"] ** 2),
        like={"rate": np.ones(()), "x": np.ones((2, 2))},
        constraints={"rate": parvi.Positive()},
    )
    result = parvi.sample(target, sampler=AFFINE)
    assert result.num_particles == 512
    assert result.particles["rate"].shape == (512,)
    assert result.particles["x"].shape == (512, 2, 2)
    assert (result.particles["rate"] > 0).all()
    assert parvi.sample(target, num_particles=32, sampler=AFFINE).num_particles == 32


def test_num_steps_is_a_maximum_and_none_means_the_rule():
    assert parvi.sample(log_density, begin(), num_steps=0).num_steps == 0
    exact = parvi.sample(log_density, begin(), num_steps=3)
    assert (exact.num_steps, exact.status) == (3, parvi.Status.MAX_STEPS)
    ruled = parvi.sample(log_density, begin())
    assert ruled.status == parvi.Status.CONVERGED
    assert ruled.num_steps < 100
    # Asked for more steps than the rule allows: it ends where the rule says.
    longer = parvi.sample(log_density, begin(), num_steps=ruled.num_steps + 20)
    assert longer.num_steps == ruled.num_steps
    np.testing.assert_array_equal(longer.particles, ruled.particles)
    # A plain sampler may be asked for more than its own limit.
    many = parvi.sample(log_density, begin(), sampler=parvi.langevin(max_steps=5), num_steps=9)
    assert many.num_steps == 9
    short = parvi.sample(log_density, begin(), sampler=parvi.pfg(max_steps=2))
    assert (short.num_steps, short.status) == (2, parvi.Status.MAX_STEPS)


def test_prints_nothing_unless_asked(capfd):
    parvi.sample(log_density, begin(), sampler=AFFINE)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    parvi.sample(log_density, begin(), progress=True, sampler=AFFINE)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "KL rate" in captured.err


@pytest.fixture(params=[False, True], ids=["kept", "in place"])
def in_place(request, monkeypatch):
    """Small particle sets as well as large ones, whose arrays are given away to each chunk."""
    if request.param:
        monkeypatch.setattr(parvi.run.run, "_LARGE", 0)
    return request.param


@pytest.mark.usefixtures("interruptible", "in_place")
@pytest.mark.parametrize("throw", [True, False])
def test_interrupt_keeps_what_was_reached(throw):
    sampler = parvi.Flow(parvi.fields.SVGD(), parvi.steppers.Constant(1e-6))
    # About a minute of work, so that a signal that is lost fails the test and does not hang it.
    num_steps = 100_000
    arguments = {"sampler": sampler, "num_steps": num_steps, "throw": throw}
    parvi.sample(log_density, begin(), sampler=sampler, num_steps=2)  # compiled before the clock
    timer = threading.Timer(1.0, _thread.interrupt_main)
    timer.start()
    # Whatever throw is: a caller that goes on would take the particles for those of a whole run.
    with pytest.raises(parvi.SamplingInterrupted, match="interrupted") as excinfo:
        parvi.sample(log_density, begin(), **arguments)
    assert isinstance(excinfo.value, KeyboardInterrupt)
    result = excinfo.value.result
    timer.join()
    assert result.status == parvi.Status.INTERRUPTED
    assert 0 < result.num_steps < num_steps
    assert np.isfinite(result.particles).all()
    assert not np.array_equal(result.particles, begin())


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_to_end_are_noted_where_a_run_can_be_saved(number):
    with noted_interrupts(endings=True) as interrupts:
        signal.raise_signal(number)
    assert interrupts.came
    assert interrupts.ending == number
    assert signal.getsignal(number) is signal.SIG_DFL
    with noted_interrupts():
        assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.usefixtures("interruptible")
def test_the_first_interrupt_is_noted_and_the_second_raised():
    with noted_interrupts() as interrupts:
        assert not interrupts.came
        signal.raise_signal(signal.SIGINT)
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_place_gives_the_same_particles_and_leaves_the_start_alone(monkeypatch):
    start = begin()
    before = start.copy()
    expected = parvi.sample(log_density, start, num_steps=20)
    monkeypatch.setattr(parvi.run.run, "_LARGE", 0)
    found = parvi.sample(log_density, start, num_steps=20)
    np.testing.assert_allclose(found.particles, expected.particles, rtol=1e-5)
    np.testing.assert_array_equal(start, before)
    again = parvi.sample(log_density, start, num_steps=20)
    np.testing.assert_array_equal(again.particles, found.particles)


@pytest.mark.first_quick
@pytest.mark.parametrize("kind", ["numpy", "aligned", "jax", "function"])
def test_in_place_takes_nothing_of_the_users(kind, monkeypatch):
    monkeypatch.setattr(parvi.run.run, "_LARGE", 0)
    wanted = begin(64, 3).astype(np.float32)
    # JAX may read NumPy's memory where it is, if that begins at such an address.
    raw = np.empty(wanted.nbytes + 64, np.uint8)
    aligned = raw[-raw.ctypes.data % 64 :][: wanted.nbytes].view(np.float32).reshape(wanted.shape)
    aligned[:] = wanted
    given = {"numpy": wanted.copy(), "aligned": aligned}.get(kind, jnp.asarray(wanted))
    init = (lambda key, num: given) if kind == "function" else given
    result = parvi.sample(lambda x: -0.5 * jnp.sum((x - 3) ** 2), init, num_steps=5)
    np.testing.assert_array_equal(np.asarray(given), wanted)
    assert np.abs(result.particles - wanted).max() > 0.1


@pytest.mark.slow
def test_minibatches_reach_the_full_posterior():
    """Prior N(0, 1) and rows N(theta, 1): the posterior is N(sum / (N + 1), 1 / (N + 1))."""
    data = np.random.default_rng(1).normal(2.0, 1.0, size=100)
    target = parvi.MiniBatch(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, rows: -0.5 * (rows - theta[0]) ** 2,
        data,
        batch_size=20,
        like=np.zeros(1),
    )
    sampler = parvi.Flow(
        parvi.fields.PFG(
            parvi.functions.Linear(), parvi.preconditioners.Identity(), parvi.fields.Ridge(1e-6)
        ),
        parvi.steppers.Decaying(5e-3, horizon=20, power=0.9),
    )
    result = parvi.sample(target, begin(64, 1) * 0.2, sampler=sampler, num_steps=1500)
    mean, sd = data.sum() / 101, 101**-0.5
    # The noise of 20 of 100 rows moves the mean of all particles together; with the decaying
    # step its spread is below 0.2 posterior sds.
    assert abs(result.particles.mean() - mean) < 0.5 * sd
    # An N/B that is forgotten would give sd (1 + 20)^-1/2, more than twice as large.
    assert 0.9 * sd < result.particles.std() < 1.1 * sd
