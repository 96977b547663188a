"""The figures of a report, as images inside the page, for light and for dark screens."""

import base64
import io
from collections.abc import Callable
from typing import Any, NamedTuple

from parvi.results.plots.history import history
from parvi.results.plots.marginals import marginals
from parvi.results.plots.pairs import pairs
from parvi.results.plots.style import styled


class Picture(NamedTuple):
    """A figure: its title, what it shows in words, and its two images as data addresses."""

    title: str
    words: str
    light: str
    dark: str


def pictures(result: Any, names: list[str] | None) -> list[Picture]:
    """The figures that this result has."""
    made = [
        _picture(
            "Marginals",
            "The density of each parameter; the coloured part holds 90 %, and the dotted line is "
            "the median.",
            lambda: marginals(result, names),
        ),
        _picture(
            "Pairs",
            "The particles in every pair of parameters. Separated modes have colours of their own.",
            lambda: pairs(result, names[:4] if names else None),
        ),
    ]
    if result.num_steps:
        words = "The KL rate and the Stein ratio over the steps, with the stages of the run."
        made.append(_picture("History", words, lambda: history(result)))
    return made


def _picture(title: str, words: str, draw: Callable[[], Any]) -> Picture:
    return Picture(title, words, *(_image(draw, theme) for theme in ("light", "dark")))


def _image(draw: Callable[[], Any], theme: str) -> str:
    with styled(theme):
        axes = draw()
        buffer = io.BytesIO()
        axes.ravel()[0].figure.savefig(buffer, format="png", transparent=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
