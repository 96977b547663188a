"""The start of ``sample``, which turns the user's input into flat particles of one dtype."""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from parvi.targets.dependent import Dependent
from parvi.targets.flatten import Layout
from parvi.targets.recognise import recognised
from parvi.targets.target import AbstractTarget, Target

DEFAULT_NUM_PARTICLES = 512
# Arrays of the size of the particles that a run holds at once.
_NUM_ARRAYS = 3


def as_target(log_density: Callable | AbstractTarget) -> AbstractTarget:
    """The user's target, or one made of a plain function or of another library's model."""
    if isinstance(log_density, AbstractTarget):
        return log_density
    found = recognised(log_density)
    return Target(log_density) if found is None else found


def as_key(key: Any) -> Key[Array, ""]:
    """A JAX key from an int, a typed key or an old-style one."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        if not -(2**63) <= key < 2**63:
            raise ValueError(f"key must be below 2**63 in size, got {key}.")
        # Without x64 JAX would take the lower half alone, and 2**32 for 0.
        with jax.enable_x64(True):
            return jax.random.key(int(key))
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape == ():
            return key
    elif getattr(key, "dtype", None) == np.uint32 and getattr(key, "shape", None) == (2,):
        return jax.random.wrap_key_data(jnp.asarray(key))
    raise ValueError(f"key must be an int or one JAX key, got {key!r}.")


def initial_values(
    key: Key[Array, ""], init: Any, num_particles: int | None, target: AbstractTarget
) -> PyTree:
    """The particles in the user's structure, or None if they are to be drawn."""
    if init is None:
        if target.layout is None:
            raise ValueError(
                "init was left out, but the target does not know its shape. Give init=, an array "
                "of shape (n, d) or a pytree of arrays with leading axis n, or declare the shape "
                "with parvi.Target(log_density, like=one_particle). A NumPyro model that takes "
                "arguments is given as parvi.from_numpyro(model, *args, **kwargs)."
            )
        return None
    if callable(init):
        wanted = DEFAULT_NUM_PARTICLES if num_particles is None else int(num_particles)
        values = init(key, wanted)
        if not jax.tree_util.tree_leaves(values):
            raise ValueError(
                f"The function init(key, n) returned {values!r}; it must return n particles."
            )
        if num_particles is not None and (num := _leading(values)) != wanted:
            raise ValueError(
                f"The function init(key, n) returned {num} particles for n = {wanted}: it must "
                "return as many as it is asked for."
            )
        return values
    _check_kind(init)
    if num_particles is not None and num_particles != (num := _leading(init)):
        raise ValueError(
            f"num_particles={num_particles}, but init holds {num} particles; leave "
            "num_particles out, or make init a function init(key, n)."
        )
    return init


def _check_kind(init: Any) -> None:
    """Refuse anything that would be taken for arrays by accident."""
    for leaf in jax.tree_util.tree_leaves(init):
        if isinstance(leaf, np.ma.MaskedArray):
            raise ValueError(
                "init is a masked array, and particles have no missing numbers: fill it in, for "
                "instance init.filled(0.0)."
            )
        if not isinstance(leaf, (np.ndarray, jax.Array, np.generic)) and hasattr(leaf, "to_numpy"):
            raise ValueError(
                f"init holds a {type(leaf).__name__}: give its numbers, init.to_numpy()."
            )


def dtype_of(values: PyTree, target: AbstractTarget) -> np.dtype:
    """The common dtype of all leaves; NumPy's float64 means float64, whatever JAX's flag says."""
    if values is None:
        return np.dtype(np.float64 if target.is_wide else jnp.zeros(()).dtype)
    leaves = jax.tree_util.tree_leaves(values)
    if not leaves:
        raise ValueError("init is an empty pytree; give an array of shape (n, d).")
    dtypes = {np.dtype(getattr(leaf, "dtype", np.asarray(leaf).dtype)) for leaf in leaves}
    wrong = [dtype for dtype in dtypes if dtype not in (np.float32, np.float64)]
    if wrong:
        raise ValueError(
            f"init has dtype {wrong[0]}, but particles move by real steps: expected float32 or "
            "float64. Convert it, for instance init.astype(float)."
        )
    if len(dtypes) > 1:
        raise ValueError(
            f"init mixes {sorted(str(d) for d in dtypes)}: a run has one dtype. Convert all "
            "leaves to float32 or all to float64."
        )
    return dtypes.pop()


def flat_particles(
    key: Key[Array, ""],
    values: PyTree,
    num_particles: int | None,
    target: AbstractTarget,
    dtype: np.dtype,
) -> tuple[AbstractTarget, Float[Array, "n d"]]:
    """The target with its layout, and the particles flat and unconstrained."""
    if values is None:
        assert target.layout is not None
        num = DEFAULT_NUM_PARTICLES if num_particles is None else num_particles
        _check_count(num)
        _check_memory(num, target.layout.dim, dtype)
        return target, target.layout.starts(target.at(key), key, num, dtype)
    num = _leading(values)
    _check_count(num)
    if isinstance(target.layout, Dependent):
        return target, target.layout.flattened(values, dtype)
    like = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(np.shape(x)[1:], dtype), values)
    given, found = target.layout, Layout.of(like)
    if given is not None and (given.treedef, given.shapes) != (found.treedef, found.shapes):
        raise ValueError(
            f"init holds particles of shapes {dict(zip(found.paths, found.shapes, strict=True))}, "
            f"but the target was declared with {dict(zip(given.paths, given.shapes, strict=True))};"
            " give init the target's structure, with a leading axis n."
        )
    target = target.laid_out(like)
    layout = target.layout
    assert isinstance(layout, Layout)
    values = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, dtype), values)
    particles = jax.vmap(layout.unconstrain)(values)
    _check_support(layout, particles, values)
    return target, particles


def _leading(values) -> int:
    shapes = [np.shape(leaf) for leaf in jax.tree_util.tree_leaves(values)]
    if any(not shape for shape in shapes):
        raise ValueError(
            "init holds a number without axes; every array of init needs a leading axis that "
            "counts the particles, for instance shape (n, d). Lists are taken for structures of "
            "arrays: a list of particles needs np.array(init)."
        )
    lengths = sorted({shape[0] for shape in shapes})
    if len(lengths) > 1:
        raise ValueError(
            f"The arrays of init have different numbers of particles, {lengths}, in their shapes "
            f"{shapes}; their leading axes must all be n."
        )
    if len(shapes) == 1 and isinstance(values, (np.ndarray, jax.Array)) and len(shapes[0]) == 1:
        raise ValueError(
            f"init has shape {shapes[0]}, which could be n particles in one dimension or one "
            "particle; give shape (n, d), for instance init[:, None] or init[None, :]."
        )
    return lengths[0]


def _check_count(num):
    if num < 2:
        raise ValueError(
            f"Got {num} particle(s), but a set of particles needs at least 2 to have a spread; "
            "give init with a leading axis of n >= 2, or num_particles=n (512 is the default)."
        )


def _check_memory(num: int, dim: int, dtype: np.dtype) -> None:
    """Refuse what cannot fit: a run holds about three arrays of the size of the particles."""
    needed = _NUM_ARRAYS * num * dim * dtype.itemsize
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if jax.default_backend() == "cpu" and needed > there:
        raise ValueError(
            f"{num} particles of {dim} numbers in {dtype.name} need about {needed:.1e} bytes of "
            f"memory, and this machine has {there:.1e}; take fewer particles."
        )


def _check_support(layout, particles, values):
    bad = ~np.isfinite(np.asarray(particles)).all(axis=1)
    if not bad.any():
        return
    for path, constraint, leaf in zip(
        layout.paths, layout.constraints, jax.tree_util.tree_leaves(values), strict=True
    ):
        free = jax.vmap(constraint.unconstrain)(leaf)
        outside = ~np.isfinite(np.asarray(free)).reshape(len(leaf), -1).all(axis=1)
        if outside.any():
            raise ValueError(
                f"init is outside the support of {path or 'the parameter'} at {outside.sum()} of "
                f"{len(leaf)} particles: expected {constraint.describe()}; first bad particle: "
                f"{int(np.flatnonzero(outside)[0])}."
            )
