"""Plots of results, by matplotlib (``pip install 'parvi[plots]'``). Each returns its axes."""

from parvi.results.plots.animation import animate as animate
from parvi.results.plots.bands import bands as bands
from parvi.results.plots.density import over_density as over_density
from parvi.results.plots.density import transported_grid as transported_grid
from parvi.results.plots.history import history as history
from parvi.results.plots.marginals import marginals as marginals
from parvi.results.plots.pairs import pairs as pairs

__all__ = [
    "animate",
    "bands",
    "history",
    "marginals",
    "over_density",
    "pairs",
    "transported_grid",
]
