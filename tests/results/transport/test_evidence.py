"""Log evidence against closed forms: Gaussians, linear regressions, Student's t; twenty of them."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import parvi

NUM_EACH = {"gaussian": 6, "regression": 8, "student": 6}


def gaussian(rng):
    dim = int(rng.integers(2, 12))
    factor = rng.normal(size=(dim, dim)) + 2 * np.eye(dim)
    inverse, mean = np.linalg.inv(factor), rng.normal(size=dim)
    constant = np.linalg.slogdet(factor)[1] + 0.5 * dim * np.log(2 * np.pi)
    return lambda x: -0.5 * jnp.sum((inverse @ (x - mean)) ** 2), dim, constant


def regression(rng):
    """y ~ N(X b, s^2 I), b ~ N(0, t^2 I): the evidence is that of a Gaussian in y."""
    num, dim = int(rng.integers(20, 80)), int(rng.integers(2, 15))
    noise, prior = rng.uniform(0.5, 2), rng.uniform(0.5, 3)
    features = rng.normal(size=(num, dim)) * rng.uniform(0.3, 3, size=dim)
    y = features @ rng.normal(size=dim) + noise * rng.normal(size=num)
    covariance = noise**2 * np.eye(num) + prior**2 * features @ features.T
    log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
    constant = -0.5 * (y @ np.linalg.solve(covariance, y) + log_det)

    def log_density(b):
        likelihood = -0.5 * jnp.sum((y - features @ b) ** 2) / noise**2
        likelihood -= num * jnp.log(noise * jnp.sqrt(2 * jnp.pi))
        return (
            likelihood
            - 0.5 * jnp.sum(b**2) / prior**2
            - dim * jnp.log(prior * jnp.sqrt(2 * jnp.pi))
        )

    return log_density, dim, constant


def student(rng):
    dim, freedom = int(rng.integers(2, 9)), rng.uniform(4, 12)
    constant = scipy.special.gammaln(freedom / 2) - scipy.special.gammaln((freedom + dim) / 2)
    constant += 0.5 * dim * np.log(freedom * np.pi)
    return (
        lambda x: -0.5 * (freedom + dim) * jnp.log1p(jnp.sum(x**2) / freedom),
        dim,
        constant,
    )


MAKERS = {"gaussian": gaussian, "regression": regression, "student": student}
CASES = [(kind, number) for kind, num in NUM_EACH.items() for number in range(num)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), CASES)
def test_closed_forms(kind, number):
    log_density, dim, constant = MAKERS[kind](np.random.default_rng(number))
    init = np.random.default_rng(100 + number).normal(size=(512, dim))
    result = parvi.sample(log_density, init)
    found = result.importance
    assert found.share > 0.7, found
    assert found.standard_error < 0.01
    assert abs(result.log_evidence() - constant) < 3 * found.standard_error + 1e-4
