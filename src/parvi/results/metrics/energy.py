"""The energy distance (Szekely & Rizzo 2013), and the worth of a particle that follows from it."""

import numpy as np
from jaxtyping import ArrayLike, Float

from parvi.results.metrics.inputs import as_points, as_two_samples, check_at_least
from parvi.results.metrics.pairs import BLOCK_SIZE, mean_over_own_pairs, mean_over_pairs


def energy_distance(
    x: Float[ArrayLike, "n d"], y: Float[ArrayLike, "m d"], *, block_size: int = BLOCK_SIZE
) -> float:
    """2 E|x - y| - E|x - x'| - E|y - y'| (Szekely & Rizzo 2013), over distinct pairs of y.

    It is zero only between equal distributions and has no parameter. ``x`` is a set of particles,
    taken as a distribution. ``y`` is a sample of the truth, whose own noise is removed, so the
    result may fall below zero by that noise. For n independent draws the expectation is c / n with
    c = E|y - y'|, the unit of ``worth``. O((n + m)^2 d) time, in tiles of ``block_size`` squared.

    Examples
    --------
    >>> import numpy as np, parvi
    >>> parvi.metrics.energy_distance(np.zeros((1, 1)), np.array([[-1.0], [1.0]]))
    0.0
    >>> parvi.metrics.energy_distance(np.ones((1, 1)), np.array([[-1.0], [1.0]]))
    0.0
    >>> parvi.metrics.energy_distance(np.full((1, 1), 3.0), np.array([[-1.0], [1.0]]))
    4.0
    """
    particles, reference = as_two_samples(x, y, at_least=(1, 2))
    check_at_least(block_size, "block_size")
    return _energy_distance(particles, reference, block_size)[0]


def mean_distance(y: Float[ArrayLike, "m d"], *, block_size: int = BLOCK_SIZE) -> float:
    """E|y - y'| over distinct pairs: n times the expected energy distance of n draws."""
    y = as_points(y, "y", at_least=2)
    check_at_least(block_size, "block_size")
    return mean_over_own_pairs(np.sqrt, y, block_size, distinct=True)


def worth(
    x: Float[ArrayLike, "n d"], y: Float[ArrayLike, "m d"], *, block_size: int = BLOCK_SIZE
) -> float:
    """How many independent draws one particle stands for: (c/n) / D.

    Both samples are standardised by the mean and standard deviation of the reference ``y``; then
    D = ``energy_distance(x, y)`` and c = ``mean_distance(y)``. The worth is 1 for independent draws
    (in the sense that E[D] = c/n), below 1 for particles that are biased, collapsed or in clumps,
    and above 1 for particles that are spread more evenly than by chance.

    Parameters
    ----------
    x
        Particles.
    y
        Independent draws of the truth, many more than particles. Their noise in D, of order c/m,
        must be small compared with D itself.
    block_size
        Side of the tiles in which distances are computed.

    Returns
    -------
    float
        The worth. It is infinite if D is not above zero, because the particles are then as close as
        the reference can resolve.
    """
    particles, reference = as_two_samples(x, y, at_least=(1, 2))
    check_at_least(block_size, "block_size")
    mean, sd = reference.mean(axis=0), reference.std(axis=0)
    if not (sd > 0).all():
        flat = int(np.flatnonzero(sd == 0)[0])
        raise ValueError(
            f"Coordinate {flat} of the reference y does not vary, so nothing can be measured in "
            "units of its standard deviation; leave that coordinate out of x and y."
        )
    particles, reference = (particles - mean) / sd, (reference - mean) / sd
    distance, c = _energy_distance(particles, reference, block_size)
    return c / len(particles) / distance if distance > 0 else float("inf")


def _energy_distance(x, y, block_size):
    """The energy distance, and c = E|y - y'|."""
    between = mean_over_pairs(np.sqrt, x, y, block_size)
    within = mean_over_own_pairs(np.sqrt, x, block_size, distinct=False)
    c = mean_over_own_pairs(np.sqrt, y, block_size, distinct=True)
    return 2 * between - within - c, c
