"""The excess: its null level against a sum by hand, and 1 for independent draws."""

import jax
import jax.numpy as jnp
import numpy as np

from parvi.cloud import Cloud
from parvi.fields.pfg.excess import stein_excess
from parvi.fields.pfg.functions import RandomFeatures


def by_hand(functions, frozen, x, s, ridge):
    """Size of every row of B, and its mean for independent terms, one particle at a time."""
    num, dim = x.shape
    directions, offsets = frozen
    basis = np.linalg.eigh(s.T @ s / num)[1]
    bent = np.tanh(x @ directions.T + offsets)
    features = np.concatenate([np.ones((num, 1)), x, bent], axis=1)
    inverse = np.linalg.inv(features.T @ features / num + ridge * np.eye(features.shape[1]))
    terms = []
    for i in range(num):
        slopes = (1 - bent[i] ** 2)[:, None] * directions
        gradient = np.concatenate([np.zeros((1, dim)), np.eye(dim), slopes])
        terms.append((np.outer(features[i], s[i]) + gradient) @ basis)
    terms = np.array(terms)
    size = np.einsum("kr,kl,lr->r", terms.mean(axis=0), inverse, terms.mean(axis=0))
    null = np.einsum("ikr,kl,ilr->r", terms, inverse, terms) / num**2
    return size / null


def test_against_a_sum_over_the_particles():
    rng = np.random.default_rng(0)
    x, s = rng.normal(size=(40, 3)), rng.normal(size=(40, 3))
    with jax.enable_x64(True):
        functions = RandomFeatures(5)

        @jax.jit
        def found(key, x, s):
            frozen = functions.informed(key, x, s)
            cloud = Cloud(x, s, jnp.zeros(40), jnp.sum)
            return frozen, stein_excess(functions, frozen, cloud, 1e-2)

        frozen, ours = found(jax.random.key(0), x, s)
        expected = by_hand(functions, [np.asarray(a) for a in frozen], x, s, 1e-2)
        np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_is_one_for_independent_draws_and_large_for_wrong_ones():
    functions = RandomFeatures(16)

    @jax.jit
    def excess(key, x):
        cloud = Cloud(x, -x, jnp.zeros(len(x)), jnp.sum)
        return jnp.mean(stein_excess(functions, functions.informed(key, x, -x), cloud, 1e-2))

    keys = jax.random.split(jax.random.key(0), 20)
    draws = [jax.random.normal(key, (512, 4)) for key in keys]
    right = np.mean([excess(k, x) for k, x in zip(keys, draws, strict=True)])
    assert 0.8 < right < 1.2
    assert excess(keys[0], 0.7 * draws[0]) > 3
    assert excess(keys[0], draws[0] + 0.3) > 3
