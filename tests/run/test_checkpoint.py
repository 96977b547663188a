"""Runs that are killed, preempted or interrupted go on bit for bit as if nothing had happened."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.run.checkpointed import KINDS, MESH, facts, problem

import parvi
from parvi.run import checkpoint, rows
from parvi.run.run import Run
from parvi.targets.precision import precision

pytestmark = pytest.mark.xdist_group("checkpoint")

SCRIPT = pathlib.Path(__file__).with_name("checkpointed.py")


def child(kind, folder, output):
    root = SCRIPT.parents[2]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    if kind == MESH:
        flags = env.get("XLA_FLAGS", "")
        env["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2"
    words = [sys.executable, str(SCRIPT), kind, str(folder), str(output)]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finished(kind, folder, output):
    process = child(kind, folder, output)
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 0, text.decode()
    return np.load(output)


def same(one, other):
    for name in ("particles", "steps", "status", "stages", "kl_rate"):
        np.testing.assert_array_equal(one[name], other[name])


def begun(kind):
    target, start, settings = problem(kind)
    with jax.enable_x64(False):
        return Run.begin(target, start, settings.get("sampler", parvi.pfg()), key=3)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=pytest.mark.slow if kind == "modes" else ()) for kind in KINDS
    ],
)
def whole(request):
    run = begun(request.param)
    limit = 200 if request.param in ("rows", "svgd") else 10_000
    with precision(np.dtype(np.float32)):
        run.advance(limit)
    return request.param, limit, run


@pytest.mark.parametrize(
    "share",
    [pytest.param(0.05, marks=pytest.mark.slow), 0.5, pytest.param(0.9, marks=pytest.mark.slow)],
)
def test_the_state_is_all_that_is_needed(whole, share, tmp_path):
    """Through a file, and into a run that knows nothing but target, sampler and key."""
    kind, limit, expected = whole
    first, second = begun(kind), begun(kind)
    kept = checkpoint.Checkpoint(tmp_path, {"a": "b"})
    with precision(np.dtype(np.float32)):
        first.advance(max(1, int(share * expected.num_steps)))
        kept.write(*first.state())
        second.restore(kept.read())
        assert second.stage.name == first.stage.name
        second.advance(limit - second.num_steps)
    assert second.num_steps == expected.num_steps
    assert second.status == expected.status
    np.testing.assert_array_equal(second.particles, expected.particles)
    names = [name for name, records in second.history for _ in records.accepted]
    assert names == [name for name, records in expected.history for _ in records.accepted]
    assert list(second.reports) == list(expected.reports)


@pytest.mark.slow
def test_rounds_of_subsets_go_on(monkeypatch, tmp_path):
    """The subsets of the default's mini-batches are part of the state."""
    monkeypatch.setattr(rows, "_CPU_OPERATIONS", 0)
    monkeypatch.setattr(rows, "_FEW_BATCHES", 0)
    target, start, _ = problem("rows")

    def run():
        return Run.begin(target, start, parvi.pfg(), key=3)

    with precision(np.dtype(np.float32)):
        expected, first, second = run(), run(), run()
        expected.advance(200)
        assert expected.rounds.number > 0
        kept = checkpoint.Checkpoint(tmp_path, {"a": "b"})
        first.advance(expected.num_steps * 3 // 4)
        assert first.rounds.number > 0
        kept.write(*first.state())
        second.restore(kept.read())
        second.advance(200 - second.num_steps)
    assert second.num_steps == expected.num_steps
    assert second.rounds.number == expected.rounds.number
    np.testing.assert_array_equal(second.particles, expected.particles)


@pytest.mark.parametrize("kind", ["svgd", pytest.param("banana", marks=pytest.mark.slow)])
def test_a_killed_run_goes_on(kind, tmp_path):
    folder, output = tmp_path / "run", tmp_path / "killed.npz"
    process = child(kind, folder, output)
    while not (folder / "checkpoint.npz").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    assert not output.exists()
    target, start, settings = problem(kind)
    unbroken = facts(parvi.sample(target, start, **settings))
    same(finished(kind, folder, output), unbroken)


def killed_and_resumed(tmp_path, kind, unbroken, delays, number):
    folder, output = tmp_path / "run", tmp_path / "killed.npz"
    for delay in delays:
        process = child(kind, folder, output)
        time.sleep(delay)
        process.send_signal(number)
        process.communicate(timeout=600)
        if number == signal.SIGTERM:
            # Saved and left; done before; or still importing, with nothing to save.
            assert process.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    same(finished(kind, folder, output), unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, MESH])
def test_fifty_kills(kind, tmp_path):
    """At random moments, some of them twice in one run."""
    rng = np.random.default_rng(len(kind))
    unbroken = finished(kind, "-", tmp_path / "unbroken.npz")
    done = 0
    while done < 13:
        folder = tmp_path / f"{done}"
        folder.mkdir()
        delays = rng.uniform(0.5, 9, size=rng.integers(1, 4))
        number = signal.SIGTERM if done % 3 == 2 else signal.SIGKILL
        killed_and_resumed(folder, kind, unbroken, delays, number)
        done += len(delays)


def test_a_finished_run_is_found_and_another_is_refused(tmp_path):
    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    start = np.random.default_rng(0).normal(size=(64, 2))
    sampler = parvi.svgd()
    first = parvi.sample(log_density, start, sampler=sampler, num_steps=20, checkpoint=tmp_path)
    again = parvi.sample(log_density, start, sampler=sampler, num_steps=20, checkpoint=tmp_path)
    np.testing.assert_array_equal(first.particles, again.particles)
    assert again.num_steps == first.num_steps
    resumed = parvi.resume(tmp_path, log_density, sampler=sampler)
    np.testing.assert_array_equal(first.particles, resumed.particles)
    for change, words in (
        ({"key": 1}, "key is"),
        ({"num_steps": 21}, "num_steps is 21 here and 20 there"),
        ({"sampler": parvi.langevin()}, "sampler is"),
        ({"init": start[:32]}, "particles is 32 of 2"),
        ({"init": start + 1}, "start and its log density"),
        ({"log_density": lambda x: -jnp.sum(x**2)}, "start and its log density"),
    ):
        call = {"log_density": log_density, "init": start, "sampler": sampler, "num_steps": 20}
        with pytest.raises(ValueError, match="is of another run") as error:
            parvi.sample(**(call | change), checkpoint=tmp_path)
        assert words in str(error.value)


@pytest.mark.slow
def test_resume_with_the_folder_alone(tmp_path):
    target, start, _ = problem("banana")
    whole = parvi.sample(target, start, key=5)
    parvi.sample(target, start, key=5, checkpoint=tmp_path / "whole")
    result = parvi.resume(tmp_path / "whole", target)
    np.testing.assert_array_equal(result.particles, whole.particles)
    with pytest.raises(ValueError, match="no checkpoint"):
        parvi.resume(tmp_path / "nothing", target)
    parvi.sample(target, start, sampler=parvi.svgd(), num_steps=5, checkpoint=tmp_path / "svgd")
    with pytest.raises(ValueError, match="sampler="):
        parvi.resume(tmp_path / "svgd", target)
    result = parvi.resume(tmp_path / "svgd", target, sampler=parvi.svgd())
    assert result.num_steps == 5


def test_resume_knows_the_start_and_refuses_another_log_density(tmp_path):
    start = np.random.default_rng(0).normal(size=(64, 2)) * 5

    def density(mean):
        return lambda x: -0.5 * jnp.sum((x - mean) ** 2)

    whole = parvi.sample(density(1.0), start, checkpoint=tmp_path)
    again = parvi.resume(tmp_path, density(1.0))
    assert again.sought == whole.sought
    # All of its steps were made before, and the time of these is not that of this call.
    assert again.timing.compile_seconds <= again.timing.seconds
    with pytest.raises(ValueError, match="is of another log density, which was -"):
        parvi.resume(tmp_path, density(1.001))


def test_bad_folders(tmp_path):
    start = np.random.default_rng(0).normal(size=(16, 2))

    def sample(folder):
        parvi.sample(lambda x: -jnp.sum(x**2), start, num_steps=1, checkpoint=folder)

    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="must be a folder"):
        sample(tmp_path / "file")
    with pytest.raises(ValueError, match="must be a folder"):
        sample(3.5)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "checkpoint.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        sample(tmp_path / "broken")
