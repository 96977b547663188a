"""Conversion between a user's pytree and the flat, unconstrained vectors used inside."""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from parvi.cloud import LogDensity, Place
from parvi.targets.constraints import AbstractConstraint, Real


class Labels(NamedTuple):
    """Names for the axes of a particle's arrays, and for the places along an axis.

    Parameters
    ----------
    dims
        For an array of the particle, the names of its axes; None for an axis without one.
    coords
        For an axis, the names of its places.
    """

    dims: dict[str, tuple[str | None, ...]]
    coords: dict[str, list]


class AbstractLayout(eqx.Module):
    """Between the flat vectors used inside and particles as the user writes them."""

    treedef: eqx.AbstractVar[jax.tree_util.PyTreeDef]
    shapes: eqx.AbstractVar[tuple[tuple[int, ...], ...]]
    paths: eqx.AbstractVar[tuple[str, ...]]

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """d, the number of unconstrained numbers."""

    @property
    def is_wide(self) -> bool:
        """Whether a run without ``init`` is in float64."""
        return False

    @property
    def labels(self) -> Labels | None:
        """Names of axes and of places along them, if they are known."""
        return None

    @abc.abstractmethod
    def constrain(self, flat: Float[Array, " d"]) -> PyTree[Array]:
        """One particle, in the user's structure and on the user's scale."""

    @abc.abstractmethod
    def argument(self, flat: Float[Array, " d"]) -> PyTree[Array]:
        """What the target's function takes: the particle, or the flat vector itself."""

    @abc.abstractmethod
    def log_jacobian(self, flat: Float[Array, " d"]) -> Float[Array, ""]:
        """The term that is added to the target's function: log |det| of ``argument``."""

    @abc.abstractmethod
    def flat_names(self) -> list[str]:
        """A name for every unconstrained number."""

    def scalar_names(self) -> list[str]:
        """A name for every number on the user's scale, such as ``beta[0,1]``."""
        return names_of(self.paths, self.shapes, self.labels)

    def starts(
        self, log_density: LogDensity, key: Key[Array, ""], num: int, dtype: np.dtype
    ) -> Float[Array, "n d"]:
        """Flat particles to start from, where the user gives none."""
        return jax.random.normal(key, (num, self.dim), dtype)

    def admit(self, log_density: LogDensity, place: Place) -> None:
        """Raise a ``ValueError`` if the first scores show that no run should begin there."""
        return None


class Layout(AbstractLayout):
    """How a user's particle is laid out in a vector of d real numbers.

    Parameters
    ----------
    treedef, shapes, paths
        Structure of one particle, and the shapes and names of its leaves.
    constraints
        One constraint for each leaf.
    """

    treedef: jax.tree_util.PyTreeDef = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    paths: tuple[str, ...] = eqx.field(static=True)
    constraints: tuple[AbstractConstraint, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, like: PyTree, constraints: PyTree | None = None) -> "Layout":
        """Layout of one particle that looks like ``like`` (arrays or ``ShapeDtypeStruct``)."""
        leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
        if not leaves:
            raise ValueError("A particle needs at least one array, got an empty pytree.")
        for path, leaf in leaves:
            _check_leaf(jax.tree_util.keystr(path), leaf)
        shapes = tuple(tuple(np.shape(leaf)) for _, leaf in leaves)
        paths = tuple(jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
        made = cls(treedef, shapes, paths, _broadcast_constraints(constraints, like, paths))
        # A constraint that does not fit its shape raises here.
        assert made.dim >= 0
        return made

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many unconstrained numbers each leaf has."""
        pairs = zip(self.constraints, self.shapes, strict=True)
        return tuple(math.prod(c.unconstrained_shape(s)) for c, s in pairs)

    @property
    def dim(self):
        return sum(self.sizes)

    @property
    def is_flat(self) -> bool:
        """Whether a particle is one vector without a constraint, so that it is flat already."""
        plain = all(isinstance(constraint, Real) for constraint in self.constraints)
        return plain and self.shapes == ((self.dim,),)

    def constrain(self, flat):
        leaves = [c.constrain(part) for c, part in self._parts(flat)]
        shaped = [leaf.reshape(s) for leaf, s in zip(leaves, self.shapes, strict=True)]
        return jax.tree_util.tree_unflatten(self.treedef, shaped)

    def argument(self, flat):
        return self.constrain(flat)

    def log_jacobian(self, flat):
        total = jnp.zeros((), flat.dtype)
        for constraint, part in self._parts(flat):
            total = total + constraint.log_jacobian(part)
        return total

    def unconstrain(self, particle: PyTree[Array]) -> Float[Array, " d"]:
        """The flat vector of one particle."""
        leaves = self.treedef.flatten_up_to(particle)
        parts = [c.unconstrain(leaf) for c, leaf in zip(self.constraints, leaves, strict=True)]
        return jnp.concatenate([part.reshape(-1) for part in parts])

    def flat_names(self):
        pairs = zip(self.constraints, self.shapes, strict=True)
        return names_of(self.paths, tuple(c.unconstrained_shape(s) for c, s in pairs))

    def _parts(self, flat):
        parts, start = [], 0
        for constraint, shape, size in zip(self.constraints, self.shapes, self.sizes, strict=True):
            piece = flat[start : start + size].reshape(constraint.unconstrained_shape(shape))
            parts.append((constraint, piece))
            start += size
        return parts


def names_of(
    paths: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], labels: Labels | None = None
) -> list[str]:
    """A name for every number of some arrays, by the names of its places if these have names."""
    names = []
    for path, shape in zip(paths, shapes, strict=True):
        stem = path or "x"
        axes = (labels.dims.get(path) if labels else None) or (None,) * len(shape)
        coords = [labels.coords.get(axis) if labels and axis else None for axis in axes]
        for index in np.ndindex(shape):
            places = [str(i if c is None else c[i]) for i, c in zip(index, coords, strict=True)]
            names.append(f"{stem}[{','.join(places)}]" if shape else stem)
    return names


def _check_leaf(path: str, leaf: Any) -> None:
    """Refuse anything that is not an array of real numbers."""
    dtype = getattr(leaf, "dtype", None)
    real = isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
    if dtype is None and not real:
        raise ValueError(
            f"A particle is made of arrays, and like{path} is {leaf!r}; give an array, or its "
            "shape as jax.ShapeDtypeStruct(shape, float)."
        )
    if 0 in np.shape(leaf):
        raise ValueError(f"A particle needs numbers, and like{path} has shape {np.shape(leaf)}.")


def is_wide(like: PyTree) -> bool:
    """Whether a particle is given in float64, by an array; Python's own numbers do not count."""
    if isinstance(like, AbstractLayout):
        return like.is_wide
    leaves = jax.tree_util.tree_leaves(like)
    return any(getattr(leaf, "dtype", None) == np.float64 for leaf in leaves)


def _broadcast_constraints(constraints, like, paths) -> tuple[AbstractConstraint, ...]:
    """One constraint for each leaf. A dict may name only the constrained parameters."""
    if constraints is None:
        return tuple(Real() for _ in paths)
    if isinstance(constraints, AbstractConstraint):
        return tuple(constraints for _ in paths)
    if isinstance(constraints, dict) and isinstance(like, dict):
        unknown = sorted(set(constraints) - set(like))
        if unknown:
            raise ValueError(
                f"constraints name {unknown}, but the parameters are {sorted(like)}. "
                "Name only parameters of the particle."
            )
        constraints = {name: constraints.get(name, Real()) for name in like}

    def is_constraint(node):
        return node is None or isinstance(node, AbstractConstraint)

    try:
        spread = jax.tree_util.tree_map(
            lambda c, sub: jax.tree_util.tree_map(lambda _: Real() if c is None else c, sub),
            constraints,
            like,
            is_leaf=is_constraint,
        )
    except (ValueError, TypeError) as error:
        raise ValueError(
            "constraints must have the structure of a particle (or a part of it from the root), "
            f"with a constraint or None at each place; {error}"
        ) from error
    flat = jax.tree_util.tree_leaves(spread, is_leaf=is_constraint)
    wrong = [c for c in flat if not isinstance(c, AbstractConstraint)]
    if wrong:
        raise ValueError(
            f"constraints holds {wrong[0]!r}, which is not a constraint. Use parvi.Positive(), "
            "parvi.Interval(low, high), parvi.Simplex(), parvi.Ordered() or None."
        )
    return tuple(flat)
