"""Where a run has looked for modes: scouts begin at its first particles and farther out.

A mode in whose basin no scout begins is not found, so a verdict says how far from the particles
they began, in standard deviations of the particles.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from parvi.samplers.scout import FARTHER


class Sought(NamedTuple):
    """How far from the particles' mean the farthest scout began, in their standard deviations.

    ``least`` is the smallest of these distances over the parameters, ``name`` the parameter that
    has it, and ``most`` the largest.
    """

    least: float
    most: float
    name: str

    @classmethod
    def of(
        cls, start: Float[np.ndarray, "m d"], flat: Float[np.ndarray, "n d"], names: list[str]
    ) -> "Sought":
        """For scouts from this start, and the particles at the end of the run."""
        centre = start.mean(axis=0)
        places = np.concatenate([start, centre + FARTHER * (start - centre)])
        sds = np.maximum(flat.std(axis=0), np.finfo(flat.dtype).tiny)
        far = np.abs(places - flat.mean(axis=0)).max(axis=0) / sds
        row = int(np.argmin(far))
        return cls(float(far[row]), float(far.max()), names[row])
