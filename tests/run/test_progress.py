"""What a run shows of itself: stage, gradients, KL rate, and the time left where it is known."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.run import progress
from parvi.run.run import Run


def log_density(x):
    return -0.5 * jnp.sum(x**2)


START = np.random.default_rng(0).normal(size=(32, 2)).astype(np.float32)


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        progress, "time", types.SimpleNamespace(perf_counter=lambda: clock.now), raising=True
    )
    # All of it is in the line of a small terminal.
    monkeypatch.setenv("COLUMNS", "80")
    return clock


def shown(capfd, clock, total, moves, kl_rate=1.5e-3):
    """The last line after some moves, each a step, the time at it and whether it is typical."""
    with progress.Bar(None, True) as bar:
        bar.begin(0, total)
        for step, now, is_typical in moves:
            clock.now = now
            bar.update(step, "bend", 61_440, kl_rate, is_typical)
    return capfd.readouterr().err.strip().splitlines()[-1]


def test_the_time_left_is_that_of_steps_that_did_not_compile(capfd, clock):
    line = shown(capfd, clock, 130, [(1, 40.0, False), (11, 42.0, True), (31, 46.0, True)])
    assert "bend, step 31/130, 61.4k gradients, KL rate 1.5e-03" in line
    # 30 steps took 6 seconds, so 99 steps take 19.8.
    assert line.endswith("up to 0:20 left")
    assert "left" not in shown(capfd, clock, 130, [(1, 40.0, False)])


def test_without_a_known_end_only_the_elapsed_time_is_shown(capfd, clock):
    line = shown(capfd, clock, None, [(1, 40.0, False), (31, 46.0, True)], kl_rate=np.nan)
    assert "bend, step 31, 61.4k gradients" in line
    assert "left" not in line
    assert "nan" not in line


def test_a_run_counts_gradients_and_knows_whether_its_end_is_known():
    run = Run.begin(log_density, START, parvi.svgd(), key=0)
    run.advance(3)
    # One evaluation of all particles at the start, and one at every step.
    assert run.num_gradients == 32 * 4
    assert run.last_step(50) == 50
    other = Run.begin(log_density, START, parvi.svgd(), key=0)
    other.restore(run.state())
    assert other.num_gradients == run.num_gradients
    short = parvi.Stage("short", parvi.svgd(max_steps=20))
    assert Run.begin(log_density, START, parvi.Sequence(short), key=0).last_step(50) == 20
    staged = parvi.Sequence(short, parvi.Stage("next", parvi.svgd()))
    assert Run.begin(log_density, START, staged, key=0).last_step(50) is None


def test_sample_shows_what_its_result_counts(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = parvi.sample(log_density, START, sampler=parvi.svgd(), num_steps=5, progress=True)
    shown = capfd.readouterr().err
    assert f"flow, step 5/5, {result.num_gradients} gradients, KL rate" in shown
