"""blackjax's samplers of many chains, in the form of ``benchmarks.rivals``: MEADS, ChEES, LAPS.

Each has as many chains as there are particles, and leaves the last place of every chain. Settings
are those of their documentation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from blackjax.adaptation.laps import laps as run_laps

from benchmarks.rivals import Outcome, Ready

_MEADS_TUNING, _MEADS_STEPS = 1000, 500
_CHEES_TUNING, _CHEES_STEPS, _CHEES_FIRST_STEP, _CHEES_RATE = 500, 50, 0.1, 0.02
_LAPS_BURN_IN, _LAPS_STEPS, _LAPS_STEPS_PER_SAMPLE = 500, 500, 15


class _Counts(NamedTuple):
    """The part of a step of adaptation that is kept; all of it would fill the memory."""

    num_integration_steps: Any


def meads(density: Callable, start) -> Ready:
    """Generalised HMC, one gradient a step (Hoffman and Sountsov 2022)."""
    num = len(start)
    adaptation = blackjax.meads_adaptation(density, num, adaptation_info_fn=lambda *_: None)

    @jax.jit
    def program(key, positions):
        key_tune, key_run = jax.random.split(key)
        (states, parameters), _ = adaptation.run(key_tune, positions, _MEADS_TUNING)
        kernel = jax.vmap(blackjax.ghmc(density, **parameters).step)

        def one(states, key):
            return kernel(jax.random.split(key, num), states)[0], None

        return jax.lax.scan(one, states, jax.random.split(key_run, _MEADS_STEPS))[0].position

    def run(seed):
        particles = np.asarray(program(jax.random.key(seed), jnp.asarray(start)))
        return Outcome(particles, num * (_MEADS_TUNING + _MEADS_STEPS), {})

    return run


def chees(density: Callable, start) -> Ready:
    """HMC with one length for all chains (Hoffman, Radul and Sountsov 2021)."""
    num = len(start)
    adaptation = blackjax.chees_adaptation(
        density,
        num,
        adaptation_info_fn=lambda state, info, _: _Counts(info.num_integration_steps),
    )
    # One object, as a new one would be compiled anew.
    optimiser = optax.adam(_CHEES_RATE)

    @jax.jit
    def program(key, positions):
        key_tune, key_run = jax.random.split(key)
        (states, parameters), before = adaptation.run(
            key_tune, positions, _CHEES_FIRST_STEP, optimiser, _CHEES_TUNING
        )
        kernel = jax.vmap(blackjax.dynamic_hmc(density, **parameters).step)

        def one(states, key):
            states, info = kernel(jax.random.split(key, num), states)
            return states, jnp.sum(info.num_integration_steps)

        states, after = jax.lax.scan(one, states, jax.random.split(key_run, _CHEES_STEPS))
        return states.position, jnp.sum(before.num_integration_steps) + jnp.sum(after)

    def run(seed):
        particles, gradients = program(jax.random.key(seed), jnp.asarray(start))
        return Outcome(np.asarray(particles), int(gradients), {})

    return run


def laps(density: Callable, start) -> Ready:
    """Microcanonical dynamics, adjusted late; it draws its own start from N(0, I)."""
    num, dim = start.shape
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("chains",))

    def run(seed):
        info, calls, _, state = run_laps(
            density,
            lambda key: jax.random.normal(key, (dim,), start.dtype),
            dim,
            _LAPS_BURN_IN,
            _LAPS_STEPS,
            num,
            mesh,
            jax.random.key(seed),
            steps_per_sample=_LAPS_STEPS_PER_SAMPLE,
        )
        burn_in, adjusted = (
            len(jax.tree_util.tree_leaves(info[phase])[0]) for phase in ("phase_1", "phase_2")
        )
        gradients = num * (burn_in + adjusted * calls * _LAPS_STEPS_PER_SAMPLE)
        return Outcome(np.asarray(state.position), gradients, {})

    return run
