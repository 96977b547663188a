"""The coordinates in which the stages of a run see its target."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from parvi.cloud import Place
from parvi.evaluation import quickly
from parvi.geometry.coupling import Coupling
from parvi.geometry.straightening import empty
from parvi.run.trees import as_arrays, as_tree
from parvi.samplers.straighten import AbstractChange
from parvi.targets.straight import Straight
from parvi.targets.target import AbstractTarget


class Coordinates:
    """The target's own coordinates, until a stage has straightened them.

    Attributes
    ----------
    seen
        The target as the stages see it.
    """

    def __init__(self, target: AbstractTarget):
        self._target = target
        self._coupling: Coupling | None = None
        self.seen = target

    def original(self, particles: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The particles of the run in the target's own coordinates."""
        if self._coupling is None:
            return particles
        # The particles of a run may be looked at outside its precision.
        with jax.enable_x64(particles.dtype == np.float64):
            return _left(self._coupling, particles)

    def changed(self, by: AbstractChange, place: Place, start: Any) -> tuple[Place, Any] | None:
        """Particles and start in coordinates that the stage has found; None if it found none."""
        particles, scores, values = place
        if self._coupling is not None:
            particles, scores, values = _left_place(self._coupling, place)
            start = _left(self._coupling, start)
        found = by.coupling(np.asarray(particles), np.asarray(scores), self._coupling)
        if found is None:
            return None
        self._use(found.astype(particles.dtype))
        return _entered_place(self._coupling, Place(particles, scores, values)), _entered(
            self._coupling, start
        )

    def state(self) -> tuple[dict[str, np.ndarray], bool]:
        """What a checkpoint holds of the coordinates: arrays, and whether there are any."""
        if self._coupling is None:
            return {}, False
        return as_arrays("coupling", self._coupling), True

    def restore(self, arrays: dict[str, np.ndarray], dim: int, dtype: Any) -> None:
        """Take the coordinates of a checkpoint."""
        self._use(as_tree("coupling", arrays, empty(dim).astype(dtype)))

    def _use(self, coupling: Coupling) -> None:
        self._coupling, self.seen = coupling, Straight(self._target, coupling)


@quickly
def _left(coupling, particles):
    return jax.vmap(coupling.leave)(particles)


@quickly
def _entered(coupling, particles):
    return jax.vmap(coupling.enter)(particles)


@quickly
def _left_place(coupling, place):
    x, scores = jax.vmap(coupling.left)(place.particles, place.scores)
    return Place(x, scores, place.log_densities - jax.vmap(coupling.log_volume)(place.particles))


@quickly
def _entered_place(coupling, place):
    z, scores = jax.vmap(coupling.entered)(place.particles, place.scores)
    return Place(z, scores, place.log_densities + jax.vmap(coupling.log_volume)(z))
