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
from parvi.kept import carefully
from parvi.results.transport import mixture
from parvi.results.transport.chain import sobol_normal
from parvi.results.transport.importance import Importance, heavy_normal, log_heavy, log_normal
from parvi.results.transport.layers import AbstractLayer, Inverted
from parvi.run.initial import as_key
from parvi.run.surroundings import surrounded
from parvi.targets.flatten import AbstractLayout, Layout
from parvi.targets.target import AbstractTarget

# The number of weighted draws from which the optimising compiler pays.
_MANY = 1 << 16
# Points whose densities take less time in a program that is compiled without optimisation.
_FEW = 2048
# One draw more for so many, and at least so many, if base points may have no image.
_SPARE = 8


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

        Base points without an image are left out: a map that was made from flown particles is an
        inverse, which Newton's method does not find everywhere.

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
            if len(self.maps) > 1:
                log_q = mixture.log_density(self.maps, self.log_weights, np.asarray(flat))
            else:
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
            count = -(-num // mixture.AT_ONCE)
            parts = [_part(self, density, key, np.uint32(i), num > _MANY) for i in range(count)]
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
        asked = num if self._reaches_all else num + num // _SPARE + _SPARE
        if sobol:
            # One dimension more decides which map a point goes through.
            more = len(self.maps) > 1
            z = jnp.asarray(sobol_normal(key, asked, self.dim + more), self.dtype)
            uniforms = jax.scipy.stats.norm.cdf(z[:, -1]) if more else None
            return _sound(_pushed(self, z[:, : self.dim], uniforms), num)
        return _sound(_drawn(self, key, asked), num)

    @property
    def _reaches_all(self) -> bool:
        """Whether every base point has an image: Newton's method may not find one."""
        layers = jax.tree.leaves(self.maps, is_leaf=lambda leaf: isinstance(leaf, Inverted))
        return not any(isinstance(layer, Inverted) for layer in layers)

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
    return _pushed(transport, z, uniforms)


def _sound(points: Float[Array, "m d"], num: int) -> Float[Array, "n d"]:
    """The first points that are finite."""
    if len(points) == num:
        return points
    bad = ~jnp.all(jnp.isfinite(points), axis=1)
    return points[jnp.argsort(bad, stable=True)[:num]]


@carefully
def _pushed(transport: Transport, z, uniforms):
    """The images of base points, each under one map."""
    if uniforms is None:
        return transport.maps[0](z)
    return mixture.pushed(transport.maps, transport.log_weights, z, uniforms)[0]


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
    """A part of the draws of one map of the heavy-tailed base, with log p and log q.

    A part has a fixed number of them, so that one program serves any number.
    """
    z, _ = _heavy(transport, key, part)
    x, log_det = transport.maps[0].moved(z)
    return x, jax.vmap(log_density)(x), log_heavy(z) - log_det


def _begun(transport: Transport, log_density, key, part):
    """The same of several maps: log q is that of a draw's own map, and others may count too."""
    z, key_map = _heavy(transport, key, part)
    uniforms = jax.random.uniform(key_map, (len(z),), z.dtype)
    x, own, wanted = mixture.begun(transport.maps, transport.log_weights, z, uniforms)
    return x, jax.vmap(log_density)(x), own, wanted


def _heavy(transport: Transport, key, part):
    key_base, key_map = jax.random.split(jax.random.fold_in(key, part))
    dtype = transport.log_weights.dtype
    return heavy_normal(key_base, mixture.AT_ONCE, transport.dim, dtype), key_map


_weighed_quickly, _weighed_carefully = quickly(_weighed), carefully(_weighed)
_begun_quickly, _begun_carefully = quickly(_begun), carefully(_begun)


def _part(transport: Transport, log_density, key, part, many: bool):
    """A part of the weighted draws, and their log weights."""
    if len(transport.maps) == 1:
        weighed = _weighed_carefully if many else _weighed_quickly
        x, log_p, log_q = weighed(transport, log_density, key, part)
        return x, log_p - log_q
    begun = _begun_carefully if many else _begun_quickly
    sought = mixture.sought_carefully if many else mixture.sought_quickly
    x, log_p, own, wanted = begun(transport, log_density, key, part)
    rest = sought(transport.maps, transport.log_weights, x, wanted)
    return x, log_p - np.logaddexp(own, rest)
