"""Figures of the report, drawn without a screen."""

import pathlib
from typing import Any

# Height of a line of titles, in inches.
_TITLE = 0.3


def panels(rows: int, columns: int, size: float = 2.6) -> tuple[Any, Any]:
    """A figure with rows and columns of axes."""
    from matplotlib.figure import Figure

    # Axes of equal aspect leave no room for a title of their own.
    figure = Figure(figsize=(size * columns, size * rows + _TITLE), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Any, folder: pathlib.Path, name: str) -> str:
    """Save the figure beside the page, and return the Markdown that shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=150, facecolor="white")
    return f"![{name}]({folder.name}/{name}.png)\n"
