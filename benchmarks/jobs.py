"""Models as people fit them, with made data: hierarchies, state spaces, ODEs, processes, mixtures.

Every job is a log density on flat and unconstrained vectors and its dimension.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

from benchmarks import truths


class Easier(NamedTuple):
    """Other coordinates u of the same model, in which chains mix: x as a function of u.

    ``log_volume`` is log |det dx/du|. The truth is sampled there and brought back.
    """

    leave: Callable
    log_volume: Callable


class Job(NamedTuple):
    """A log density and its dimension; ``copies`` are labellings that are equally likely.

    ``truth`` gives exact moments where they are known.
    """

    log_density: Callable
    dim: int
    easier: Easier | None = None
    copies: int = 1
    truth: Callable[[], truths.Moments] | None = None


def _half_normal(log_scale, width=1.0):
    """The log density of log s, for s ~ |N(0, width)|."""
    return -0.5 * (jnp.exp(log_scale) / width) ** 2 + log_scale


def hierarchy(centred: bool, groups: int = 40, rows: int = 3, seed: int = 0) -> Job:
    """y_ij ~ N(theta_j, 1), theta_j ~ N(mu, tau); tau is hard to tell from 0."""
    rng = np.random.default_rng(seed)
    effects = 1.0 + 0.4 * rng.normal(size=groups)
    y = effects[:, None] + rng.normal(size=(groups, rows))

    def log_density(x):
        mu, log_tau, free = x[0], x[1], x[2:]
        tau = jnp.exp(log_tau)
        theta = free if centred else mu + tau * free
        prior = norm.logpdf(mu, 0, 5) + _half_normal(log_tau)
        prior += jnp.sum(norm.logpdf(free, mu, tau) if centred else norm.logpdf(free))
        return prior + jnp.sum(norm.logpdf(y, theta[:, None], 1.0))

    def leave(u):
        return jnp.concatenate([u[:2], u[0] + jnp.exp(u[1]) * u[2:]])

    easier = Easier(leave, lambda u: groups * u[1]) if centred else None
    return Job(log_density, 2 + groups, easier, truth=lambda: truths.hierarchy(y, centred))


def volatility(length: int, seed: int = 0) -> Job:
    """Stochastic volatility with standardised innovations: mu, phi, sigma and h_1, ..., h_T."""
    rng = np.random.default_rng(seed)
    mu, phi, sigma = -1.0, 0.9, 0.4
    h = np.empty(length)
    h[0] = mu + sigma / np.sqrt(1 - phi**2) * rng.normal()
    for t in range(1, length):
        h[t] = mu + phi * (h[t - 1] - mu) + sigma * rng.normal()
    y = np.exp(h / 2) * rng.normal(size=length)

    def log_density(x):
        mu, raw_phi, log_sigma, innovations = x[0], x[1], x[2], x[3:]
        phi, sigma = jnp.tanh(raw_phi), jnp.exp(log_sigma)
        first = innovations[0] * sigma / jnp.sqrt(1 - phi**2)

        def one(h, e):
            h = phi * h + sigma * e
            return h, h

        _, later = jax.lax.scan(one, first, innovations[1:])
        h = mu + jnp.concatenate([first[None], later])
        prior = norm.logpdf(mu, 0, 5) + jnp.log1p(-(phi**2)) + _half_normal(log_sigma)
        prior += 19 * jnp.log((1 + phi) / 2) + 0.5 * jnp.log((1 - phi) / 2)
        prior += jnp.sum(norm.logpdf(innovations))
        return prior + jnp.sum(norm.logpdf(y, 0, jnp.exp(h / 2)))

    return Job(log_density, 3 + length)


def cox(cells: int, seed: int = 0) -> Job:
    """Counts with a log-Gaussian intensity on a line; the process is given, its values are not."""
    rng = np.random.default_rng(seed)
    at = np.linspace(0, 1, cells)
    covariance = np.exp(-np.abs(at[:, None] - at[None, :]) / 0.1) + 1e-6 * np.eye(cells)
    factor = np.linalg.cholesky(covariance)
    mean = np.log(200 / cells)
    counts = rng.poisson(np.exp(mean + factor @ rng.normal(size=cells)))
    precision = np.linalg.inv(covariance)

    def log_density(x):
        centred = x - mean
        return counts @ x - jnp.sum(jnp.exp(x)) - 0.5 * centred @ (precision @ centred)

    return Job(log_density, cells)


def lotka_volterra(seed: int = 0) -> Job:
    """Two populations over 20 years with lognormal errors: 4 rates, 2 starts, 2 scales."""
    rng = np.random.default_rng(seed)
    times, steps = 20, 20
    truth = np.array([0.55, 0.028, 0.84, 0.026])
    prior_means = jnp.array([1.0, 0.05, 1.0, 0.05])
    prior_sds = jnp.array([0.5, 0.05, 0.5, 0.05])

    def paths(theta, start):
        def slope(z):
            u, v = z
            return jnp.array([(theta[0] - theta[1] * v) * u, (-theta[2] + theta[3] * u) * v])

        def one(z, _):
            step = 1.0 / steps
            a = slope(z)
            b = slope(z + 0.5 * step * a)
            c = slope(z + 0.5 * step * b)
            d = slope(z + step * c)
            return z + step / 6 * (a + 2 * b + 2 * c + d), None

        def year(z, _):
            z = jax.lax.scan(one, z, length=steps)[0]
            return z, z

        return jax.lax.scan(year, start, length=times)[1]

    with jax.enable_x64(True):
        clean = np.asarray(paths(jnp.asarray(truth), jnp.array([30.0, 4.0])))
    first = np.array([30.0, 4.0]) * np.exp(0.25 * rng.normal(size=2))
    y = np.log(clean) + 0.25 * rng.normal(size=clean.shape)

    def log_density(x):
        theta, start, sigma = jnp.exp(x[:4]), jnp.exp(x[4:6]), jnp.exp(x[6:])
        prior = jnp.sum(norm.logpdf(theta, prior_means, prior_sds) + x[:4])
        prior += jnp.sum(norm.logpdf(x[4:6], np.log(10.0), 1.0))
        prior += jnp.sum(norm.logpdf(x[6:], -1.0, 1.0))
        found = paths(theta, start)
        fit = norm.logpdf(y, jnp.log(jnp.maximum(found, 1e-10)), sigma)
        return prior + jnp.sum(fit) + jnp.sum(norm.logpdf(np.log(first), x[4:6], sigma))

    return Job(log_density, 8)


def lorenz(known: bool, length: int = 30, seed: int = 0) -> Job:
    """A bridge of a noisy Lorenz system whose first coordinate is seen at both ends."""
    rng = np.random.default_rng(seed)
    step, inner, outer = 0.02, 0.1, 1.0

    def moved(z):
        x, y, w = z[..., 0], z[..., 1], z[..., 2]
        slope = jnp.stack([10 * (y - x), x * (28 - w) - y, x * y - 8 / 3 * w], -1)
        return z + step * slope

    z = np.zeros((length, 3))
    z[0] = rng.normal(size=3)
    for t in range(1, length):
        z[t] = np.asarray(moved(z[t - 1])) + inner * np.sqrt(step) * rng.normal(size=3)
    seen = np.r_[0:10, 20:30]
    y = z[seen, 0] + outer * rng.normal(size=len(seen))

    def log_density(x):
        scales = (inner, outer) if known else (jnp.exp(x[0]), jnp.exp(x[1]))
        states = x[0 if known else 2 :].reshape(length, 3)
        value = 0.0 if known else jnp.sum(norm.logpdf(x[:2], -1.0, 1.0))
        value += jnp.sum(norm.logpdf(states[0]))
        value += jnp.sum(norm.logpdf(states[1:], moved(states[:-1]), scales[0] * np.sqrt(step)))
        return value + jnp.sum(norm.logpdf(y, states[seen, 0], scales[1]))

    return Job(log_density, 3 * length + (0 if known else 2))


def brownian(length: int = 30, seed: int = 0) -> Job:
    """A Brownian motion with unknown scales of innovation and error, not seen in the middle."""
    rng = np.random.default_rng(seed)
    z = np.cumsum(0.1 * rng.normal(size=length))
    seen = np.r_[0:10, 20:30]
    y = z[seen] + 0.15 * rng.normal(size=len(seen))

    def log_density(x):
        inner, outer, states = jnp.exp(x[0]), jnp.exp(x[1]), x[2:]
        value = jnp.sum(norm.logpdf(x[:2], 0.0, 2.0)) + norm.logpdf(states[0], 0.0, inner)
        value += jnp.sum(norm.logpdf(states[1:], states[:-1], inner))
        return value + jnp.sum(norm.logpdf(y, states[seen], outer))

    def leave(u):
        return jnp.concatenate([u[:2], jnp.exp(u[0]) * jnp.cumsum(u[2:])])

    easier = Easier(leave, lambda u: length * u[0])
    return Job(log_density, 2 + length, easier, truth=lambda: truths.brownian(y, seen, length))


def item_response(students: int = 400, questions: int = 100, seed: int = 0) -> Job:
    """Right and wrong answers: abilities, difficulties and a mean ability; a third are missing."""
    rng = np.random.default_rng(seed)
    ability, difficulty = 0.75 + rng.normal(size=students), rng.normal(size=questions)
    logits = ability[:, None] - difficulty
    answers = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    given = rng.random(logits.shape) < 0.67

    def log_density(x):
        mean, ability, difficulty = x[0], x[1 : 1 + students], x[1 + students :]
        logits = mean + ability[:, None] - difficulty
        prior = norm.logpdf(mean, 0.75, 1.0) + jnp.sum(norm.logpdf(x[1:]))
        return prior + jnp.sum(given * (answers * logits - jnp.logaddexp(0.0, logits)))

    return Job(log_density, 1 + students + questions)


def mixture_model(components: int, weights=None, seed: int = 0) -> Job:
    """Means, log scales and weights of a Gaussian mixture in 1-d; the labels may switch."""
    rng = np.random.default_rng(seed)
    means = np.linspace(-3, 3, components)
    weights = np.full(components, 1 / components) if weights is None else np.asarray(weights)
    rows = rng.choice(components, size=100, p=weights)
    y = means[rows] + 0.6 * rng.normal(size=len(rows))

    def log_density(x):
        centre, log_scale = x[:components], x[components : 2 * components]
        logits = jnp.concatenate([x[2 * components :], jnp.zeros(1)])
        log_weights = logits - logsumexp(logits)
        prior = jnp.sum(norm.logpdf(centre, 0, 3)) + jnp.sum(norm.logpdf(log_scale, 0, 0.7))
        # A flat Dirichlet, with the Jacobian of the softmax.
        prior += jnp.sum(log_weights)
        each = norm.logpdf(y[:, None], centre, jnp.exp(log_scale)) + log_weights
        return prior + jnp.sum(logsumexp(each, axis=1))

    return Job(log_density, 3 * components - 1, copies=components)


def gaussian_process(rows: int = 60, seed: int = 0) -> Job:
    """Classes of points on a line: a latent process with its length and its height unknown."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(-3, 3, size=rows))
    classes = rng.random(rows) < 1 / (1 + np.exp(-3 * np.sin(2 * at)))
    squares = (at[:, None] - at[None, :]) ** 2

    def log_density(x):
        length, height, free = jnp.exp(x[0]), jnp.exp(x[1]), x[2:]
        kernel = height**2 * jnp.exp(-0.5 * squares / length**2) + 1e-4 * jnp.eye(rows)
        latent = jnp.linalg.cholesky(kernel) @ free
        prior = norm.logpdf(x[0], 0, 0.5) + norm.logpdf(x[1], 0.5, 0.7) + jnp.sum(norm.logpdf(free))
        return prior + jnp.sum(classes * latent - jnp.logaddexp(0.0, latent))

    return Job(log_density, 2 + rows)


def cauchy(dim: int = 5) -> Job:
    """The multivariate Cauchy."""
    return Job(lambda x: -0.5 * (dim + 1) * jnp.log1p(jnp.sum(x**2)), dim)


JOBS: dict[str, Callable[[], Job]] = {
    "hierarchy-noncentred": lambda: hierarchy(False),
    "hierarchy-centred": lambda: hierarchy(True),
    "volatility-100": lambda: volatility(100),
    "volatility-500": lambda: volatility(500),
    "cox-200": lambda: cox(200),
    "cox-900": lambda: cox(900),
    "lotka-volterra": lotka_volterra,
    "lorenz": lambda: lorenz(True),
    "lorenz-unknown": lambda: lorenz(False),
    "brownian-unknown": brownian,
    "item-response": item_response,
    "gp-classes": gaussian_process,
    "mixture-model-2": lambda: mixture_model(2, [0.35, 0.65]),
    "mixture-model-3": lambda: mixture_model(3),
    "cauchy": cauchy,
}
# Other data, sizes and weights, on which no setting was chosen.
TWINS: dict[str, Callable[[], Job]] = {
    "hierarchy-noncentred-25": lambda: hierarchy(False, groups=25, rows=5, seed=7),
    "hierarchy-centred-25": lambda: hierarchy(True, groups=25, rows=5, seed=7),
    "volatility-250": lambda: volatility(250, seed=3),
    "cox-400": lambda: cox(400, seed=2),
    "lorenz-40": lambda: lorenz(True, length=40, seed=4),
    "brownian-45": lambda: brownian(45, seed=5),
    "mixture-model-2-uneven": lambda: mixture_model(2, [0.2, 0.8], seed=3),
    "mixture-model-4": lambda: mixture_model(4, [0.1, 0.2, 0.3, 0.4], seed=6),
    "cauchy-10": lambda: cauchy(10),
}
JOBS |= TWINS
