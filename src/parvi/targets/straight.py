"""Targets that are seen in the coordinates of a coupling."""

import equinox as eqx

from parvi.cloud import LogDensity
from parvi.geometry.coupling import Coupling
from parvi.targets.target import AbstractTarget


class StraightDensity(eqx.Module):
    """The log density of z, with the volume of the change to x."""

    log_density: LogDensity
    coupling: Coupling

    def __call__(self, z):
        return self.log_density(self.coupling.leave(z)) + self.coupling.log_volume(z)


class Straight(AbstractTarget):
    """A target whose particles are in the coordinates z of a coupling.

    Parameters
    ----------
    target
        The target in its own coordinates.
    coupling
        The change of coordinates.
    """

    target: AbstractTarget
    coupling: Coupling

    def __init__(self, target: AbstractTarget, coupling: Coupling):
        self.target = target
        self.coupling = coupling

    # Equinox lets properties implement abstract variables; the type checker expects fields.
    @property  # type: ignore[misc]
    def layout(self):  # type: ignore[override]
        return self.target.layout

    @property
    def num_rows(self):
        return self.target.num_rows

    @property
    def is_fixed(self):
        return self.target.is_fixed

    def at(self, key):
        return StraightDensity(self.target.at(key), self.coupling)

    def full(self):
        return StraightDensity(self.target.full(), self.coupling)

    def laid_out(self, like):
        return Straight(self.target.laid_out(like), self.coupling)
