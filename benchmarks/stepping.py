"""Steps of a sampler, timed without the start and the end of a run."""

import numpy as np

from benchmarks.timing import Timed, timed
from parvi.run.compile.policy import CAREFUL
from parvi.run.run import Run
from parvi.run.threads import single_blas_thread
from parvi.stopping import exactly
from parvi.targets.precision import precision

_NEVER_REACHED = 10**9


def time_steps(sampler, target, particles, num_steps: int, repeats: int = 5) -> Timed:
    """Seconds for ``num_steps`` steps, as ``parvi.sample`` makes them in a long run.

    Each repeat goes on where the one before it ended; all are carefully compiled.
    """
    with precision(np.dtype(np.float32)), single_blas_thread():
        run = Run.begin(target, particles, exactly(sampler, _NEVER_REACHED), plan=CAREFUL)
        found = timed(lambda: run.advance(num_steps), repeats=repeats)
    wanted = (repeats + 1) * num_steps
    if run.num_steps < wanted:
        raise RuntimeError(f"{run.status} after {run.num_steps} of {wanted} steps")
    return found
