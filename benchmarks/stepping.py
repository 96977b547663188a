"""Steps of a sampler, timed without the driver's host work."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import Timed, timed
from parvi.run.advance import advance
from parvi.run.advance import start as start_run
from parvi.run.threads import single_blas_thread


def time_steps(sampler, target, particles, num_steps: int, repeats: int = 5) -> Timed:
    """Seconds for ``num_steps`` steps in one compiled call, as ``parvi.sample`` makes it."""
    key, rule = jax.random.key(0), sampler.stopping_rule
    with single_blas_thread():
        run = start_run(key, jnp.asarray(particles), sampler, target, rule)
        until, never = np.int32(num_steps), np.bool_(False)

        def steps():
            return advance(key, run, sampler, target, rule, until, never, num_steps)

        found = timed(steps, repeats=repeats)
        done = int(steps()[0].state.step)
    if done < num_steps:
        raise RuntimeError(f"the run ended after {done} of {num_steps} steps")
    return found
