"""Particles over devices and over processes: the same particles, and no traffic that grows."""

import os
import pathlib
import socket
import subprocess
import sys
import time

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


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """Made by one test process; another one waits for it."""
    path = tmp_path_factory.getbasetemp().parent / "eight.npz"
    try:
        path.with_suffix(".begun").touch(exist_ok=False)
    except FileExistsError:
        for _ in range(600):
            if path.exists():
                break
            time.sleep(1)
    else:
        made = path.with_suffix(".made.npz")
        finish([command("devices", made, devices=8)])
        made.replace(path)
    return np.load(path)


SHOWN = ["default", "default_diagonal", "algorithm_1", "blocks", "unread"]
NAMES = [*SHOWN, "svgd", "rows 96", "rows 16"]


@pytest.mark.parametrize("name", NAMES)
def test_same_particles(eight, name):
    alone, spread = eight[f"{name} alone"], eight[f"{name} spread"]
    assert alone.std() > 0.1
    # Sums in another order: rounding, and what the steps make of it.
    np.testing.assert_allclose(spread, alone, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", SHOWN)
def test_no_particles_are_sent(eight, name):
    for operation in ("all-gather", "all-to-all", "collective-permute"):
        assert f"{name} {operation}" not in eight
    # Sums over the particles alone, at most the Gram matrix of affine and bent features.
    sums = eight[f"{name} all-reduce"]
    assert len(sums) > 0
    assert sums.max() <= (1 + DIM + NUM // 8) ** 2


def test_uneven(eight):
    message = str(eight["uneven"])
    assert "100 particles" in message
    assert "8 devices" in message
    assert "96 or 104" in message


def test_two_processes(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    paths = [tmp_path / f"{i}.npz" for i in range(2)]
    finish([command("process", path, port, i, 2) for i, path in enumerate(paths)])
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
    alone = parvi.sample(target, over_devices.begin(), num_steps=40, sampler=sampler)
    np.testing.assert_allclose(first["particles"], alone.particles, rtol=1e-5, atol=2e-5)
