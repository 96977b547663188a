"""Clouds: particles with their scores, evaluated in blocks so that any number of them fits."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from parvi.evaluation import even_blocks, values_and_scores

LogDensity = Callable[[Float[Array, " d"]], Float[Array, ""]]

# Number of particles whose features, scores and the like are in memory at once.
BLOCK = 8192


class Place(NamedTuple):
    """The arrays of a cloud, which the loop carries; the scores are None if they are not held."""

    particles: Float[Array, "n d"]
    scores: Any
    log_densities: Any


def chosen(taken: Bool[Array, "..."], new: Place, old: Place) -> Place:
    """The new rows where they are taken (one flag for all, or one for each), else the old ones."""

    def one(a, b):
        return jnp.where(taken.reshape(taken.shape + (1,) * (a.ndim - taken.ndim)), a, b)

    return jax.tree_util.tree_map(one, new, old)


class AbstractCloud(eqx.Module):
    """All that a field or a sampler may know: particles, scores, and the log density itself.

    ``mean`` and ``values`` compute in blocks, so no array is ever larger than the particles.
    """

    particles: eqx.AbstractVar[Float[Array, "n d"]]
    scores: eqx.AbstractVar[Float[Array, "n d"]]
    log_densities: eqx.AbstractVar[Float[Array, " n"]]
    log_density: eqx.AbstractVar[LogDensity]

    @property
    @abc.abstractmethod
    def place(self) -> Place:
        """The arrays alone, without any lens."""

    @property
    def is_held(self) -> bool:
        """Whether scores and log densities are kept, or recomputed whenever they are needed."""
        return self.place.scores is not None

    @property
    def shape(self) -> tuple[int, int]:
        """The pair (n, d)."""
        num, dim = self.place.particles.shape
        return num, dim

    @property
    def dtype(self) -> Any:
        """The dtype of all arrays."""
        return self.place.particles.dtype

    @abc.abstractmethod
    def mean(
        self, function: Callable[["AbstractCloud", Float[Array, " m"]], PyTree[Array]]
    ) -> PyTree[Array]:
        """The sum over blocks of ``function(block, weights)``, where all weights are 1 / n.

        A weighted sum over the particles of a block, ``weights @ values``, becomes the mean over
        all. Particles of a block without a finite log density have NaN scores.
        """

    @abc.abstractmethod
    def values(
        self,
        function: Callable[["AbstractCloud"], Float[Array, "m d"]],
        onto: Float[Array, "n d"] | None = None,
    ) -> Float[Array, "n d"]:
        """A function of each particle, block by block; it may not use the scores.

        ``onto`` is an array that is no longer needed and that the values may overwrite.
        """

    @abc.abstractmethod
    def random_values(
        self,
        key: Key[Array, ""],
        function: Callable[[Key[Array, ""], "AbstractCloud"], Float[Array, "m d"]],
    ) -> Float[Array, "n d"]:
        """As ``values``, of a function that draws: every block has a key of its own."""

    @abc.abstractmethod
    def some(self, num: int | None = None) -> "AbstractCloud":
        """An evenly spaced subset of ``num`` particles (None: a block) with their scores."""

    @property
    def finite(self) -> Bool[Array, ""]:
        """Whether every log density and every score is finite."""

        def not_finite(block, weights):
            sound = jnp.isfinite(block.log_densities) & jnp.all(jnp.isfinite(block.scores), axis=1)
            return weights @ (~sound).astype(weights.dtype)

        return self.mean(not_finite) == 0

    def hessian_product(self, x: Float[Array, " d"], v: Float[Array, " d"]) -> Float[Array, " d"]:
        """(grad^2 log p) v at a point, by one forward-over-reverse pass."""
        return jax.jvp(jax.grad(self.log_density), (x,), (v,))[1]

    def mean_hessian_product(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[grad^2 log p] v over the particles, in O(n d) memory."""
        products = jax.vmap(lambda x: self.hessian_product(x, vector))(self.particles)
        return jnp.mean(products, axis=0)

    def stein_ratio(self) -> Float[Array, ""]:
        """-E[(x - mean) . score] / d, which is 1 at the target and falls with a collapse.

        It is NaN if the scores are not held, as it is not worth a gradient of every particle.
        """
        if not self.is_held:
            return jnp.full((), jnp.nan, self.dtype)
        centred = self.particles - jnp.mean(self.particles, axis=0)
        return -jnp.mean(jnp.sum(centred * self.scores, axis=1)) / self.shape[1]


class Cloud(AbstractCloud):
    """Particles with their scores and log densities: the state that every sampler shares.

    The scores of very many particles need not be held (``Cloud.unread``): they are then computed
    block by block whenever a mean is needed.
    """

    particles: Float[Array, "n d"]
    scores: Any
    log_densities: Any
    log_density: LogDensity

    @classmethod
    def at(cls, log_density: LogDensity, particles: Float[Array, "n d"]) -> "Cloud":
        """Evaluate the log density and the score once at every particle."""
        values, scores = values_and_scores(log_density, particles)
        return cls(particles, scores, values, log_density)

    @classmethod
    def of(cls, place: Place, log_density: LogDensity) -> "Cloud":
        """The cloud with these arrays."""
        return cls(place.particles, place.scores, place.log_densities, log_density)

    @classmethod
    def unread(cls, log_density: LogDensity, particles: Float[Array, "n d"]) -> "Cloud":
        """A cloud whose scores are not held."""
        return cls(particles, None, None, log_density)

    @property
    def place(self):
        return Place(self.particles, self.scores, self.log_densities)

    def _block(self, place: Place) -> "Cloud":
        """A block with its scores, NaN where the log density is not finite."""
        if place.scores is not None:
            return Cloud.of(place, self.log_density)
        block = Cloud.at(self.log_density, place.particles)
        scores = jnp.where(jnp.isfinite(block.log_densities)[:, None], block.scores, jnp.nan)
        return Cloud(block.particles, scores, block.log_densities, self.log_density)

    def mean(self, function):
        num, _ = self.shape
        count = even_blocks(num, BLOCK, within=8)
        if count == 1:
            return function(self._block(self.place), jnp.full(num, 1 / num, self.dtype))
        blocks = _Blocks(num, count)

        def one(i):
            place = jax.tree.map(lambda leaf: blocks.take(leaf, i), self.place)
            return function(self._block(place), blocks.weights(i, self.dtype))

        shapes = jax.eval_shape(one, jax.ShapeDtypeStruct((), jnp.int32))
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        return jax.lax.fori_loop(
            0, count, lambda i, sums: jax.tree.map(jnp.add, sums, one(i)), zeros
        )

    def values(self, function, onto=None):
        return self._values(lambda i, block: function(block), onto)

    def random_values(self, key, function):
        return self._values(lambda i, block: function(jax.random.fold_in(key, i), block))

    def _values(self, function, onto=None):
        num, dim = self.shape
        count = even_blocks(num, BLOCK, within=8)
        if count == 1:
            return function(0, self)
        blocks = _Blocks(num, count)

        def body(i, found):
            block = Cloud.unread(self.log_density, blocks.take(self.particles, i))
            return blocks.put(found, function(i, block), i)

        first = jnp.zeros((num, dim), self.dtype) if onto is None else onto
        return jax.lax.fori_loop(0, count, body, blocks.shaped(first)).reshape(num, dim)

    def some(self, num=None):
        total = self.shape[0]
        few = min(total, BLOCK if num is None else num)
        if few == total:
            return self._block(self.place)
        rows = np.arange(few) * total // few
        return self._block(jax.tree.map(lambda leaf: leaf[rows], self.place))


def in_blocks(particles: Float[Array, "n d"], function: Callable) -> PyTree[Array]:
    """``Cloud.mean`` of a function that uses no scores."""
    nothing = jnp.zeros((particles.shape[0], 0), particles.dtype)
    return Cloud(particles, nothing, nothing, jnp.sum).mean(function)


class _Blocks(NamedTuple):
    """n rows in ``parts`` blocks of one size; if n does not divide evenly, the last begins early.

    In an even division, block i has every ``parts``-th row, so that each device of a mesh has its
    part of every block.
    """

    num: int
    parts: int

    @property
    def size(self) -> int:
        return -(-self.num // self.parts)

    @property
    def even(self) -> bool:
        return self.size * self.parts == self.num

    def _first(self, i):
        return jnp.minimum(i * self.size, self.num - self.size)

    def take(self, rows, i):
        if self.even:
            shaped = rows.reshape(self.size, self.parts, *rows.shape[1:])
            return jax.lax.dynamic_index_in_dim(shaped, i, 1, keepdims=False)
        return jax.lax.dynamic_slice_in_dim(rows, self._first(i), self.size)

    def weights(self, i, dtype):
        """1 / n for each row, and 0 for rows that an earlier block has counted."""
        if self.even:
            return jnp.full(self.size, 1 / self.num, dtype)
        new = self._first(i) + jnp.arange(self.size) >= i * self.size
        return new.astype(dtype) / self.num

    def shaped(self, rows):
        """The rows in the shape in which ``put`` works in place."""
        return rows.reshape(self.size, self.parts, -1) if self.even else rows

    def put(self, rows, block, i):
        if self.even:
            return jax.lax.dynamic_update_index_in_dim(rows, block, i, 1)
        # Rows that two blocks share are computed twice from the same old rows, so they agree.
        return jax.lax.dynamic_update_slice_in_dim(rows, block, self._first(i), 0)


class AbstractLens(eqx.Module):
    """Shows a cloud in other coordinates, or with other scores."""

    def particles(self, particles: Float[Array, "m d"]) -> Float[Array, "m d"]:
        """The particles as seen through the lens; unchanged unless overridden."""
        return particles

    @abc.abstractmethod
    def scores(
        self, particles: Float[Array, "m d"], scores: Float[Array, "m d"]
    ) -> Float[Array, "m d"]:
        """The scores as seen through the lens; ``particles`` are given without it."""

    def log_density(self, log_density: LogDensity) -> LogDensity:
        """The log density as a function of the particles as seen; unchanged unless overridden."""
        return log_density


class View(AbstractCloud):
    """A cloud seen through a lens, block by block."""

    cloud: AbstractCloud
    lens: AbstractLens

    def __init__(self, cloud: AbstractCloud, lens: AbstractLens):
        self.cloud = cloud
        self.lens = lens

    # Equinox lets properties implement abstract variables; the type checker expects fields.
    @property  # type: ignore[misc]
    def log_density(self):  # type: ignore[override]
        return self.lens.log_density(self.cloud.log_density)

    @property  # type: ignore[misc]
    def particles(self):  # type: ignore[override]
        return self.lens.particles(self.cloud.particles)

    @property  # type: ignore[misc]
    def scores(self):  # type: ignore[override]
        return self.lens.scores(self.cloud.particles, self.cloud.scores)

    @property  # type: ignore[misc]
    def log_densities(self):  # type: ignore[override]
        return self.cloud.log_densities

    @property
    def place(self):
        return self.cloud.place

    def mean(self, function):
        return self.cloud.mean(lambda block, weights: function(View(block, self.lens), weights))

    def values(self, function, onto=None):
        return self.cloud.values(lambda block: function(View(block, self.lens)), onto)

    def random_values(self, key, function):
        return self.cloud.random_values(key, lambda own, b: function(own, View(b, self.lens)))

    def some(self, num=None):
        return View(self.cloud.some(num), self.lens)
