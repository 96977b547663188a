"""What a run reads of its particles and its target between stages."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from parvi.cloud import Cloud
from parvi.evaluation import quickly
from parvi.kept import carefully


def rows_of(particles, rows, sharding):
    """Some particles, on every device if they are spread."""
    if sharding is None:
        return _rows(particles, rows)
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    found = jax.jit(lambda every: every[rows], out_shardings=everywhere)(particles)
    # Processes must not begin another program with collectives before this one is over.
    return jax.block_until_ready(found)


@quickly
def _rows(particles, rows):
    return particles.at[rows].get(mode="promise_in_bounds")


@quickly
def holds(condition, place, target, key):
    """Whether the condition of a stage holds for the particles."""
    key_target = jax.random.fold_in(key, jnp.iinfo(jnp.uint32).max - 1)
    return condition.holds(Cloud.of(place, target.at(key_target)))


@carefully
def evaluated(target, key, particles):
    """The particles with their scores and log densities, in blocks and on any mesh."""
    key_target = jax.random.split(jax.random.fold_in(key, jnp.iinfo(jnp.uint32).max))[1]
    return Cloud.at(target.at(key_target), particles).place


def on_device(leaf: Any) -> Any:
    """A NumPy array on the device, and anything else as it is."""
    return jnp.asarray(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else leaf
