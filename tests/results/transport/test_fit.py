"""Fits of maps: what fresh points say of a layer decides whether it is kept."""

import jax
import jax.numpy as jnp
import pytest

from parvi.geometry.frame import DenseFrame
from parvi.results.transport.chain import sobol_normal
from parvi.results.transport.fit import streamed
from parvi.results.transport.layers import Affine


def skewed(x):
    return jnp.sum(1.5 * x - jnp.exp(x))


def mean_log_ratio(layer, points):
    """The KL up to a constant that is the same for every map."""
    images, log_det = layer.moved(points)
    return -float(jnp.mean(jax.vmap(skewed)(images) + log_det))


@pytest.mark.parametrize("name", ["good", "poor"])
def test_never_worse_than_the_affine_part(name):
    """Even from a frame that is far off: a layer is kept only if the KL on fresh points falls."""
    scale, mean = {"good": (0.9, 0.15), "poor": (4.0, -6.0)}[name]
    with jax.enable_x64(True):
        frame = DenseFrame(jnp.full(2, mean), scale * jnp.eye(2), jnp.eye(2) / scale)
        chain, found = streamed(skewed, frame, jax.random.key(0))
        fresh = jnp.asarray(sobol_normal(jax.random.key(5), 4096, 2))
        assert mean_log_ratio(chain, fresh) <= mean_log_ratio(Affine(frame), fresh)
    kept = [judged for judged in found if judged.kept]
    assert all(judged.after < judged.before for judged in kept)
    layers = chain.layers[1:]
    assert sum(len(own.bent.offsets) for own in layers) == len(kept)
    # 3 d^2 + 2 d and k (2 d + 1) numbers for each layer of k features, two of which per axis grow.
    k = 128 + 4
    numbers = [leaf.size for own in layers for leaf in jax.tree_util.tree_leaves(own)]
    assert sum(numbers) == len(kept) * (3 * 4 + 2 * 2 + k * 5)
