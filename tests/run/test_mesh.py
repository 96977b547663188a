"""Particles over devices and over processes: the same particles, and no traffic that grows."""

import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

import parvi

# One process, which runs the eight devices once for all these tests.
pytestmark = pytest.mark.xdist_group("mesh")

SCRIPT = pathlib.Path(__file__).with_name("over_devices.py")
NUM, DIM = 512, 6


def command(*arguments, devices=1):
    flags = os.environ.get("XLA_FLAGS", "")
    flags += f" --xla_force_host_platform_device_count={devices}"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(processes):
    for process in processes:
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output


# Those of the quick tests, and those that compile more: the whole default, or the same once more.
FEW = ("algorithm_1", "rows 16")
MORE = ("default", "default_diagonal", "blocks", "svgd", "unread", "rows 96")


def made(folder, names):
    path = folder / "eight.npz"
    finish([command("devices", path, *names, devices=8)])
    return np.load(path)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return made(tmp_path_factory.mktemp("few"), FEW)


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    return made(tmp_path_factory.mktemp("more"), MORE)


def assert_same_particles(runs, name):
    alone, spread = runs[f"{name} alone"], runs[f"{name} spread"]
    assert alone.std() > 0.1
    # Sums in another order: rounding, and what the steps make of it.
    np.testing.assert_allclose(spread, alone, rtol=1e-5, atol=2e-5)


def assert_no_particles_are_sent(runs, name):
    for operation in ("all-gather", "all-to-all", "collective-permute"):
        assert f"{name} {operation}" not in runs
    # Sums over the particles alone, at most the Gram matrix of affine and bent features.
    sums = runs[f"{name} all-reduce"]
    assert len(sums) > 0
    assert sums.max() <= (1 + DIM + NUM // 8) ** 2


@pytest.mark.parametrize("name", FEW)
def test_same_particles(few, name):
    assert_same_particles(few, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_same_particles_of_more(more, name):
    assert_same_particles(more, name)


def test_no_particles_are_sent(few):
    assert_no_particles_are_sent(few, "algorithm_1")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "default_diagonal", "blocks", "unread"])
def test_no_particles_are_sent_of_more(more, name):
    assert_no_particles_are_sent(more, name)


def test_uneven(few):
    message = str(few["uneven"])
    assert "100 particles" in message
    assert "8 devices" in message
    assert "96 or 104" in message


# The first steps are affine; forty bend as well.
@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_two_processes(tmp_path, steps):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    paths = [tmp_path / f"{i}.npz" for i in range(2)]
    finish([command("process", path, port, steps, i, 2) for i, path in enumerate(paths)])
    first, second = (np.load(path) for path in paths)
    np.testing.assert_array_equal(first["particles"], second["particles"])

    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import over_devices
    finally:
        sys.path.pop(0)
    target = over_devices.logistic_regression(*over_devices.posterior())
    # On several processes the stages that compare log densities are left out.
    stages = [s for s in parvi.pfg().stages if not s.sampler.compares_densities]
    sampler = parvi.Sequence(*stages)
    alone = parvi.sample(target, over_devices.begin(), num_steps=steps, sampler=sampler)
    np.testing.assert_allclose(first["particles"], alone.particles, rtol=1e-5, atol=2e-5)
