"""The table of ``result.summary()``: a data frame that prints all of its columns."""

import numpy as np
import pandas as pd
from jaxtyping import Float

from parvi.results.modes import Modes
from parvi.results.verdicts import FAILED, Verdicts, doubted
from parvi.status import Status

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Rows that are printed; pandas leaves out the middle of more.
_MOST_ROWS = 60
# Smaller and larger numbers are written with an exponent.
_MOST_DECIMALS, _LARGE = 6, 1e7


def summarised(
    matrix: Float[np.ndarray, "n k"],
    names: list[str],
    status: Status,
    found: Verdicts | None,
    met: Modes | None,
    doubts: dict[str, str],
) -> "Summary":
    """Mean, standard deviation, quantiles and verdict of every column, and means of modes.

    ``doubts``: what a check says of parameters (``Check.doubts``).
    """
    table = {"mean": matrix.mean(axis=0), "sd": matrix.std(axis=0)}
    for quantile in _QUANTILES:
        table[f"{100 * quantile:g}%"] = np.quantile(matrix, quantile, axis=0)
    if found is not None:
        # No parameter of a run that failed is ok, whatever its numbers are.
        words = np.full(len(names), FAILED) if status.failed else found.words()
        words = doubted(words, names, doubts)
        table |= {"drift": found.drifts, "stein_ratio": found.ratios, "verdict": words}
    if met is not None and len(met.weights) > 1:
        for k in range(len(met.weights)):
            table[f"mode {k + 1}"] = matrix[met.labels == k].mean(axis=0)
    return Summary(table, index=names)


def parameters_first(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the parameters, which have verdicts, before what is computed from them."""
    if "verdict" not in table:
        return table
    return table.iloc[np.argsort(table["verdict"].to_numpy() == "", kind="stable")]


def in_digits(column: str, value: float, sd: float) -> str:
    """A number of the table as people read it, "-" for none.

    Numbers on a parameter's own scale have as many decimals as three digits of its standard
    deviation: more would say nothing, and fewer would hide the width around a large mean.
    """
    if not np.isfinite(value):
        return "-"
    if column in ("drift", "stein_ratio"):
        return f"{value:.2f}" if abs(value) < 1e4 else f"{value:.2g}"
    decimals = 2 - int(np.floor(np.log10(sd))) if np.isfinite(sd) and sd > 0 else -1
    if not 0 <= decimals <= _MOST_DECIMALS or abs(value) >= _LARGE:
        return f"{value:.4g}"
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


class Summary(pd.DataFrame):
    """A pandas data frame; what is cut from it is a plain one."""

    @property
    def _constructor(self):
        return pd.DataFrame

    def __repr__(self) -> str:
        return self.in_words(_MOST_ROWS)

    def in_words(self, most: int | None = None) -> str:
        """The table as text, with at most so many rows."""
        columns = {
            name: [
                value if isinstance(value, str) else in_digits(str(name), value, sd)
                for value, sd in zip(self[name], self["sd"], strict=True)
            ]
            for name in self.columns
        }
        # Of a wide frame pandas prints the first and last columns, and leaves out the quantiles.
        return pd.DataFrame(columns, index=self.index).to_string(max_rows=most)
