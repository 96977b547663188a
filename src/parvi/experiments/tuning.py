"""Step sizes, chosen from the same four values for every method but the default."""

from collections.abc import Mapping

import numpy as np

from parvi.results.result import Result

# The name of the sampler that needs no step size and no validation.
DEFAULT = "PFG (default)"
STEP_SIZES = (1e-1, 1e-2, 1e-3, 1e-4)


def best(losses: Mapping[float, float]) -> float | None:
    """The step size of the smallest loss, or None if none was tried."""
    return min(losses, key=lambda size: losses[size], default=None)


def facts(run: Result) -> dict:
    """What every cell says about its run."""
    return {"steps": run.num_steps, "status": run.status.name, "seconds": run.timing.seconds}


def tuned_facts(
    run: Result, size: float | None, tried: Mapping[float, float], name: str = "validation_nll"
) -> dict:
    """The chosen step size, the validation score ``name`` of all that were tried, and the facts."""
    scores = {str(s): value if np.isfinite(value) else None for s, value in tried.items()}
    return {"step_size": size, name: scores, **facts(run)}
