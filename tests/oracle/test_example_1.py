"""Example 1: between Gaussians every regulariser has its velocity in closed form.

The velocities at N(mean, covariance) towards N(target_mean, target_covariance), their mean paths
and their Gaussian ODEs, from the appendix of Dong et al. 2023 ("Discussion of Example 1"). For
affine velocities the particles' moments are exact and so is the comparison, up to rounding.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from oracle import exact
from parvi.fields.svgd import SVGDVelocity

# 1e-16 times condition numbers of at most 1e3, with a margin.
ROUNDING = 1e-10
DIM = 4


class Case:
    """Two Gaussians, particles that are the first one exactly, and a kernel's matrix."""

    def __init__(self, dim=DIM, seed=0):
        rng = np.random.default_rng(seed)
        self.mean, self.target_mean = rng.normal(size=dim), 2 + rng.normal(size=dim)
        self.covariance = exact.covariance_of(rng, np.geomspace(0.5, 2, dim))
        self.target_covariance = exact.covariance_of(rng, np.geomspace(0.2, 5, dim))
        self.matrix = exact.covariance_of(rng, np.geomspace(0.3, 1, dim))
        self.particles = exact.particles_with(rng, 40, self.mean, self.covariance)
        self.log_density = exact.gaussian(self.target_mean, self.target_covariance)
        self.elsewhere = self.mean + rng.normal(size=(8, dim))


@pytest.fixture(scope="module")
def case():
    return Case()


# Each as g(x) = slope x + offset, at the moments m and S of the particles.


def linear_svgd(case, m, S):
    """(1): -S*^-1 [(S + (m - m*) m^T) K x + m - m*] + K x."""
    precision = np.linalg.inv(case.target_covariance)
    gap = m - case.target_mean
    slope = (np.eye(len(m)) - precision @ (S + np.outer(gap, m))) @ case.matrix
    return slope, -precision @ gap


def plain(case, m, S):
    """(3): -S*^-1 (x - m*) + S^-1 (x - m)."""
    precision = np.linalg.inv(case.target_covariance)
    inverse = np.linalg.inv(S)
    return inverse - precision, precision @ case.target_mean - inverse @ m


def mahalanobis(case, m, S):
    """(4): -(x - m*) + S* S^-1 (x - m)."""
    stretch = case.target_covariance @ np.linalg.inv(S)
    return stretch - np.eye(len(m)), case.target_mean - stretch @ m


def optimal_transport(case, m, S):
    """-(x - m*) + S^-1/2 (S^1/2 S* S^1/2)^1/2 S^-1/2 (x - m)."""
    root = exact.square_root(S)
    inverse = np.linalg.inv(root)
    stretch = inverse @ exact.square_root(root @ case.target_covariance @ root) @ inverse
    return stretch - np.eye(len(m)), case.target_mean - stretch @ m


def pfg(preconditioner):
    return parvi.fields.PFG(parvi.functions.Linear(), preconditioner, parvi.fields.Ridge(0.0))


AFFINE = {
    "svgd_linear": (
        linear_svgd,
        lambda case: parvi.fields.SVGD(parvi.kernels.LinearKernel(case.matrix)),
    ),
    "pfg_plain": (plain, lambda case: pfg(parvi.preconditioners.Identity())),
    "pfg_mahalanobis": (mahalanobis, lambda case: pfg(parvi.preconditioners.Hessian())),
}

each_affine = pytest.mark.parametrize(("formula", "make"), AFFINE.values(), ids=AFFINE.keys())


@each_affine
def test_velocity(formula, make, case):
    fit = exact.fit(make(case), case.log_density, case.particles)
    slope, offset = formula(case, case.mean, case.covariance)
    assert exact.relative_error(fit.values, case.particles @ slope.T + offset) < ROUNDING
    elsewhere = case.elsewhere @ slope.T + offset
    assert exact.relative_error(jax.vmap(fit.velocity)(case.elsewhere), elsewhere) < ROUNDING


def mean_path_linear_svgd(case):
    """-S*^-1 [(S + (m - m*) m^T) K m + m - m*] + K m."""
    moved = case.matrix @ case.mean
    gap = case.mean - case.target_mean
    pulled = case.covariance @ moved + gap * (case.mean @ moved) + gap
    return moved - np.linalg.solve(case.target_covariance, pulled)


def mean_path_plain(case):
    return np.linalg.solve(case.target_covariance, case.target_mean - case.mean)


def mean_path_mahalanobis(case):
    return case.target_mean - case.mean


MEAN_PATHS = {
    "svgd_linear": mean_path_linear_svgd,
    "pfg_plain": mean_path_plain,
    "pfg_mahalanobis": mean_path_mahalanobis,
}


@pytest.mark.parametrize("name", AFFINE)
def test_mean_path(name, case):
    """d mean / dt is the velocity's average over the particles."""
    fit = exact.fit(AFFINE[name][1](case), case.log_density, case.particles)
    expected = MEAN_PATHS[name](case)
    assert exact.relative_error(np.mean(fit.values, axis=0), expected) < ROUNDING


def gaussian_ode(case, formula, time, num_steps=200):
    """dm/dt = A m + b and dS/dt = A S + S A^T, by the classical Runge-Kutta method."""
    m, S = case.mean, case.covariance
    step = time / num_steps

    def rates(m, S):
        slope, offset = formula(case, m, S)
        return slope @ m + offset, slope @ S + S @ slope.T

    for _ in range(num_steps):
        k1 = rates(m, S)
        k2 = rates(m + step / 2 * k1[0], S + step / 2 * k1[1])
        k3 = rates(m + step / 2 * k2[0], S + step / 2 * k2[1])
        k4 = rates(m + step * k3[0], S + step * k3[1])
        m = m + step / 6 * (k1[0] + 2 * k2[0] + 2 * k3[0] + k4[0])
        S = S + step / 6 * (k1[1] + 2 * k2[1] + 2 * k3[1] + k4[1])
    return m, S


@each_affine
def test_flow_follows_the_gaussian_ode(formula, make, case):
    """Euler's method with small steps: its error halves with the step, and vanishes with it."""
    time, num_steps = 0.2, 40
    expected_mean, expected_covariance = gaussian_ode(case, formula, time)

    def reached(factor):
        sampler = parvi.Flow(make(case), parvi.steppers.Constant(time / (factor * num_steps)))
        result = parvi.sample(
            case.log_density, case.particles, sampler=sampler, num_steps=factor * num_steps
        )
        mean, covariance = exact.moments(result.particles)
        return np.concatenate([mean - expected_mean, (covariance - expected_covariance).ravel()])

    coarse, fine = reached(1), reached(2)
    # First order: halved up to the next order, a share of (rates x step) ~ 10 x 0.005.
    assert np.linalg.norm(coarse) / np.linalg.norm(fine) == pytest.approx(2, rel=0.1)
    # Extrapolated to a step of zero only that next order is left.
    assert np.linalg.norm(2 * fine - coarse) < 0.1 * np.linalg.norm(fine)
    moved = np.linalg.norm(expected_mean - case.mean)
    assert np.linalg.norm(2 * fine - coarse) < 1e-3 * moved


def test_mahalanobis_mean_path_is_the_optimal_transport_path(case):
    """(4) moves the mean along the segment that optimal transport takes."""
    slope, offset = optimal_transport(case, case.mean, case.covariance)
    transport = slope @ case.mean + offset
    fit = exact.fit(pfg(parvi.preconditioners.Hessian()), case.log_density, case.particles)
    assert exact.relative_error(np.mean(fit.values, axis=0), transport) < ROUNDING

    step, num_steps = 0.1, 12
    sampler = parvi.Flow(pfg(parvi.preconditioners.Hessian()), parvi.steppers.Constant(step))
    result = parvi.sample(case.log_density, case.particles, sampler=sampler, num_steps=num_steps)
    left = (1 - step) ** num_steps
    on_segment = case.target_mean + left * (case.mean - case.target_mean)
    assert exact.relative_error(result.particles.mean(axis=0), on_segment) < ROUNDING

    # The plain gradient leaves the segment: the angle between the two is not small.
    other = np.mean(
        exact.fit(pfg(parvi.preconditioners.Identity()), case.log_density, case.particles).values, 0
    )
    cosine = other @ transport / np.linalg.norm(other) / np.linalg.norm(transport)
    assert cosine < 0.95


def test_optimal_transport_arrives_at_unit_time(case):
    slope, offset = optimal_transport(case, case.mean, case.covariance)
    arrived = case.particles + case.particles @ slope.T + offset
    mean, covariance = exact.moments(arrived)
    assert exact.relative_error(mean, case.target_mean) < ROUNDING
    assert exact.relative_error(covariance, case.target_covariance) < ROUNDING
    # It is the optimal map because it is the gradient of a convex function (Brenier).
    stretch = slope + np.eye(DIM)
    assert exact.relative_error(stretch, stretch.T) < ROUNDING
    assert np.linalg.eigvalsh(stretch)[0] > 0


def test_only_linear_svgd_rotates(case):
    """The curl of (1) is that of m* m^T where K and the target's covariance are the identity."""
    log_density = exact.gaussian(case.target_mean, np.eye(DIM))

    def antisymmetric(field):
        velocity = exact.fit(field, log_density, case.particles).velocity
        jacobian = np.asarray(jax.jacfwd(velocity)(jnp.asarray(case.elsewhere[0])))
        return (jacobian - jacobian.T) / 2

    outer = np.outer(case.target_mean, case.mean)
    curl = antisymmetric(parvi.fields.SVGD(parvi.kernels.LinearKernel()))
    assert exact.relative_error(curl, (outer - outer.T) / 2) < ROUNDING
    assert np.max(np.abs(antisymmetric(pfg(parvi.preconditioners.Identity())))) < ROUNDING


# (2) SVGD with the RBF kernel exp(-|x - y|^2 / (2 sigma^2)) / sigma.
#
# The integral is C_x times the mean of grad log p*/p under N(mu_x, (I / sigma^2 + S^-1)^-1):
#
#     g(x) = -C_x [(S*^-1 - S^-1) mu_x + S*^-1 (m - m*)],   mu_x = (I + sigma^2 S^-1)^-1 (x - m),
#     C_x = sigma^(d-1) |S + sigma^2 I|^-1/2 exp(-1/2 (x - m)^T (S + sigma^2 I)^-1 (x - m)).
#
# The appendix has this up to slips: its integrand has the sign of grad log p/p*, so that its g
# lacks the minus; its last C_x lacks sigma^(d-1) (the line above it has |S (I/sigma^2 + S^-1)|,
# which is sigma^-2d |S + sigma^2 I|: only for d = 1 does nothing remain); the exponential in
# between should carry -(S + sigma^2 I)^-1, not +S^-1; and its 2 pi should stand to the power d,
# which cancels. Both are settled by quadrature below.


def rbf_velocity(case, sigma, x):
    dim = len(case.mean)
    precision, inverse = np.linalg.inv(case.target_covariance), np.linalg.inv(case.covariance)
    wide = case.covariance + sigma**2 * np.eye(dim)
    centred = x - case.mean
    mu_x = np.linalg.solve(np.eye(dim) + sigma**2 * inverse, centred.T).T
    exponent = -0.5 * np.sum(centred * np.linalg.solve(wide, centred.T).T, axis=1)
    c_x = sigma ** (dim - 1) / np.sqrt(np.linalg.det(wide)) * np.exp(exponent)
    pull = mu_x @ (precision - inverse) + precision @ (case.mean - case.target_mean)
    return -c_x[:, None] * pull


def rbf_mean_path(case, sigma):
    """E[g] over x: mu_x averages out and E[C_x] = sigma^(d-1) |2 S + sigma^2 I|^-1/2."""
    dim = len(case.mean)
    wide = 2 * case.covariance + sigma**2 * np.eye(dim)
    weight = sigma ** (dim - 1) / np.sqrt(np.linalg.det(wide))
    return weight * np.linalg.solve(case.target_covariance, case.target_mean - case.mean)


def quadrature(case, order):
    """Nodes and weights of N(mean, covariance), a product of Gauss-Hermite rules."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    dim = len(case.mean)
    grid = np.stack(np.meshgrid(*[nodes] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    product = np.prod(np.meshgrid(*[weights / weights.sum()] * dim, indexing="ij"), axis=0)
    return case.mean + grid @ np.linalg.cholesky(case.covariance).T, product.ravel()


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("sigma", [0.8, 1.5])
def test_rbf_formula_by_quadrature(dim, sigma):
    """E[k(y, x) s(y) + grad_y k(y, x)], as SVGD defines it, without integration by parts."""
    case = Case(dim)
    nodes, weights = quadrature(case, 48)
    scores = -np.linalg.solve(case.target_covariance, (nodes - case.target_mean).T).T

    def average(x):
        kernel = np.exp(-np.sum((nodes - x) ** 2, axis=1) / (2 * sigma**2)) / sigma
        terms = kernel[:, None] * (scores - (nodes - x) / sigma**2)
        return weights @ terms

    expected = np.stack([average(x) for x in case.elsewhere])
    # 48 nodes a dimension resolve a Gaussian bump of this width to 8 digits.
    assert exact.relative_error(rbf_velocity(case, sigma, case.elsewhere), expected) < 1e-7
    values = rbf_velocity(case, sigma, nodes)
    assert exact.relative_error(weights @ values, rbf_mean_path(case, sigma)) < 1e-7


@pytest.mark.parametrize("sigma", [0.8, 1.5])
def test_rbf_velocity_of_many_particles(sigma):
    """The library's velocity from independent particles, unbiased for g at other points."""
    case = Case(2)
    batches, num = 40, 2000
    rng = np.random.default_rng(1)
    factor = np.linalg.cholesky(case.covariance)
    particles = case.mean + rng.normal(size=(batches, num, 2)) @ factor.T
    points = case.mean + rng.normal(size=(batches, 200, 2)) @ factor.T
    kernel = parvi.kernels.RBF(parvi.kernels.Fixed(2 * sigma**2), normalised=True)

    @jax.jit
    def velocities(particles, points):
        scores = jax.vmap(jax.grad(case.log_density))(particles)
        velocity = SVGDVelocity(particles, scores, kernel)
        return jax.vmap(velocity)(jnp.asarray(case.elsewhere)), jax.vmap(velocity)(points)

    pairs = [velocities(y, x) for y, x in zip(particles, points, strict=True)]
    at_points = np.stack([first for first, _ in pairs])
    mean_velocities = np.stack([np.mean(second, axis=0) for _, second in pairs])

    def z_scores(batch_values, expected):
        error = np.std(batch_values, axis=0, ddof=1) / np.sqrt(batches)
        return np.abs(np.mean(batch_values, axis=0) - expected) / error

    # 18 scores with 39 degrees of freedom: one beyond 4.5 has probability 0.001, and the seed is
    # fixed. The errors are about 1 % of the velocity: a missing sign or power of sigma is seen.
    expected = rbf_velocity(case, sigma, case.elsewhere)
    assert np.max(z_scores(at_points, expected)) < 4.5
    assert np.max(z_scores(mean_velocities, rbf_mean_path(case, sigma))) < 4.5
    relative = np.std(at_points, axis=0) / np.sqrt(batches) / np.max(np.abs(expected))
    assert np.max(relative) < 0.02


def test_rbf_velocity_vanishes_far_away():
    """g = O(|x| exp(-|x|^2 / 2)) in units of S + sigma^2 I, where PFG's grows with x."""
    case = Case(2)
    far = case.mean + np.array([[0.0, 12.0]])
    fit = exact.fit(
        parvi.fields.SVGD(parvi.kernels.RBF(parvi.kernels.Fixed(2.0))),
        case.log_density,
        case.particles,
    )
    assert np.linalg.norm(jax.vmap(fit.velocity)(far)) < 1e-6
    other = exact.fit(pfg(parvi.preconditioners.Hessian()), case.log_density, case.particles)
    assert np.linalg.norm(jax.vmap(other.velocity)(far)) > 1
