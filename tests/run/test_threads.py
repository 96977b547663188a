"""BLAS has one thread during a run, and what it had before after it."""

import jax.numpy as jnp
import numpy as np
import threadpoolctl

import parvi


def blas_threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if _is_blas(pool)}


def _is_blas(pool):
    return pool["user_api"] == "blas"


def test_one_thread_while_it_runs():
    seen = []

    def log_density(x):
        seen.append(blas_threads())
        return -0.5 * jnp.sum(x**2)

    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        outside = blas_threads()
        parvi.sample(log_density, np.random.default_rng(0).normal(size=(8, 2)), num_steps=2)
        assert blas_threads() == outside
    assert outside == {2}
    assert seen
    assert all(threads == {1} for threads in seen)
