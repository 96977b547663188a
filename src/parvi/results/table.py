"""The table of ``result.summary()``: a data frame that prints all of its columns."""

import numpy as np
import pandas as pd
from jaxtyping import Float

from parvi.results.modes import Modes
from parvi.results.verdicts import FAILED, OK, UNWEIGHED, Verdicts
from parvi.status import Status

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Rows that are printed; pandas leaves out the middle of more.
_MOST_ROWS = 60


def summarised(
    matrix: Float[np.ndarray, "n k"],
    names: list[str],
    status: Status,
    found: Verdicts | None,
    met: Modes | None,
    unweighed: bool,
) -> "Summary":
    """Mean, standard deviation, quantiles and verdict of every column, and means of modes.

    ``unweighed``: a check has found separated modes whose weights are those of the start, so that
    no parameter is right, however well it fits within each mode.
    """
    table = {"mean": matrix.mean(axis=0), "sd": matrix.std(axis=0)}
    for quantile in _QUANTILES:
        table[f"{100 * quantile:g}%"] = np.quantile(matrix, quantile, axis=0)
    if found is not None:
        # No parameter of a run that failed is ok, whatever its numbers are.
        words = np.full(len(names), FAILED) if status.failed else found.words()
        if unweighed:
            words[words == OK] = UNWEIGHED
        table |= {"drift": found.drifts, "stein_ratio": found.ratios, "verdict": words}
    if met is not None and len(met.weights) > 1:
        for k in range(len(met.weights)):
            table[f"mode {k + 1}"] = matrix[met.labels == k].mean(axis=0)
    return Summary(table, index=names)


class Summary(pd.DataFrame):
    """A pandas data frame; what is cut from it is a plain one."""

    @property
    def _constructor(self):
        return pd.DataFrame

    def __repr__(self) -> str:
        # Of a wide frame pandas prints the first and last columns, and leaves out the quantiles.
        return self.to_string(max_rows=_MOST_ROWS)
