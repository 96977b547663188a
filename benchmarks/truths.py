"""Exact means and standard deviations of models that are Gaussian given one or two scales.

All else is integrated by hand, and the scales on a grid, so that no chain has to be believed: NUTS
gives the scale of errors of a Brownian motion half of its true standard deviation.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Moments(NamedTuple):
    """The mean and the standard deviation of every coordinate."""

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]


def _mixed(log_weights, means, squares) -> Moments:
    """The moments of a mixture, from those of its parts."""
    weights = np.exp(log_weights - log_weights.max()).ravel()
    weights = weights / weights.sum()
    mean, square = (weights @ rows.reshape(len(weights), -1) for rows in (means, squares))
    return Moments(mean, np.sqrt(square - mean**2))


def hierarchy(y: Float[np.ndarray, "g r"], centred: bool) -> Moments:
    """(mu, log tau, theta) of y_gr ~ N(theta_g, 1), theta_g ~ N(mu, tau), mu ~ N(0, 5), tau ~ |N|.

    Not centred, theta stands for (theta - mu) / tau.
    """
    groups, rows = y.shape
    seen, grid = y.mean(axis=1), np.linspace(-14, 2, 4001)
    tau_square = np.exp(2 * grid)
    variance = tau_square + 1 / rows
    precision = groups / variance + 1 / 25
    mu = seen.sum() / variance / precision
    logs = -0.5 * groups * np.log(variance) - 0.5 * np.sum(seen**2) / variance
    logs += 0.5 * precision * mu**2 - 0.5 * np.log(precision) - 0.5 * tau_square + grid
    share = (1 / rows / variance)[:, None]
    spread = 1 / precision[:, None]
    if centred:
        theta = share * mu[:, None] + (1 - share) * seen
        noise = share * tau_square[:, None] + share**2 * spread
    else:
        tau = np.exp(grid)[:, None]
        theta = (1 - share) * (seen - mu[:, None]) / tau
        noise = share + (1 - share) ** 2 * spread / tau**2
    means = np.column_stack([mu, grid, theta])
    noise = np.column_stack(
        [1 / precision, np.zeros_like(grid), np.broadcast_to(noise, theta.shape)]
    )
    return _mixed(logs, means, means**2 + noise)


def brownian(y: Float[np.ndarray, " m"], seen, length: int, num: int = 161) -> Moments:
    """(log inner, log outer, states) of a Brownian motion with errors, both scales unknown."""
    times = np.arange(1, length + 1)
    kernel = np.minimum.outer(times, times).astype(float)
    grid = np.linspace(-9, 3, num)
    # One decomposition serves all pairs of scales.
    values, vectors = np.linalg.eigh(kernel[np.ix_(seen, seen)])
    turned, across = vectors.T @ y, kernel[:, seen] @ vectors
    logs, means, squares = [], [], []
    for inner in grid:
        for outer in grid:
            scale, error = np.exp(2 * inner), np.exp(2 * outer)
            total = scale * values + error
            prior = -0.5 * ((inner / 2) ** 2 + (outer / 2) ** 2)
            logs.append(prior - 0.5 * np.sum(np.log(total) + turned**2 / total))
            states = scale * across @ (turned / total)
            noise = scale * np.diag(kernel) - scale**2 * across**2 @ (1 / total)
            means.append(np.concatenate([[inner, outer], states]))
            squares.append(means[-1] ** 2 + np.concatenate([[0, 0], noise]))
    return _mixed(np.asarray(logs), np.asarray(means), np.asarray(squares))
