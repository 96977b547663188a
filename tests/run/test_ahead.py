"""Programs that are compiled ahead: the same particles, sooner, and nothing left running."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.run.compile import ahead
from parvi.run.compile.ahead import Ahead, is_new


def start():
    return np.random.default_rng(0).normal(size=(96, 2)).astype(np.float32)


def bowl(x):
    return -0.5 * jnp.sum((x - 1) ** 2) - 0.1 * jnp.sum(x**4)


def funnel(x):
    """The scale of the second number follows the first, which a coupling straightens."""
    return -0.5 * x[0] ** 2 - 0.5 * (x[1] * jnp.exp(-x[0])) ** 2 - x[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log_density", "names"),
    [
        (bowl, ["affine", "scout", "bend", "fly", "verify", "survey"]),
        # Once in the first coordinates, and again in those in which the run goes on.
        (
            funnel,
            [
                *("affine", "scout", "bend", "fly", "verify", "survey"),
                *("affine straight", "bend", "fly", "explore", "gather", "polish"),
                *("compare straight", "survey"),
            ],
        ),
    ],
)
def test_the_same_bits_with_and_without(log_density, names, monkeypatch):
    asked = []
    add = Ahead.add
    monkeypatch.setattr(Ahead, "add", lambda self, *args: (asked.append(args[0]), add(self, *args)))
    ahead._compiled.clear()
    with_threads = parvi.sample(log_density, start())
    assert asked == names
    assert not [t for t in threading.enumerate() if t.name.startswith("parvi-")]

    # A second run finds everything ready.
    again = parvi.sample(log_density, start())
    assert asked == names

    jax.clear_caches()
    ahead._compiled.clear()
    monkeypatch.setattr(Ahead, "add", lambda self, *args: None)
    without = parvi.sample(log_density, start())
    for other in (again, without):
        np.testing.assert_array_equal(with_threads.particles, other.particles)
        assert with_threads.history["stage"].tolist() == other.history["stage"].tolist()


def test_what_was_asked_for_can_be_dropped():
    """What has not been begun never is, and nobody waits for it."""
    begun, gate = [], threading.Event()

    def slow(name):
        begun.append(name)
        gate.wait(30)
        yield from ()

    with Ahead() as threads:
        threads.add("first", slow, "first")
        threads.add("second", slow, "second")
        while not begun:
            pass
        threads.drop()
        threads.wait("first")
        threads.wait("second")
        gate.set()
    assert begun == ["first"]


def test_a_run_with_a_limit_does_not_look_ahead(monkeypatch):
    asked = []
    monkeypatch.setattr(Ahead, "add", lambda self, *args: asked.append(args[0]))
    result = parvi.sample(lambda x: -0.5 * jnp.sum(x**2), start(), num_steps=2)
    assert result.num_steps == 2
    assert asked == []


def test_what_fails_there_is_left_to_the_run():
    begun = []

    def broken(name):
        begun.append(name)
        raise RuntimeError("not here")
        yield

    with Ahead() as threads:
        threads.add("stage", broken, "bend")
        threads.wait("stage")
        # The thread goes on with what comes next.
        threads.add("next", broken, "verify")
        threads.wait("next")
    assert begun == ["bend", "verify"]


def test_asked_once():
    assert is_new(("something", 1))
    assert not is_new(("something", 1))
