"""How good a set of particles is."""

import numpy as np
from jaxtyping import Float

# Rows whose distances exist at a time.
_BLOCK = 1024


def energy_distance(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> float:
    """2 E|x - y| - E|x - x'| - E|y - y'| (Szekely & Rizzo 2013), over distinct pairs of y.

    ``x`` is a set of particles, taken as the distribution that it is; ``y`` is a sample of the
    truth, whose own noise is taken out. For n independent draws the expectation is E|y - y'| / n.
    O(n m d) time, in blocks.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"Expected two arrays of shape (n, d), got {x.shape} and {y.shape}.")
    between = _mean_distance(x, y)
    within = _mean_distance(x, x)
    distinct = _mean_distance(y, y) * len(y) / (len(y) - 1)
    return 2 * between - within - distinct


def mean_distance(y: Float[np.ndarray, "m d"]) -> float:
    """E|y - y'| over distinct pairs: n times the expected energy distance of n draws."""
    y = np.asarray(y, float)
    return _mean_distance(y, y) * len(y) / (len(y) - 1)


def stein_ratio(particles: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"]) -> float:
    """-E[(x - mean) . score] / d: 1 at the target, below it where the variance collapsed."""
    particles = np.asarray(particles, float)
    centred = particles - particles.mean(axis=0)
    return float(-np.sum(centred * np.asarray(scores, float)) / particles.size)


def gaussian_kl(mean_p, covariance_p, mean_q, covariance_q) -> float:
    """KL(N(mean_p, covariance_p) || N(mean_q, covariance_q))."""
    difference = np.asarray(mean_q, float) - np.asarray(mean_p, float)
    precision = np.linalg.inv(covariance_q)
    log_det = np.linalg.slogdet(covariance_q)[1] - np.linalg.slogdet(covariance_p)[1]
    trace = np.sum(precision * np.asarray(covariance_p, float))
    return float(0.5 * (trace + difference @ precision @ difference - len(difference) + log_det))


def _mean_distance(x, y) -> float:
    squares = np.sum(y**2, axis=1)
    total = 0.0
    for start in range(0, len(x), _BLOCK):
        block = x[start : start + _BLOCK]
        gap = np.sum(block**2, axis=1)[:, None] + squares - 2 * block @ y.T
        total += np.sqrt(np.maximum(gap, 0.0)).sum()
    return total / (len(x) * len(y))
