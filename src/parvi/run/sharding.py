"""Particles over devices, with JAX's own sharding: the program does not change.

The particles, and everything else that is kept per particle, are split along the first axis of a
mesh; what is fitted is replicated on every device. Devices exchange only sums over the particles,
so the traffic does not grow with their number. A second axis of the mesh, if there is one, splits
the rows of a ``MiniBatch``'s data.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from parvi.targets.minibatch import MiniBatch
from parvi.targets.target import AbstractTarget


def particle_sharding(mesh: Mesh | None, num: int) -> NamedSharding | None:
    """The sharding of n particles on the mesh; raises ``ValueError`` if they do not fit."""
    if mesh is None:
        return None
    if not isinstance(mesh, Mesh):
        raise ValueError(
            f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}; for all devices: "
            'jax.make_mesh((jax.device_count(),), ("particles",)).'
        )
    devices = mesh.devices.shape[0]
    if num % devices != 0:
        raise ValueError(
            f"{num} particles cannot be spread evenly over the {devices} devices of the mesh's "
            f"first axis; take {num - num % devices or devices} or {num - num % devices + devices}."
        )
    # The compiler places arrays, even on a mesh that was made for explicit shardings.
    automatic = (AxisType.Auto,) * len(mesh.axis_names)
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=automatic)
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))


def spread(particles: Float[Array, "n d"], sharding: NamedSharding) -> Float[Array, "n d"]:
    """The particles on their devices; a process holds all of them before, and its own after."""
    return _placed(particles, sharding)


def spread_target(target: AbstractTarget, mesh: Any) -> AbstractTarget:
    """The target on every device, with mini-batch rows split along the second axis if any."""
    if isinstance(target, MiniBatch) and len(mesh.axis_names) > 1:
        parts = mesh.devices.shape[1]
        if target.num_rows % parts != 0:
            raise ValueError(
                f"{target.num_rows} rows of data cannot be spread evenly over the {parts} devices "
                f"of the mesh's second axis; leave out {target.num_rows % parts} of them, or take "
                "a mesh with one axis."
            )
        rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names[1]))
        data = jax.tree_util.tree_map(lambda leaf: _placed(leaf, rows), target.data)
        return replicate(target.placed(None), mesh).placed(data)
    return replicate(target, mesh)


def replicate(tree: PyTree, mesh: Any) -> PyTree:
    """The tree with its arrays on every device of the mesh."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree_util.tree_map(lambda leaf: _on(leaf, everywhere), tree)


def constrained(tree: PyTree, num: int, sharding: NamedSharding | None) -> PyTree:
    """Inside a compiled function, keep arrays with a row per particle on its device."""
    if sharding is None:
        return tree

    def one(leaf):
        if getattr(leaf, "ndim", 0) < 1 or leaf.shape[0] != num:
            return leaf
        return jax.lax.with_sharding_constraint(leaf, sharding)

    return jax.tree_util.tree_map(one, tree)


def gathered(particles: Float[Array, "n d"], sharding: NamedSharding | None) -> Any:
    """All particles on this process, once a run is over."""
    if sharding is None or particles.is_fully_addressable:
        return particles
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    return np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(particles))


def _on(leaf, sharding):
    return _placed(leaf, sharding) if isinstance(leaf, (np.ndarray, jax.Array)) else leaf


def _placed(leaf, sharding):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _placed(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    # Every process has the whole array and gives its own devices their part, so nothing is sent.
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
