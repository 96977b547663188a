"""``Transport``: maps from N(0, I) to the target, with their exact density."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from parvi.cloud import LogDensity
from parvi.evaluation import evaluate, quickly
from parvi.geometry.frame import DenseFrame
from parvi.kept import carefully
from parvi.results.transport.chain import sobol_normal
from parvi.results.transport.importance import Importance, heavy_normal, log_heavy, log_normal
from parvi.results.transport.layers import AbstractLayer
from parvi.run.initial import as_key
from parvi.run.surroundings import surrounded
from parvi.targets.flatten import AbstractLayout, Layout
from parvi.targets.target import AbstractTarget

# Draws that are weighed at once, and the number from which the optimising compiler pays.
_AT_ONCE, _MANY = 1024, 1 << 16
# Points whose densities take less time in a program that is compiled without optimisation.
_FEW = 2048
# A map is left out for a draw if its log density is this much below that of the draw's own map, a
# factor of 5e-5.
_NOTHING = 10.0


class Transport(eqx.Module):
    """A mixture of smooth maps of N(0, I), one for every mode, with its exact density.

    It is a distribution of its own: ``draw`` and ``log_prob`` work on particles as the user writes
    them, and under ``jit``, ``vmap`` and ``grad``. ``importance`` says how far it is from the
    target.

    Parameters
    ----------
    maps
        The maps, from N(0, I) to flat and unconstrained points.
    log_weights
        The logs of their weights.
    layout
        From flat and unconstrained points to particles as the user writes them.
    target
        The target by which draws are weighed; None after loading.
    """

    maps: tuple[AbstractLayer, ...]
    log_weights: Float[Any, " m"]
    layout: AbstractLayout
    target: AbstractTarget | None

    @property
    def dim(self) -> int:
        """d, the number of unconstrained numbers."""
        return self.layout.dim

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the run."""
        return np.dtype(self.log_weights.dtype)

    def draw(self, key: Any, num: int, sobol: bool = False) -> PyTree[Array]:
        """Draws in the structure and on the scale of the particles.

        Parameters
        ----------
        key
            An int or a JAX key.
        num
            The number of draws.
        sobol
            Whether they are images of scrambled-Sobol points, which together are closer to the
            map's distribution than independent draws. This does not work under ``jit``.
        """
        with self._ready(key):
            flat = self._drawn_flat(as_key(key), num, sobol)
            return _given(_constrained(self.layout, flat))

    def draw_flat(self, key: Any, num: int, sobol: bool = False) -> Float[Array, "n d"]:
        """As ``draw``, flat and unconstrained."""
        with self._ready(key):
            return _given(self._drawn_flat(as_key(key), num, sobol))

    def log_prob(self, particles: PyTree[Array]) -> Float[Array, " n"]:
        """The log density of the map at any particles, on their own scale.

        It is -inf where the map has no inverse, which is found by Newton's method. Particles of a
        model hold more than its parameters, and have no such scale: use ``log_prob_flat`` for
        ``result.flat``.
        """
        if not isinstance(self.layout, Layout):
            raise ValueError(
                "The particles of a model have no density on a scale of their own, as they hold "
                "derived numbers too: use transport.log_prob_flat(result.flat)."
            )
        with self._ready(particles):
            return _given(_log_prob(self, particles))

    def log_prob_flat(self, flat: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The log density at flat and unconstrained points, on that scale."""
        with self._ready(flat):
            return _given(_log_prob_flat(self, jnp.asarray(flat), log_normal))

    def log_ratios(self, flat: Float[Array, "n d"]) -> Float[np.ndarray, " n"]:
        """log p - log q at flat points, where q has the heavy-tailed base of ``importance``."""
        assert self.target is not None
        with self._ready(flat):
            points = jnp.asarray(flat)
            log_prob = _log_prob_quickly if len(points) <= _FEW else _log_prob_flat
            log_q = log_prob(self, points, log_heavy)
            values = evaluate(_density_of(self.target, self.layout), points)[0]
            return np.asarray(values) - np.asarray(log_q)

    def importance(self, num: int = 16_384, key: Any = 0, target: Any = None) -> Importance:
        """Draws with weights p / q, what they are worth, and the evidence.

        The base has heavier tails than N(0, I), so that the draws show tails which the map misses.

        Parameters
        ----------
        num
            The number of draws.
        key
            An int or a JAX key.
        target
            The target, if the map was loaded from a file.
        """
        target = self.target if target is None else target
        if target is None:
            raise ValueError(
                "A loaded map does not hold the log density that draws are weighed by: give it, "
                "transport.importance(target=...)."
            )
        if not isinstance(num, (int, np.integer)) or num < 16:
            raise ValueError(f"num must be an int of at least 16, got {num!r}.")
        with self._ready(key):
            density, key = _density_of(target, self.layout), as_key(key)
            weigh = _weighed_quickly if num <= _MANY else _weighed_carefully
            parts = [weigh(self, density, key, np.uint32(i)) for i in range(-(-num // _AT_ONCE))]
            flat, log_weights = (np.concatenate(part)[:num] for part in zip(*parts, strict=True))
            return Importance.of(flat, log_weights)

    def distil(self, key: Any = 0) -> "Transport":
        """One layer in place of many, for cheaper draws; ``importance`` says what it is worth.

        A network of 256 features is fitted to where the map takes points. A ``ValueError`` says so
        if it is worth less than half as much as the map.
        """
        from parvi.results.transport.distil import distilled

        if len(self.maps) > 1:
            raise ValueError(
                f"There are {len(self.maps)} maps, one for every mode, and one network cannot "
                "replace them: use this map itself."
            )
        with self._ready(key):
            layer = distilled(self.maps[0], self.dim, self.dtype, as_key(key))
            maps = jax.tree_util.tree_map(np.asarray, (layer,))
        new = Transport(maps, self.log_weights, self.layout, self.target)
        if self.target is None:
            return new
        before, after = (each.importance(4096, key).share for each in (self, new))
        if not after >= before / 2:
            raise ValueError(
                f"One network cannot represent this map: its draws are worth {after:.2f} of "
                f"independent ones, and those of the map {before:.2f}. Use the map itself."
            )
        return new

    def _drawn_flat(self, key, num, sobol):
        if sobol:
            # One dimension more decides which map a point goes through.
            more = len(self.maps) > 1
            z = jnp.asarray(sobol_normal(key, num, self.dim + more), self.dtype)
            uniforms = jax.scipy.stats.norm.cdf(z[:, -1]) if more else None
            return _pushed_each(self, z[:, : self.dim], uniforms)
        return _drawn(self, key, num)

    @contextlib.contextmanager
    def _ready(self, given: Any) -> Iterator[None]:
        """The precision of the run, unless the caller is tracing."""
        leaves = jax.tree_util.tree_leaves((given, self))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            yield
            return
        with surrounded(self.dtype):
            yield


def _given(tree: PyTree[Array]) -> PyTree[Array]:
    """NumPy arrays, unless the caller is tracing: JAX's own may be of another precision."""
    leaves = jax.tree_util.tree_leaves(tree)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return tree
    return jax.tree_util.tree_map(np.asarray, tree)


def _density_of(target: Any, layout: AbstractLayout) -> LogDensity:
    from parvi.run.initial import as_target

    target = as_target(target)
    if target.layout is None:
        target = eqx.tree_at(lambda t: t.layout, target, layout, is_leaf=lambda x: x is None)
    return target.full()


@carefully
def _constrained(layout, flat):
    return jax.vmap(layout.constrain)(flat)


@carefully
def _drawn(transport: Transport, key, num: int):
    key_base, key_map = jax.random.split(key)
    z = jax.random.normal(key_base, (num, transport.dim), transport.log_weights.dtype)
    more = len(transport.maps) > 1
    uniforms = jax.random.uniform(key_map, (num,), z.dtype) if more else None
    return _pushed(transport, z, uniforms)[0]


@carefully
def _pushed_each(transport: Transport, z, uniforms):
    return _pushed(transport, z, uniforms)[0]


def _pushed(transport: Transport, z, uniforms):
    """The images of base points, each under one map, and the maps' numbers."""
    if uniforms is None:
        return transport.maps[0](z), jnp.zeros(len(z), jnp.int32)
    shares = jnp.cumsum(jax.nn.softmax(transport.log_weights))
    number = jnp.minimum(jnp.searchsorted(shares, uniforms), len(transport.maps) - 1)
    images = jnp.stack([layer(z) for layer in transport.maps])
    return jnp.take_along_axis(images, number[None, :, None], axis=0)[0], number


@carefully
def _log_prob(transport: Transport, particles):
    layout = transport.layout
    assert isinstance(layout, Layout)
    flat = jax.vmap(layout.unconstrain)(particles)
    found = _log_prob_flat(transport, flat, log_normal)
    return found - jax.vmap(layout.log_jacobian)(flat)


def _log_prob_of(transport: Transport, flat, log_base: Callable):
    """The log density at flat points, of the maps of a base."""
    found = []
    for weight, layer in zip(transport.log_weights, transport.maps, strict=True):
        z = layer.inverse(flat)
        own = weight + log_base(z) - layer.log_det(z)
        found.append(jnp.where(jnp.isnan(own), -jnp.inf, own))
    return jax.scipy.special.logsumexp(jnp.stack(found), axis=0)


_log_prob_quickly, _log_prob_flat = quickly(_log_prob_of), carefully(_log_prob_of)


def _weighed(transport: Transport, log_density, key, part):
    """One part of the draws of the maps of the heavy-tailed base, with their log weights.

    A part has a fixed number of them, so that one program serves any number.
    """
    num, dtype = _AT_ONCE, transport.log_weights.dtype
    key_base, key_map = jax.random.split(jax.random.fold_in(key, part))
    z = heavy_normal(key_base, num, transport.dim, dtype)
    if len(transport.maps) == 1:
        x, log_det = transport.maps[0].moved(z)
        log_q = log_heavy(z) - log_det
    else:
        x, number = _pushed(transport, z, jax.random.uniform(key_map, (num,), dtype))
        log_q = _log_mixture(transport, z, x, number)
    return x, jax.vmap(log_density)(x) - log_q


def _log_mixture(transport: Transport, z, x, number):
    """The log density at images x of base points z, each under the map of that number.

    An image's own base point is known. Base points under other maps are sought only where the
    affine parts say that they may count: from farther away Newton's method rarely finds one, and
    takes long.
    """
    each = list(zip(transport.log_weights, transport.maps, strict=True))
    moved = [layer.moved(z) for _, layer in each]
    found = [
        jnp.where(number == k, _of(each[k], z, moved[k][1]), -jnp.inf) for k in range(len(each))
    ]
    own = jnp.max(jnp.stack(found), axis=0)
    for k, (weight, layer) in enumerate(each):
        frame = DenseFrame.of(moved[k][0])
        there = weight + log_heavy(frame.enter(x)) - frame.log_volume
        near = (there > own - _NOTHING) & (number != k)
        # Elsewhere the middle is sought instead, which is found at once.
        sought = layer.inverse(jnp.where(near[:, None], x, layer(jnp.zeros_like(z[:1]))))
        density = _of(each[k], sought, layer.log_det(sought))
        found.append(jnp.where(near & ~jnp.isnan(density), density, -jnp.inf))
    return jax.scipy.special.logsumexp(jnp.stack(found), axis=0)


def _of(weighted, z, log_det):
    """The log density of a weighted map at the image of z."""
    weight, _ = weighted
    return weight + log_heavy(z) - log_det


_weighed_quickly, _weighed_carefully = quickly(_weighed), carefully(_weighed)
