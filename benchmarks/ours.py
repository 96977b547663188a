"""The default in the form of ``benchmarks.rivals``, with its verdict among the facts."""

import time
import warnings
from collections.abc import Callable

import numpy as np

import parvi
from benchmarks.rivals import Outcome, Ready


def default(density: Callable, start) -> Ready:
    """``parvi.sample`` with default settings, from the start as it is."""
    target = parvi.Target(density, like=np.zeros(start.shape[1], start.dtype))

    def run(seed):
        began = time.perf_counter()
        with warnings.catch_warnings():
            # The status says it too.
            warnings.simplefilter("ignore", parvi.NotAtRestWarning)
            result = parvi.sample(target, start, key=seed, throw=False)
        seconds = time.perf_counter() - began
        facts = {
            "status": result.status.name,
            "ok": result.check().ok,
            "stages": list(dict.fromkeys(result.history["stage"].tolist())),
            # Without the check, which peers do not make.
            "seconds": seconds,
        }
        if result.passes is not None:
            facts["modes"] = str(result.modes())
        return Outcome(np.asarray(result.particles), result.num_gradients, facts)

    return run
