"""Particles whose empirical moments are exactly those of a Gaussian, and that Gaussian's formulas.

A mean over such particles of a polynomial of degree two is the Gaussian's own expectation: what
the theory says of N(mean, covariance) then holds for the particles to rounding, not to 1/sqrt(n).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from parvi.cloud import Cloud


def moments(particles):
    """The mean and the covariance (divided by n) of the particles."""
    particles = np.asarray(particles)
    mean = particles.mean(axis=0)
    return mean, (particles - mean).T @ (particles - mean) / len(particles)


def particles_with(rng, num, mean, covariance):
    """``num`` random particles with exactly this mean and covariance; needs num > d."""
    mean = np.asarray(mean, float)
    draws = rng.normal(size=(num, len(mean)))
    own_mean, own_covariance = moments(draws)
    whitened = np.linalg.solve(np.linalg.cholesky(own_covariance), (draws - own_mean).T).T
    return mean + whitened @ np.linalg.cholesky(covariance).T


def rotation(rng, dim):
    return np.linalg.qr(rng.normal(size=(dim, dim)))[0]


def covariance_of(rng, variances):
    """A covariance with these eigenvalues and random eigenvectors."""
    basis = rotation(rng, len(variances))
    return basis * np.asarray(variances) @ basis.T


def gaussian(mean, covariance):
    """log N(mean, covariance) up to its constant, of one particle."""
    precision = np.linalg.inv(covariance)

    def log_density(x):
        centred = x - jnp.asarray(mean)
        return -0.5 * centred @ jnp.asarray(precision) @ centred

    return log_density


def cloud_of(log_density, particles):
    return _cloud(log_density, jnp.asarray(particles))


def fit(field, log_density, particles, seed=0):
    """One fit from a fresh memory."""
    return _fit(field, log_density, jnp.asarray(particles), jax.random.key(seed))


# Compiled as in a run: one program instead of hundreds of small ones.
@eqx.filter_jit
def _cloud(log_density, particles):
    return Cloud.at(log_density, particles)


@eqx.filter_jit
def _fit(field, log_density, particles, key):
    key_init, key_fit = jax.random.split(key)
    memory = field.init(key_init, particles)
    return field.fit(key_fit, Cloud.at(log_density, particles), memory)[0]


def log_ratio_gradient(x, mean, covariance, target_mean, target_covariance):
    """grad log p*/p at the rows of x, for two Gaussians."""
    attraction = -np.linalg.solve(target_covariance, (x - target_mean).T).T
    return attraction + np.linalg.solve(covariance, (x - mean).T).T


def square_root(matrix):
    """The symmetric square root."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(values) @ vectors.T


def relative_error(actual, expected):
    """The largest error, in units of the largest entry that is expected."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    return np.max(np.abs(actual - expected)) / np.max(np.abs(expected))
