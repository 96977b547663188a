"""The style that all plots share, and what they need of a result."""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

# Okabe and Ito's colours, which people with any colour vision tell apart; black is left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
# The same hues, lighter, for a dark background.
_LIGHTER = ("#56B4E9", "#FF9A5C", "#35C99A", "#E3A0C6", "#F2C14E", "#B5DDF5", "#F0E442")
# Parameters that are drawn if none are named.
MOST = 6
# Numbers from here on are too long for several of them side by side below one of the axes.
_LONG = 1e5
# A number with so many digits needs the room of two.
_MANY = 5

_SHARED: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    # Whole numbers at the ticks: an offset or a factor would be printed over the names.
    "axes.formatter.useoffset": False,
    "figure.dpi": 110,
    "savefig.dpi": 110,
}
# matplotlib takes the style of a legend from when it is drawn, not from when its axes were made.
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8}
_theme = contextvars.ContextVar("theme", default="light")
_INK = {"light": "#222222", "dark": "#DDDDDD"}


@contextlib.contextmanager
def styled(theme: str = "light") -> Iterator[None]:
    """Draw in the shared style; ``theme`` is light or dark, both on a transparent background."""
    import matplotlib as mpl
    from cycler import cycler

    ink = _INK[theme]
    names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    own: dict[Any, Any] = dict.fromkeys((*names, "axes.titlecolor"), ink)
    clear: dict[Any, Any] = dict.fromkeys(
        ("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"
    )
    token = _theme.set(theme)
    try:
        shared = {**_SHARED, **own, **clear, "axes.prop_cycle": cycler(color=palette())}
        with mpl.rc_context(shared):
            yield
    finally:
        _theme.reset(token)


def palette() -> tuple[str, ...]:
    """The colours of the theme in which figures are drawn at the moment."""
    return _LIGHTER if _theme.get() == "dark" else COLOURS


def new_axes(rows: int, columns: int, width: float = 2.4, height: float = 2.0) -> Any:
    """An array of axes in the shared style, on a figure of its own that no window shows."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install 'parvi[plots]'.") from error
    with mpl.rc_context(_SHARED):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        return figure.subplots(rows, columns, squeeze=False)


def columns_of(result: Any, names: Sequence[str] | None, most: int = MOST) -> list[int]:
    """The numbers of the named columns of ``result.matrix()``; the first few if none are named.

    The name of an array stands for all of its numbers, and that of a part of a particle for all
    arrays in it.
    """
    if names is None:
        return list(range(min(most, len(result.names))))
    if isinstance(names, str):
        names = [names]
    chosen: list[int] = []
    for name in names:
        found = [i for i, own in enumerate(result.names) if own == name]
        inside = (f"{name}[", f"{name}.")
        found = found or [i for i, own in enumerate(result.names) if own.startswith(inside)]
        if not found:
            some = ", ".join(result.names[:10])
            raise ValueError(f"No parameter is called {name!r}; the first ones are {some}.")
        chosen += found
    return chosen


def short(name: str, most: int = 26) -> str:
    """The name with its middle left out if it is long: beginnings and places tell names apart."""
    if len(name) <= most:
        return name
    last = most // 2
    return f"{name[: most - last - 1]}…{name[-last:]}"


def labels_of(result: Any) -> np.ndarray:
    """The mode of every particle; if modes are not known, all belong to the first."""
    found = result.known_modes()
    return np.zeros(result.num_particles, int) if found is None else found.labels


def limits(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Where to draw: the middle 99 % and a margin, so that one particle in a tail hides nothing."""
    low, high = np.quantile(values, [0.005, 0.995])
    margin = 0.1 * (high - low) or 1.0
    return float(low - margin), float(high + margin)


def few_ticks(axis: Any, most: int) -> None:
    """Set the most intervals along x; numbers with many digits get fewer, and are rounded."""
    low, high = axis.get_xlim()
    largest = max(abs(low), abs(high))
    if 1e-3 <= largest < _LONG:
        decimals = max(0, math.ceil(math.log10(most / (high - low))))
        digits = math.ceil(math.log10(max(largest, 1.0))) + decimals
        axis.locator_params(axis="x", nbins=most if digits < _MANY else max(1, most - 2))
        return
    axis.locator_params(axis="x", nbins=1)
    axis.xaxis.set_major_formatter("{x:.2g}")
