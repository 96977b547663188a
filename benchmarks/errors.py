"""Errors of particles against known means and standard deviations, over those of independent draws.

1 is as good as n independent draws; below 1 is better.
"""

import numpy as np
from jaxtyping import Float


def moment_errors(
    columns: Float[np.ndarray, "n p"], mean: Float[np.ndarray, " p"], sd: Float[np.ndarray, " p"]
) -> dict:
    """Root mean squares over the columns, the worst mean, and the range of the sd ratios.

    The error of second moments is that of the variances, over that of n Gaussian draws.
    """
    num = len(columns)
    errors = (columns.mean(axis=0) - mean) / sd * num**0.5
    ratios = columns.std(axis=0) / sd
    return {
        "mean_error": float(np.sqrt(np.mean(errors**2))),
        "worst": float(np.max(np.abs(errors))),
        "square_error": float(np.sqrt(np.mean((ratios**2 - 1) ** 2) * num / 2)),
        "sds": [float(ratios.min()), float(ratios.max())],
    }
