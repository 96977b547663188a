"""The work that is timed."""

import numpy as np

from parvi.models.logistic import logistic_regression


def sonar_shaped(rows: int = 166, dim: int = 61, seed: int = 0):
    """Logistic regression of the size of the paper's Sonar experiment, on synthetic data."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, size=(rows, dim)).astype(np.float32)
    features[:, -1] = 1
    labels = rng.random(rows) < 1 / (1 + np.exp(-features @ rng.normal(size=dim)))
    return logistic_regression(features, labels)


def start(num: int, dim: int = 61, seed: int = 0):
    return np.random.default_rng(seed).normal(size=(num, dim)).astype(np.float32)
