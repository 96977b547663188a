"""Predictions: a function of every particle."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from parvi.kept import carefully
from parvi.run.initial import as_key

# Particles for which the function is evaluated at once.
_AT_ONCE = 256


def predicted(function: Callable, particles: PyTree[np.ndarray], key: Any) -> PyTree[np.ndarray]:
    """The values of the function, with leading axis n; with a key, of ``function(key, particle)``.

    A function that JAX cannot trace is called once for every particle.
    """
    if not callable(function):
        raise ValueError(f"function must be a function of one particle, got {function!r}.")
    num = len(jax.tree_util.tree_leaves(particles)[0])
    rows = (particles,) if key is None else (jax.random.split(as_key(key), num), particles)
    try:
        values = _mapped(function, rows, min(_AT_ONCE, num))
    except (jax.errors.JAXTypeError, jax.errors.NonConcreteBooleanIndexError):
        values = _one_by_one(function, rows, num)
    return jax.tree_util.tree_map(np.asarray, values)


@carefully
def _mapped(function, rows, at_once):
    return jax.lax.map(lambda row: function(*row), rows, batch_size=at_once)


def _one_by_one(function, rows, num):
    values = [function(*jax.tree_util.tree_map(lambda a, i=i: a[i], rows)) for i in range(num)]
    return jax.tree_util.tree_map(lambda *parts: np.stack([np.asarray(p) for p in parts]), *values)
