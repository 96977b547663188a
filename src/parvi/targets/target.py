"""Targets: densities known up to a constant, over any pytree."""

import abc
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from parvi.cloud import LogDensity, Place
from parvi.targets.check import admitted, check_log_density, check_scalar
from parvi.targets.dependent import Dependent
from parvi.targets.flatten import AbstractLayout, Layout, is_wide


class AbstractTarget(eqx.Module):
    """A density to sample. ``at(key)`` is the log density that one step sees."""

    layout: eqx.AbstractVar[AbstractLayout | None]

    @property
    def num_rows(self) -> int:
        """Number of rows of data that the log density sums over; 1 if it is unknown."""
        return 1

    @property
    def is_fixed(self) -> bool:
        """Whether every step sees the same log density."""
        return False

    @property
    def is_wide(self) -> bool:
        """Whether ``like`` was given in float64, so that a run without ``init`` is too."""
        return False

    @abc.abstractmethod
    def at(self, key: Key[Array, ""]) -> LogDensity:
        """The log density of this step, a function of one flat and unconstrained particle."""

    @abc.abstractmethod
    def full(self) -> "Density":
        """The log density with all the data."""

    @abc.abstractmethod
    def laid_out(self, like: PyTree) -> Self:
        """The same target for particles that look like ``like``."""

    def as_model(self) -> Any:
        """What ``parvi.calibrate`` needs, if the target's model knows its prior."""
        model = getattr(self.layout, "model", None)
        if model is None:
            raise ValueError(
                "A log density alone does not say how to draw parameters and data: give "
                "parvi.calibrate a parvi.Model(prior, simulate, log_density)."
            )
        return model.as_model()

    def check(self, particles: Float[Array, "n d"], key: Key[Array, ""]) -> None:
        """Raise a ``ValueError`` that says in one sentence what is wrong, if anything is."""
        check_log_density(self.at(key), particles)

    def admit(self, particles: Float[Array, "n d"], key: Key[Array, ""]) -> tuple[Place, int]:
        """``check``, after moving a minority of bad particles: ``parvi.targets.check.admitted``."""
        log_density = self.at(key)
        place, num_moved = admitted(log_density, particles, key)
        if self.layout is not None:
            self.layout.admit(log_density, place)
        return place, num_moved

    def _flat(self, log_density: Callable) -> "Density":
        """The log density of flat vectors, for a function of one particle."""
        if self.layout is None:
            raise ValueError("The target does not know its shape: give like= or init=.")
        return Density(log_density, self.layout)


class Density(eqx.Module):
    """A user's log density, pulled back to flat and unconstrained vectors."""

    log_density: Callable
    layout: AbstractLayout

    def __call__(self, flat: Float[Array, " d"]) -> Float[Array, ""]:
        value = self.log_density(self.layout.argument(flat))
        check_scalar(value)
        return value + self.layout.log_jacobian(flat)


class Target(AbstractTarget):
    """A log density of one particle.

    Parameters
    ----------
    log_density
        Function of one particle (an array or any pytree of arrays) that returns a scalar.
    like
        A particle, its shapes, or a ``Dependent`` layout. It makes ``init`` optional in ``sample``.
    constraints
        One constraint for each leaf, a dict with only the constrained leaves, or one constraint
        for all. ``log_density`` is the density of the constrained values; the Jacobian is added
        for you.
    score
        Gradient of ``log_density``, if you have a better one than JAX's.
    hessian_vector_product
        Derivative of ``score``, a function ``(particle, vector) -> vector``.
    data
        Pytree of arrays and numbers. ``log_density``, ``score`` and ``hessian_vector_product`` get
        it as their last argument, and ``with_data`` replaces it. Runs on data of the same shapes
        share their compiled programs. They do not if the log density closes over its data.

    Examples
    --------
    >>> import jax.numpy as jnp, parvi
    >>> target = parvi.Target(
    ...     lambda p: -p["rate"] - 0.5 * jnp.sum(p["x"] ** 2),
    ...     like={"rate": jnp.ones(()), "x": jnp.ones(3)},
    ...     constraints={"rate": parvi.Positive()},
    ... )
    >>> target.layout.dim
    4

    One model, many data sets, one compilation:

    >>> def log_density(mean, y):
    ...     return -0.5 * jnp.sum((y - mean) ** 2)
    >>> model = parvi.Target(log_density, like=jnp.zeros(()), data=jnp.arange(3.0))
    >>> float(model.with_data(jnp.ones(3)).full()(jnp.ones(1)))
    0.0
    """

    log_density: Callable
    layout: AbstractLayout | None
    constraints: Any = eqx.field(static=True)
    score: Callable | None
    hessian_vector_product: Callable | None
    wide: bool = eqx.field(static=True)
    data: PyTree[Array] | None

    def __init__(
        self,
        log_density: Callable,
        like: PyTree | None = None,
        constraints: PyTree | None = None,
        score: Callable | None = None,
        hessian_vector_product: Callable | None = None,
        data: PyTree | None = None,
    ):
        if not callable(log_density):
            raise ValueError(
                f"log_density must be a function of one particle, got {type(log_density).__name__}."
            )
        for name, given in (("score", score), ("hessian_vector_product", hessian_vector_product)):
            if given is not None and not callable(given):
                raise ValueError(
                    f"{name} must be a function of one particle, got {type(given).__name__}."
                )
        if hessian_vector_product is not None and score is None:
            raise ValueError(
                "hessian_vector_product is the derivative of score: give score as well, "
                "or leave both out and JAX derives them."
            )
        self.log_density = log_density
        self.constraints = _Frozen(constraints)
        known = like is None or isinstance(like, AbstractLayout)
        self.layout = like if known else Layout.of(like, constraints)
        self.wide = is_wide(like)
        self.score = score
        self.hessian_vector_product = hessian_vector_product
        self.data = as_data(data)

    @property
    def is_fixed(self):
        return True

    @property
    def is_wide(self):
        return self.wide

    def at(self, key):
        return self.full()

    def full(self):
        value = self._of_data(self.log_density)
        if self.score is None:
            return self._flat(value)
        product = self.hessian_vector_product
        product = None if product is None else self._of_data(product)
        return self._flat(_WithScore(value, self._of_data(self.score), product))

    def laid_out(self, like):
        return Target(
            self.log_density,
            like,
            self.constraints.value,
            self.score,
            self.hessian_vector_product,
            self.data,
        )

    def with_data(self, data: PyTree) -> "Target":
        """The same target with other data; of the same shapes, it shares the compiled programs."""
        if self.data is None and isinstance(self.layout, Dependent):
            raise ValueError(
                f"The target of a {self.layout.model.front} model has its data in the model: make "
                "another target of the model with the new data."
            )
        if self.data is None:
            raise ValueError(
                "The target has no data to replace: write log_density(particle, data), and give "
                "parvi.Target(log_density, data=...) the first data set."
            )
        data = as_data(data)
        check_alike(self.data, data)
        return eqx.tree_at(lambda target: target.data, self, data)

    def _of_data(self, function: Callable) -> Callable:
        return function if self.data is None else _OfData(function, self.data)


class _OfData(eqx.Module):
    """A function of a particle and data, with its data, which are no constants in a module."""

    function: Callable
    data: PyTree[Array]

    def __call__(self, *args):
        return self.function(*args, self.data)


def check_alike(old: PyTree, new: PyTree) -> None:
    """Raise a ``ValueError`` unless new data have the structure of the old."""
    was, found = (str(jax.tree_util.tree_structure(tree)) for tree in (old, new))
    if was != found:
        raise ValueError(
            f"with_data must get data of the target's structure, {was}, but got {found}."
        )


def as_data(data: PyTree) -> PyTree[Array]:
    """The data, with numbers as arrays; anything else is refused with a message."""

    def one(leaf):
        if isinstance(leaf, (bool, int, float)):
            leaf = np.asarray(leaf)
        plain = isinstance(leaf, (np.ndarray, np.generic, jax.Array))
        if not plain or isinstance(leaf, np.ma.MaskedArray) or leaf.dtype == object:
            raise ValueError(
                f"data must be arrays, got a {type(leaf).__name__}; give its numbers, for "
                "instance table.to_numpy() or array.filled(0.0)."
            )
        return leaf

    return jax.tree_util.tree_map(one, data)


class _Frozen:
    """Makes a dict hashable, and equal by its content, as a static field must be."""

    def __init__(self, value):
        self.value = value

    def _key(self):
        leaves, treedef = jax.tree_util.tree_flatten(self.value, is_leaf=lambda c: c is None)
        return treedef, tuple(leaves)

    def __hash__(self):
        return hash(self._key())

    def __eq__(self, other):
        return isinstance(other, _Frozen) and self._key() == other._key()


def _check_score(slopes, particle) -> None:
    """Raise a ``ValueError`` if a score is not shaped like its particle; it would be broadcast."""
    want, got = (jax.tree_util.tree_map(jnp.shape, tree) for tree in (particle, slopes))
    if want != got:
        raise ValueError(
            f"score must return what looks like one particle, of shapes {want}, but it returns "
            f"{got}."
        )


class _WithScore(eqx.Module):
    """The log density with its derivatives replaced by the user's own."""

    log_density: Callable
    score: Callable
    hessian_vector_product: Callable | None

    def __call__(self, particle):
        score, product = self.score, self.hessian_vector_product
        gradient = score
        if product is not None:
            gradient = jax.custom_jvp(lambda particle: score(particle))

            @gradient.defjvp
            def _(primals, tangents):
                return score(primals[0]), product(primals[0], tangents[0])

        @jax.custom_jvp
        def value(particle):
            return self.log_density(particle)

        @value.defjvp
        def _(primals, tangents):
            slopes = gradient(primals[0])
            _check_score(slopes, primals[0])
            products = jax.tree_util.tree_map(lambda g, t: jnp.sum(g * t), slopes, tangents[0])
            return value(primals[0]), sum(jax.tree_util.tree_leaves(products))

        return value(particle)
