"""How hard the compiler tries is a matter of sizes; the second stage is for those that need it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.run import advance as programs
from parvi.run.effort import Effort, wanted
from parvi.run.parts import IN_PARTS
from parvi.run.sample import _programs
from parvi.targets.zoo import banana


def square(x):
    return -0.5 * jnp.sum(x**2)


def begin(num, dim):
    return np.random.default_rng(0).normal(size=(num, dim)).astype(np.float32)


def endless(x):
    def proceed(carry):
        return jnp.sum(carry**2) > 1

    halved = jax.lax.while_loop(proceed, lambda carry: carry / 2, x)
    return square(x) + jnp.sum(jax.lax.stop_gradient(halved))


def repeated(x):
    def one(carry, _):
        return jnp.sin(carry), None

    return square(jax.lax.scan(one, x, None, length=10_000)[0])


@pytest.mark.parametrize(
    ("log_density", "num", "dim", "effort"),
    [
        (square, 512, 10, Effort.QUICK),
        (square, 200, 61, Effort.QUICK),
        (square, 20_000, 10, Effort.FULL),
        (endless, 512, 10, Effort.QUICK_AROUND),
        (repeated, 512, 10, Effort.QUICK_AROUND),
    ],
)
def test_small_problems_are_brief(log_density, num, dim, effort):
    particles = jax.ShapeDtypeStruct((num, dim), np.float32)
    target = parvi.Target(log_density, like=np.zeros(dim, np.float32))
    assert wanted(parvi.pfg(), target, particles) == effort
    # Samplers that run for as long as they are told are never brief.
    assert wanted(parvi.svgd(), target, particles) == Effort.FULL
    assert wanted(parvi.pfg().second_stage(), target, particles) == Effort.FULL


def test_the_rule_chooses_the_program():
    target = parvi.Target(square, like=np.zeros(10, np.float32))
    slow = parvi.Target(repeated, like=np.zeros(10, np.float32))
    small = jax.ShapeDtypeStruct((64, 10), np.float32)
    medium = jax.ShapeDtypeStruct((512, 10), np.float32)
    large = jax.ShapeDtypeStruct((20_000, 10), np.float32)
    assert _programs(parvi.pfg(), small, target, None) is programs.QUICK
    assert _programs(parvi.pfg(), large, target, None) is programs.OPTIMISED
    assert _programs(parvi.pfg(), medium, slow, None) is IN_PARTS


def test_all_programs_agree():
    """Compiled one way or another: rounding apart, the same particles."""
    target = parvi.Target(square, like=np.zeros(3, np.float32))
    sampler, key = parvi.pfg(), jax.random.key(0)
    ends = []
    for start, advance in (programs.QUICK, programs.OPTIMISED, IN_PARTS):
        run = start(key, jnp.asarray(2 + begin(64, 3)), sampler, target, sampler.stopping_rule)
        rest = (target, sampler.stopping_rule, np.int32(15), np.bool_(False), 16)
        ends.append(np.asarray(advance(key, run, sampler, *rest)[0].state.particles))
    assert np.abs(ends[0] - 2 - begin(64, 3)).max() > 0.5
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ends[2], ends[1], rtol=1e-4, atol=1e-4)


def test_a_bent_target_needs_the_second_stage(monkeypatch):
    """The banana is far from Gaussian: flights. Paused steps are in no history and count once."""
    entered = []
    onward = parvi.AffineThenBend.onward
    monkeypatch.setattr(
        parvi.AffineThenBend, "onward", lambda self, state: entered.append(1) or onward(self, state)
    )
    result = parvi.sample(banana().target, begin(256, 2), num_steps=500)
    assert len(entered) == 1
    assert result.num_steps == 500
    assert result.history["kl_rate"].shape == (500,)
    # A Gaussian does not.
    parvi.sample(square, begin(256, 2))
    assert len(entered) == 1
