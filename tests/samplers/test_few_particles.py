"""What the default decides with few particles per dimension."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parvi.cloud import Cloud
from parvi.estimators import BayesianLogisticRegression
from parvi.geometry.drift import BOUND
from parvi.samplers.explore import Explore
from parvi.samplers.sequence import FarFromGaussian


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


def drawn(num, dim, seed=0):
    particles = np.random.default_rng(seed).normal(size=(num, dim)).astype(np.float32)
    return Cloud.at(gaussian, jnp.asarray(particles))


@pytest.mark.parametrize("per_dimension", [2, 5])
def test_exact_draws_are_not_far_from_gaussian(per_dimension):
    """Their largest eigenvalue is 8 or 4 by chance, and varies by some per cent (Tracy-Widom)."""
    cloud = drawn(per_dimension * 100, 100)
    seen = FarFromGaussian(least=1.0)
    assert not seen.holds(cloud)
    # Four times as wide in one direction as the density says: its Fisher information is 4^4.
    assert seen.holds(Cloud.at(lambda x: gaussian(x.at[0].multiply(4.0)), cloud.particles))


def test_few_particles_stop_where_the_drift_hardly_falls():
    explore = Explore()

    def futile(num, before, now, windows):
        memory = explore.init(jax.random.key(0), drawn(num, 8))
        memory = memory._replace(
            drift=jnp.asarray(before, jnp.float32), num_windows=jnp.asarray(windows, jnp.int32)
        )
        return bool(explore._is_futile(memory, jnp.asarray(now, jnp.float32)))

    # Three windows are over, and three are left: 27 x 0.74^3 is 11, 10 x (1 / 3)^3 less than 1.
    assert futile(20, 36.4, 26.7, 2)
    assert not futile(20, 30.0, 10.0, 2)
    # Two windows may have a beginning that is far away.
    assert not futile(20, 49.5, 36.4, 1)
    # At rest, and on the way for the first time.
    assert not futile(20, 26.7, 0.5 * BOUND, 2)
    assert not futile(20, np.inf, 26.7, 2)
    # Enough particles for a frame of all directions.
    assert not futile(26, 36.4, 26.7, 2)


@pytest.mark.parametrize(("dim", "num"), [(10, 256), (200, 400), (256, 512), (257, 256)])
def test_particles_of_an_estimator(dim, num):
    assert BayesianLogisticRegression()._num_particles({"weights": np.zeros(dim)}) == num
