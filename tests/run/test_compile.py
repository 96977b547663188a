"""How hard the compiler tries is decided by counting; every mode gives the same particles."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.evaluation import LIGHT
from parvi.run.compile.policy import CAREFUL, Cost, Plan, planned
from parvi.run.run import Run
from parvi.stopping import exactly
from parvi.targets import zoo


def square(x):
    return -0.5 * jnp.sum(x**2)


def start(num, dim):
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


def plan_of(log_density, num, dim, sampler):
    return Run.begin(log_density, start(num, dim), sampler)._stepper.plan


@pytest.mark.parametrize("sampler", [parvi.pfg(), parvi.sgld(), parvi.langevin()])
def test_small_problems_begin_quickly_whatever_the_sampler(sampler):
    plan = plan_of(square, 64, 10, sampler)
    assert plan.quick_steps > 20
    assert not plan.apart


@pytest.mark.parametrize("log_density", [endless, repeated])
def test_a_log_density_that_takes_long_is_compiled_with_care(log_density):
    plan = plan_of(log_density, 512, 10, parvi.pfg())
    assert plan.apart
    assert plan.quick_steps > 20


def test_large_problems_are_compiled_with_care():
    assert plan_of(square, 100_000, 10, parvi.pfg()) == CAREFUL


def test_the_plan_follows_from_the_cost():
    light, heavy = LIGHT / 100, 2 * LIGHT
    assert planned(Cost(heavy, light), True) == CAREFUL
    assert planned(Cost(light, heavy), True).apart
    # A log density that differs from step to step cannot be a program of its own.
    assert planned(Cost(light, heavy), False) == CAREFUL
    cheap, dear = planned(Cost(light, 0), True), planned(Cost(2 * light, 0), True)
    assert cheap.quick_steps == 2 * dear.quick_steps > 0


# A fresh process without the flags of `make test`, which make two of the modes one program.
_MODES = """
import sys
import jax, numpy as np, parvi
from parvi.run.compile.policy import CAREFUL, Plan
from parvi.run.run import Run
from parvi.targets.zoo import banana
few = sys.argv[1] == "few"
plans = [Plan(10**6, False), Plan(10**6, True), Plan(37, False)]
start = np.random.default_rng(0).normal(size=(64, 2))
ends = []
with jax.enable_x64(True):
    for plan in plans[:2] if few else plans:
        # What is compiled with care, or step by step, takes long.
        steps = 460 if plan == plans[0] or not few and plan == plans[1] else 120 if few else 320
        unbroken, chunked = (
            Run.begin(banana(turned=0.4).target, start, parvi.pfg(), plan=plan) for _ in range(2)
        )
        unbroken.advance(steps)
        while chunked.num_steps < steps and not chunked.is_done:
            chunked.advance(min(61, steps - chunked.num_steps))
            chunked.advance(min(1, steps - chunked.num_steps))
        assert chunked.num_steps == unbroken.num_steps
        assert np.array_equal(unbroken.particles, chunked.particles), plan
        names = set(name for name, _ in unbroken.history)
        assert {"affine", "scout", "bend"} <= names, names
        assert steps < 320 or "fly" in names, names
        assert steps < 460 or "explore" in names, names
        ends.append(np.asarray(unbroken.particles))
early = []
with jax.enable_x64(True):
    for plan in (*plans, CAREFUL, None):
        run = Run.begin(banana(turned=0.4).target, start, parvi.pfg(), plan=plan)
        run.advance(8)
        early.append(np.asarray(run.particles))
for other in early[1:]:
    np.testing.assert_allclose(other, early[0], rtol=1e-8, atol=1e-8)
print("agreed", len(ends), len(early))
"""


@pytest.mark.parametrize(
    ("modes", "ends"), [("few", 2), pytest.param("all", 3, marks=pytest.mark.slow)]
)
def test_every_mode_runs_all_stages_chunked_bitwise(modes, ends):
    """The default at an n at which it bends. Between modes only rounding differs, at first.

    All modes make the first steps. The mode that compiles with care goes on in the slow case only,
    until it flies.
    """
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    words = [sys.executable, "-c", _MODES, modes]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert f"agreed {ends} 5" in done.stdout, done.stderr[-2000:]


def test_a_change_of_program_is_no_change_of_run():
    """A stage that outlives its quick steps goes on in another program, at the same step."""
    target = zoo.rotated_gaussian(3, 9.0).target
    sampler = exactly(parvi.svgd(), 40)
    ends = []
    with jax.enable_x64(True):
        for plan in (CAREFUL, Plan(13, False)):
            run = Run.begin(target, start(16, 3).astype(float), sampler, plan=plan)
            run.advance(40)
            ends.append(np.asarray(run.particles))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-8)


def test_programs_that_are_kept_are_bounded():
    from parvi.run.compile.programs import _programs

    assert _programs.cache_info().maxsize < 1000
