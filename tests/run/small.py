"""A run that takes little, for tests of what is around it."""

import jax.numpy as jnp
import numpy as np

import parvi


def start(num=32, dim=2):
    return np.random.default_rng(0).normal(size=(num, dim))


def normal(x):
    return -0.5 * jnp.sum(x**2)


def quick(log_density=normal, init=None, num_steps=3, **settings):
    init = start() if init is None else init
    sampler = settings.pop("sampler", parvi.svgd())
    return parvi.sample(log_density, init, sampler=sampler, num_steps=num_steps, **settings)
