"""Faults that were once silent, obscure, lost work or hung: each has a clear end now."""

import collections
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import parvi
from parvi.cli import app
from parvi.experiments import cells
from parvi.status import SamplingError, SamplingInterrupted
from run.small import normal, quick, start

pytestmark = pytest.mark.xdist_group("faults")
# The first stage of the default alone, which takes a fifth of the time to compile.
AFFINE = parvi.pfg(num_features=0)


Point = collections.namedtuple("Point", ["zeta", "alpha"])


@pytest.mark.parametrize(
    "init",
    [
        Point(np.full(16, 5.0) + start(16, 1)[:, 0], start(16, 1)[:, 0]),
        collections.OrderedDict(zeta=5 + start(16, 1)[:, 0], alpha=start(16, 1)[:, 0]),
        {10: 5 + start(16, 1)[:, 0], 9: start(16, 1)[:, 0]},
    ],
    ids=["named tuple", "ordered dict", "integer keys"],
)
def test_names_stay_with_their_parameters(init, tmp_path):
    result = quick(lambda p: sum(-0.5 * jnp.sum(x**2) for x in jax.tree.leaves(p)), init)
    result.save(tmp_path / "run.npz")
    loaded = parvi.load(tmp_path / "run.npz")
    before, after = result.summary()["mean"], loaded.summary()["mean"]
    assert dict(before) == dict(after)
    assert max(before) > 3 > min(before)


def failing():
    return SamplingError("words", quick())


def test_exceptions_and_results_pickle():
    for error in (failing(), SamplingInterrupted("words", quick())):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == "words"
        np.testing.assert_array_equal(again.result.particles, error.result.particles)
        assert again.result.target is None


def _fails_in_a_pool(_):
    raise SamplingError("words", parvi.sample(normal, start(), num_steps=1, sampler=parvi.svgd()))


@pytest.mark.slow
def test_a_pool_gets_the_error_instead_of_hanging():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        waiting = pool.map_async(_fails_in_a_pool, [0])
        with pytest.raises(SamplingError, match="words"):
            waiting.get(timeout=120)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_always_raises():
    def press():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(SamplingInterrupted) as caught:
        # Seconds of work, so that a signal that is lost fails the test and does not hang it.
        quick(num_steps=100_000, throw=False)
    thread.join()
    assert caught.value.result.status == parvi.Status.INTERRUPTED


def test_an_exception_in_a_callback_keeps_the_particles():
    calls = []

    def host(x):
        calls.append(1)
        if len(calls) > 4:
            raise RuntimeError("the disk is gone")
        return np.float32(-0.5 * np.sum(np.asarray(x) ** 2))

    def log_density(x):
        shape = jax.ShapeDtypeStruct((), np.float32)
        return jax.pure_callback(host, shape, x, vmap_method="sequential")

    target = parvi.Target(log_density, score=lambda x: -x)
    with pytest.raises(SamplingError, match="A step raised") as caught:
        quick(target, start(2).astype(np.float32), num_steps=200)
    assert np.isfinite(caught.value.result.particles).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_callbacks_in_both_precisions(dtype):
    def host(x):
        assert np.asarray(x).dtype == dtype
        return np.sum(-0.5 * np.asarray(x) ** 2, axis=-1).astype(dtype)

    def log_density(x):
        shape = jax.ShapeDtypeStruct((), dtype)
        return jax.pure_callback(host, shape, x, vmap_method="expand_dims")

    target = parvi.Target(log_density, score=lambda x: -x)
    result = quick(target, start().astype(dtype), num_steps=50)
    plain = quick(parvi.Target(normal, score=lambda x: -x), start().astype(dtype), num_steps=50)
    np.testing.assert_allclose(result.particles, plain.particles, rtol=1e-4)
    assert not jax.config.read("jax_enable_x64")


@pytest.mark.usefixtures("interruptible")
def test_an_early_interrupt_has_a_result_too():
    sent = []

    def log_density(x):
        # While it is traced, before any step.
        if not sent:
            sent.append(1)
            signal.raise_signal(signal.SIGINT)
        return normal(x)

    with pytest.raises(SamplingInterrupted) as caught:
        quick(log_density, num_steps=100)
    assert caught.value.result.num_steps == 0
    np.testing.assert_array_equal(caught.value.result.particles, start())


def test_two_precisions_in_one_process():
    """In threads and one after another, over one NumPy array, and nothing is traced again."""
    data = np.ones(2)
    traced = []

    @jax.jit
    def users_own(x):
        traced.append(1)
        return x * 2

    users_own(1.0)

    def log_density(x):
        return -0.5 * jnp.sum((x - data) ** 2)

    found = {}

    def run(dtype):
        found[dtype] = quick(log_density, start().astype(dtype), num_steps=20).particles

    threads = [threading.Thread(target=run, args=(dtype,)) for dtype in ("f4", "f8")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for dtype in ("f8", "f4", "f8"):
        before = found[dtype]
        run(dtype)
        assert found[dtype].dtype == dtype
        np.testing.assert_array_equal(found[dtype], before)
    users_own(1.0)
    assert len(traced) == 1


def test_threads_leave_blas_as_it_was():
    import threadpoolctl

    def numbers():
        found = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
        return [library["num_threads"] for library in found]

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = numbers()
        threads = [threading.Thread(target=quick) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert numbers() == before


CLOSURES = """
import gc, os, numpy as np, parvi
start = np.random.default_rng(0).normal(size=(16, 2))
for number in range(500):
    density = lambda x, number=number: -0.5 * ((x - number) ** 2).sum()
    parvi.sample(density, start, sampler=parvi.langevin(), num_steps=1)
    if number % 16 == 15:
        gc.collect()
        with open("/proc/self/maps") as maps, open("/proc/self/statm") as pages:
            size = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            print(size / 2**20, len(maps.readlines()))
"""


@pytest.mark.slow
def test_fresh_closures_do_not_pile_up():
    """500 of them: memory is flat after the first programs were dropped, and so are its maps."""
    flags = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    done = subprocess.run(
        [sys.executable, "-c", CLOSURES],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=True,
        timeout=1800,
    )
    resident, maps = np.array([line.split() for line in done.stdout.splitlines()], float).T
    assert len(resident) == 31
    assert resident[2:].max() < resident[:2].max() + 50
    assert maps[2:].max() < maps[:2].max() + 500


@pytest.mark.slow
def test_float64_where_like_asks_for_it():
    target = parvi.Target(lambda x: -0.5 * jnp.sum((x - 1e6) ** 2), like=np.zeros(2))
    result = parvi.sample(target, num_particles=64, num_steps=1)
    assert result.particles.dtype == np.float64
    narrow = parvi.Target(normal, like=np.zeros(2, np.float32))
    assert parvi.sample(narrow, num_particles=64, num_steps=1).particles.dtype == np.float32


@pytest.mark.first_quick
@pytest.mark.parametrize("alike", [[0], [0, 1]], ids=["one coordinate", "all"])
def test_a_start_without_spread_gets_one(alike):
    init = start(128)
    init[:, alike] = 0.5
    scale = np.array([0.2, 3.0])
    with pytest.warns(UserWarning, match=r"All particles start alike in x\[0\] \(0\.2\)"):
        result = parvi.sample(lambda x: -0.5 * jnp.sum((x / scale) ** 2), init, sampler=AFFINE)
    assert result.status == parvi.Status.CONVERGED
    np.testing.assert_allclose(result.particles.std(axis=0), scale, rtol=0.05)


@pytest.mark.first_quick
@pytest.mark.parametrize("sampler", [parvi.pfg_algorithm_1(), parvi.svgd()])
def test_a_coordinate_without_spread_gets_one_from_other_flows_too(sampler):
    init = start(128)
    init[:, 0] = 0.5
    with pytest.warns(UserWarning, match=r"All particles start alike in x\[0\] \(1\)"):
        result = parvi.sample(normal, init, sampler=sampler, num_steps=0)
    np.testing.assert_allclose(result.particles.std(axis=0), 1, rtol=0.3)
    # The scores of x[0] differ by x[1], and move the particles apart.
    crossed = parvi.sample(
        lambda x: normal(x) + 5 * x[0] * x[1], init, sampler=sampler, num_steps=0
    )
    np.testing.assert_array_equal(crossed.particles, init)


@pytest.mark.first_quick
@pytest.mark.parametrize("sampler", [AFFINE, parvi.pfg(), parvi.svgd()])
def test_two_distinct_rows_are_not_enough(sampler):
    init = np.repeat(start(2), 64, axis=0)
    with pytest.warns(UserWarning, match="126 of 128 particles start where another one does"):
        result = parvi.sample(normal, init, sampler=sampler, num_steps=300)
    np.testing.assert_allclose(result.particles.std(axis=0), 1, rtol=0.2)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_inside_a_transformation(transform):
    def inner(x):
        return jnp.sum(quick(lambda y: normal(y) * jnp.sum(x)).particles)

    with pytest.raises(ValueError, match="inside jax"):
        transform(inner)(jnp.ones(3) if transform is jax.vmap else jnp.ones(()))


@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.debug_nans(True),
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.numpy_rank_promotion("raise"),
        lambda: jax.transfer_guard("disallow"),
    ],
    ids=["debug_nans", "dtypes", "ranks", "transfers"],
)
def test_the_users_own_settings_of_jax(setting):
    def log_density(x):
        return -0.5 * jnp.dot(x, x)

    with setting():
        result = quick(log_density)
    np.testing.assert_array_equal(result.particles, quick(log_density).particles)


class TestSettings:
    """Settings that were taken as they came."""

    @pytest.mark.parametrize("number", [2.0, "64", float("nan"), True])
    def test_num_particles(self, number):
        target = parvi.Target(normal, like=np.zeros(2))
        with pytest.raises(ValueError, match="num_particles"):
            parvi.sample(target, num_particles=number)

    def test_keys(self):
        with pytest.raises(ValueError, match=r"2\*\*63"):
            quick(key=2**63)
        one, other = (quick(sampler=parvi.langevin(), key=key) for key in (2**32, 0))
        assert not np.array_equal(one.particles, other.particles)

    @pytest.mark.parametrize("like", ["abc", None, np.zeros((3, 0)), {"a": "b"}])
    def test_like(self, like):
        with pytest.raises(ValueError, match=r"like|particle"):
            parvi.sample(parvi.Target(normal, like=like), num_particles=8)

    def test_functions_that_return_another_number(self):
        with pytest.raises(ValueError, match="returned 5 particles for n = 9"):
            parvi.sample(normal, lambda key, n: jnp.zeros((5, 2)), num_particles=9)
        with pytest.raises(ValueError, match="returned None"):
            parvi.sample(normal, lambda key, n: None)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: parvi.steppers.Constant(-1.0),
            lambda: parvi.steppers.Constant(0.0),
            lambda: parvi.steppers.Constant("a"),
            lambda: parvi.functions.RandomFeatures(-5),
            lambda: parvi.functions.RandomFeatures(0),
            lambda: parvi.Interval("a", "b"),
            lambda: parvi.Interval(0.0, np.inf),
            lambda: parvi.Flow(parvi.steppers.Constant(0.1), parvi.fields.SVGD()),
            lambda: parvi.Target(normal, score="abc"),
            lambda: parvi.MiniBatch(normal, normal, np.zeros((5, 2)), 2.5),
            lambda: parvi.MiniBatch(normal, normal, np.zeros((5, 2)), "2"),
        ],
    )
    def test_parts(self, make):
        with pytest.raises(ValueError, match=r"must|needs"):
            make()

    def test_tables_and_masks(self):
        import pandas as pd

        table = pd.DataFrame(start())
        with pytest.raises(ValueError, match="to_numpy"):
            parvi.sample(lambda p: normal(p["a"]), {"a": table[0]})
        with pytest.raises(ValueError, match="to_numpy"):
            parvi.MiniBatch(normal, normal, table, 2)
        with pytest.raises(ValueError, match="masked"):
            parvi.sample(normal, np.ma.masked_array(start()))

    def test_a_score_of_the_wrong_shape(self):
        with pytest.raises(ValueError, match="score must return what looks like one particle"):
            quick(parvi.Target(normal, score=lambda x: jnp.sum(x)))

    def test_more_than_fits(self):
        with pytest.raises(ValueError, match="bytes of memory"):
            parvi.sample(parvi.Target(normal, like=np.zeros(2)), num_particles=10**12)


def test_a_fork_after_a_run_is_refused():
    code = (
        "import os, sys, numpy as np, parvi\n"
        "f = lambda x: -0.5 * (x**2).sum()\n"
        "run = lambda: parvi.sample(f, np.random.default_rng(0).normal(size=(16, 2)), num_steps=1,"
        " sampler=parvi.svgd())\n"
        "run()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        run()\n"
        "    except ValueError as error:\n"
        "        os._exit(7 if 'forked' in str(error) else 1)\n"
        "    os._exit(2)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=120, check=False)
    assert done.returncode == 7


@pytest.mark.slow
def test_too_few_digits_are_said():
    init = start(64).astype(np.float32)
    with pytest.raises(SamplingError, match="float32 has too few digits for x") as caught:
        parvi.sample(lambda x: -0.5 * jnp.sum((x - 1e6) ** 2), init)
    assert caught.value.result.status == parvi.Status.STALLED


@pytest.mark.slow
def test_advice_fits_the_sampler():
    def improper(x):
        return jnp.sum(x)

    with pytest.raises(SamplingError) as caught:
        parvi.sample(improper, start(64).astype(np.float32))
    assert "default sampler" not in str(caught.value)
    assert "improper" in str(caught.value)


class TestCommandLine:
    """One line and exit 1, without a traceback."""

    def test_a_corrupt_cell(self, tmp_path, monkeypatch):
        from parvi.experiments import reproduce

        experiment = cells.Experiment(
            "toy", "A toy", lambda quick: [{"x": 1}], lambda s: {}, lambda found, folder: ""
        )
        monkeypatch.setattr(reproduce, "EXPERIMENTS", {"toy": experiment})
        (tmp_path / "toy").mkdir()
        words = ["reproduce", "toy", "--results", str(tmp_path), "--page", str(tmp_path / "p.md")]
        for text, said in (("{", "is not a cell"), (interrupted_cell(), "interrupted run")):
            (tmp_path / "toy" / "x=1.json").write_text(text)
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 1
            assert said in done.output
            assert "Traceback" not in done.output

    def test_results_that_are_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        done = CliRunner().invoke(app, ["reproduce", "--results", str(tmp_path / "file")])
        assert done.exit_code == 1
        assert "must be a folder" in done.output


def interrupted_cell():
    return json.dumps({"setting": {}, "result": {"status": "INTERRUPTED"}, "seconds": 1.0})
