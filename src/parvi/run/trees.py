"""Arrays of a tree under names, and back into a tree of the same structure."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def as_arrays(prefix: str, tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves of a tree as NumPy arrays, under the prefix and their numbers."""
    leaves = jax.tree_util.tree_leaves(tree)
    return {f"{prefix}/{i}": _as_numbers(leaf) for i, leaf in enumerate(leaves)}


def as_tree(prefix: str, arrays: dict[str, np.ndarray], like: PyTree) -> PyTree:
    """The tree whose leaves were saved, with the structure, dtypes and devices of another.

    Raises a ``ValueError`` if the shapes differ.
    """
    leaves, treedef = jax.tree_util.tree_flatten(like)
    found = [_as_leaf(f"{prefix}/{i}", arrays, leaf) for i, leaf in enumerate(leaves)]
    return jax.tree_util.tree_unflatten(treedef, found)


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _as_numbers(leaf: Any) -> np.ndarray:
    if _is_key(getattr(leaf, "dtype", np.dtype(float))):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _as_leaf(name: str, arrays: dict[str, np.ndarray], like: Any) -> Any:
    if name not in arrays:
        raise ValueError(f"the array {name} is missing")
    found = arrays[name]
    if _is_key(getattr(like, "dtype", np.dtype(float))):
        return jax.random.wrap_key_data(jnp.asarray(found), impl=like.dtype._impl.name)
    shape, dtype = np.shape(like), np.dtype(getattr(like, "dtype", type(like)))
    if found.shape != shape or found.dtype != dtype:
        raise ValueError(
            f"the array {name} is of shape {found.shape} and dtype {found.dtype}, and {shape} and "
            f"{dtype} were expected"
        )
    sharding = getattr(like, "sharding", None)
    if isinstance(like, jax.Array) and sharding is not None and len(sharding.device_set) > 1:
        return jax.make_array_from_callback(shape, sharding, lambda index: found[index])
    return jnp.asarray(found)
