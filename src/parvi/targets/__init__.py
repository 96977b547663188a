"""Targets: log densities, constraints, mini-batches, and targets with exact moments."""

from parvi.targets.gaussian import gaussian as gaussian
