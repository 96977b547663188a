"""The table of ``result.summary()``: a data frame that prints all of its columns."""

import pandas as pd

# Rows that are printed; pandas leaves out the middle of more.
_MOST_ROWS = 60


class Summary(pd.DataFrame):
    """A pandas data frame; what is cut from it is a plain one."""

    @property
    def _constructor(self):
        return pd.DataFrame

    def __repr__(self) -> str:
        # Of a wide frame pandas prints the first and last columns, and leaves out the quantiles.
        return self.to_string(max_rows=_MOST_ROWS)
