"""Solvers: each against the objective that it says it minimises."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parvi
from oracle import exact
from parvi.fields.pfg.descent import LargestEigenvalue, MeanEigenvalue
from parvi.fields.pfg.functions import Parameters
from parvi.fields.pfg.metric import DiagonalMetric
from parvi.fields.pfg.objective import ExactDivergence
from parvi.fields.pfg.solvers import Problem

# Normal equations of condition number 1e3 in float64.
ROUNDING = 1e-10
DIM, NUM = 3, 40


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def log_density(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * x[0] ** 4 + jnp.sin(x[0] + 2 * x[1])


def problem_of(functions, preconditioner=None, base_shift=0.0, regulariser=None, num=NUM):
    preconditioner = parvi.preconditioners.Identity() if preconditioner is None else preconditioner
    cloud = exact.cloud_of(log_density, np.random.default_rng(0).normal(size=(num, DIM)))
    metric = _metric(preconditioner, cloud)
    return Problem(
        functions,
        ExactDivergence(),
        parvi.fields.Quadratic() if regulariser is None else regulariser,
        metric,
        base_shift,
        cloud,
    )


@eqx.filter_jit
def _metric(preconditioner, cloud):
    return preconditioner.update(cloud, preconditioner.init(cloud.particles))[0]


def begun(problem):
    return eqx.filter_jit(problem.functions.init)(jax.random.key(1), problem.particles)


def solved(solver, problem, seed=0):
    parameters = begun(problem)
    solve = jax.jit(lambda key, memory: solver.solve(key, problem, memory))
    return solve(jax.random.key(seed), solver.init(parameters))


class _NoDivergence(ExactDivergence):
    def __call__(self, key, functions, parameters, particles):
        values, divergences = super().__call__(key, functions, parameters, particles)
        return values, 0.0 * divergences


FEATURES = {"linear": parvi.functions.Linear(), "random": parvi.functions.RandomFeatures(5)}
each_features = pytest.mark.parametrize("features", FEATURES)
each_shift = pytest.mark.parametrize("base_shift", [0.0, 0.4])


@each_features
@each_shift
@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_ridge_solves_the_normal_equations(features, base_shift, ridge):
    """The gradient of loss + ridge/2 tr(H W W^T) is zero there: brute force, no formula."""
    problem = problem_of(FEATURES[features], parvi.preconditioners.Fisher(), base_shift)
    parameters, _, _ = solved(parvi.fields.Ridge(ridge), problem)

    def penalised(weights):
        loss = problem.loss(jax.random.key(0), Parameters(parameters.frozen, weights))
        return loss + 0.5 * ridge * jnp.sum(weights * problem.metric.apply(weights.T).T)

    gradient = jax.jit(jax.grad(penalised))
    at_zero = gradient(jnp.zeros_like(parameters.trainable))
    at_solution = gradient(parameters.trainable)
    assert np.max(np.abs(at_solution)) < ROUNDING * np.max(np.abs(at_zero))


@each_features
@each_shift
def test_gradient_descent_converges_to_ridge(features, base_shift):
    problem = problem_of(FEATURES[features], parvi.preconditioners.FisherDiagonal(), base_shift)
    expected, _, _ = solved(parvi.fields.Ridge(0.0), problem)
    # Adam with a step that shrinks to 1e-6 of the weights: settles to about that in all but the
    # flattest directions, whose curvature is some 1e-4 of the steepest.
    schedule = optax.exponential_decay(0.1, 3000, 0.1)
    descent = parvi.fields.GradientDescent(optax.adam(schedule), num_steps=15000)
    found, _, _ = solved(descent, problem)
    assert exact.relative_error(found.trainable, expected.trainable) < 1e-4


@pytest.mark.parametrize("unit", [MeanEigenvalue(), LargestEigenvalue()])
def test_relative_descent_knows_no_units(unit):
    """Scores and H times 1000, as of 1000 times the data: the same fit at the same rate."""
    problem = problem_of(parvi.functions.Linear(), parvi.preconditioners.FisherDiagonal())
    factor = 1000.0
    metric = DiagonalMetric(factor * problem.metric.diagonal)
    where = lambda p: (p.metric, p.cloud.scores)  # noqa: E731
    scaled = eqx.tree_at(where, problem, (metric, factor * problem.scores))
    # The divergence does not grow with the scores: leave it out of both.
    without = lambda p: eqx.tree_at(lambda q: q.divergence, p, _NoDivergence())  # noqa: E731
    solver = parvi.fields.GradientDescent(optax.sgd(1e-2), num_steps=20, unit=unit)
    expected, _, _ = solved(solver, without(problem))
    found, _, _ = solved(solver, without(scaled))
    assert exact.relative_error(found.trainable, expected.trainable) < ROUNDING
    blunt = parvi.fields.GradientDescent(optax.sgd(1e-2), num_steps=20)
    other, _, _ = solved(blunt, without(scaled))
    assert not exact.relative_error(other.trainable, expected.trainable) < 1e-2


def test_relative_to_the_largest_eigenvalue_is_stable_where_the_mean_is_not():
    """One coordinate of 300 has nearly all of H: the mean is far below it."""
    diagonal = np.ones(300)
    diagonal[7] = 1e6
    metric = DiagonalMetric(jnp.asarray(diagonal))
    like = jnp.zeros(300)
    assert float(metric.largest_eigenvalue(like)) == pytest.approx(1e6, rel=1e-3)
    density = lambda x: -0.5 * jnp.sum(metric.diagonal * x**2)  # noqa: E731
    particles = np.random.default_rng(0).normal(size=(20, 300))
    bounded = {}
    for name, unit in {"mean": MeanEigenvalue(), "largest": LargestEigenvalue()}.items():
        solver = parvi.fields.GradientDescent(optax.sgd(0.1), num_steps=50, unit=unit)
        field = parvi.fields.PFG(
            parvi.functions.Linear(), parvi.preconditioners.FisherDiagonal(), solver
        )
        fit = exact.fit(field, density, particles)
        bounded[name] = bool(np.max(np.abs(fit.values)) < 1e3)
    assert bounded == {"mean": False, "largest": True}


def test_base_shift_only_moves_what_is_fitted():
    """c H^-1 s + f is fitted to the same velocity: for scores within the class nothing changes."""
    rng = np.random.default_rng(0)
    density = exact.gaussian(np.ones(DIM), exact.covariance_of(rng, [0.5, 1.0, 2.0]))
    particles = exact.particles_with(rng, NUM, np.zeros(DIM), np.eye(DIM))

    def fitted(base_shift):
        field = parvi.fields.PFG(
            parvi.functions.Linear(),
            parvi.preconditioners.Fisher(),
            parvi.fields.Ridge(0.0),
            base_shift=base_shift,
        )
        return exact.fit(field, density, particles)

    plain, shifted = fitted(0.0), fitted(0.3)
    assert exact.relative_error(shifted.values, plain.values) < ROUNDING
    at = eqx.filter_jit(lambda velocity: velocity(jnp.asarray(particles[0])))
    assert exact.relative_error(at(shifted.velocity), at(plain.velocity)) < ROUNDING
    # The rate has a random probe for the Laplacian of log p, exact where the mean over probes is;
    # with a Hessian of off-diagonal size 1, one probe a particle leaves 1/sqrt(n) of it.
    assert float(shifted.kl_rate) == pytest.approx(float(plain.kl_rate), abs=0.3)
    cloud = exact.cloud_of(density, particles)
    divergences = eqx.filter_jit(lambda velocity: velocity.divergences(cloud))(shifted.velocity)
    values, scores = np.asarray(shifted.values), np.asarray(cloud.scores)
    exactly = -np.mean(np.sum(values * scores, axis=1) + np.asarray(divergences))
    assert exactly == pytest.approx(float(plain.kl_rate), rel=ROUNDING)


def normal_equations(functions, frozen, problem, rows):
    """G and T from their definitions, on some rows."""
    x, s = np.asarray(problem.particles)[rows], np.asarray(problem.scores)[rows]
    weights = jnp.eye(functions.num_weights(DIM))

    def psi(point):
        # Row by row through the public function: W = e_k e_0^T picks one feature.
        pick = lambda row: functions(  # noqa: E731
            Parameters(frozen, jnp.zeros((DIM, len(weights))).at[0].set(row)), point
        )[0]
        return jax.vmap(pick)(weights)

    both = jax.jit(jax.vmap(lambda point: (psi(point), jax.jacfwd(psi)(point))))
    features, gradients = map(np.asarray, both(x))
    gram = features.T @ features / len(x)
    score_features = s.T @ features / len(x)
    b = (1 - problem.base_shift) * score_features + gradients.mean(axis=0).T
    return gram, np.asarray(problem.metric.solve(jnp.asarray(b.T))).T


@pytest.mark.first_quick
@each_features
@each_shift
def test_held_out_ridge_picks_the_best_on_held_out_particles(features, base_shift):
    problem = problem_of(FEATURES[features], parvi.preconditioners.Fisher(), base_shift)
    solver = parvi.fields.HeldOutRidge(ridges=(1e-4, 1e-2, 0.1, 1.0, 10.0), holdout=0.25)
    parameters, _, extra = solved(solver, problem)
    order = np.asarray(jax.random.permutation(jax.random.key(0), NUM))
    held_out, train = order[:10], order[10:]

    frozen = parameters.frozen
    gram, target = normal_equations(problem.functions, frozen, problem, train)
    held = problem.subset(jnp.asarray(held_out))
    loss = jax.jit(lambda weights: held.loss(jax.random.key(0), Parameters(frozen, weights)))
    scores = [
        float(loss(target @ np.linalg.inv(gram + ridge * np.eye(len(gram)))))
        for ridge in solver.ridges
    ]
    best = solver.ridges[int(np.argmin(scores))]
    assert float(extra["ridge"]) == best
    # Not a tie: the choice means something.
    assert np.sort(scores)[1] - np.sort(scores)[0] > 1e-6

    gram, target = normal_equations(problem.functions, frozen, problem, order)
    expected = target @ np.linalg.inv(gram + best * np.eye(len(gram)))
    assert exact.relative_error(parameters.trainable, expected) < ROUNDING


def test_held_out_ridge_with_one_particle():
    """Nothing can be held out: still finite."""
    problem = problem_of(parvi.functions.Linear(), num=1)
    parameters, _, _ = solved(parvi.fields.HeldOutRidge(), problem)
    assert np.all(np.isfinite(parameters.trainable))


# Gradient descent. The loop is transcribed with optax, one step at a time.

SGD = optax.sgd(0.05, momentum=0.9)


def descend(problem, parameters, num_steps, state=None):
    """Every iterate, and the optimiser's state after the last."""
    trainable = parameters.trainable
    state = SGD.init(trainable) if state is None else state
    gradient = jax.jit(
        jax.grad(lambda w: problem.loss(jax.random.key(0), Parameters(parameters.frozen, w)))
    )
    iterates = [trainable]
    for _ in range(num_steps):
        updates, state = SGD.update(gradient(trainable), state, trainable)
        trainable = optax.apply_updates(trainable, updates)
        iterates.append(trainable)
    return iterates, state


def assert_same(one, other, tolerance=ROUNDING):
    for a, b in zip(jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other), strict=True):
        assert exact.relative_error(a, b) < tolerance


def test_warm_up_only_at_the_first_fit():
    problem = problem_of(parvi.functions.MLP(5))
    start = begun(problem)
    solver = parvi.fields.GradientDescent(SGD, num_steps=3, warm_up=4)
    first, memory, _ = solved(solver, problem)
    iterates, state = descend(problem, start, 7)
    assert_same(first.trainable, iterates[7])
    # The second fit goes on from there, with the optimiser's momentum and without a warm-up.
    second, _, _ = jax.jit(lambda m: solver.solve(jax.random.key(5), problem, m))(memory)
    iterates, _ = descend(problem, first, 3, state)
    assert_same(second.trainable, iterates[3])


def test_early_stopping_returns_the_best_on_held_out_particles():
    # Few particles and a wide net: the held-out objective falls and then rises.
    problem = problem_of(parvi.functions.MLP(40, jnp.tanh), num=12)
    solver = parvi.fields.GradientDescent(SGD, num_steps=400, holdout=0.5, patience=20)
    parameters, _, extra = solved(solver, problem)
    start = begun(problem)
    key_split, _ = jax.random.split(jax.random.key(0))
    order = jax.random.permutation(key_split, 12)
    held_out, train = problem.subset(order[:6]), problem.subset(order[6:])

    done = int(extra["inner_steps"])
    assert done < 400  # it stopped early
    iterates, _ = descend(train, start, done)
    score = jax.jit(lambda w: held_out.loss(jax.random.key(0), Parameters(start.frozen, w)))
    scores = np.array([float(score(weights)) for weights in iterates])
    best = int(np.argmin(scores))
    assert best > 0
    assert done - best == 20  # patience
    assert_same(parameters.trainable, iterates[best])


def test_early_stopping_where_nothing_helps():
    """A step that only makes it worse: the start is returned, after ``patience`` steps."""
    problem = problem_of(parvi.functions.MLP(5), num=12)
    wild = parvi.fields.GradientDescent(optax.sgd(1e3), num_steps=50, holdout=0.5, patience=3)
    parameters, _, extra = solved(wild, problem)
    start = begun(problem)
    assert int(extra["inner_steps"]) == 3
    assert_same(parameters.trainable, start.trainable)


def test_batches():
    """Each inner step sees ``batch_size`` particles, drawn afresh; on average the whole."""
    problem = problem_of(parvi.functions.Linear())
    start = begun(problem)
    step_size = 0.1
    solver = parvi.fields.GradientDescent(optax.sgd(step_size), num_steps=1, batch_size=10)
    memory = solver.init(start)

    def move(key):
        return solver.solve(key, problem, memory)[0].trainable - start.trainable

    moves = np.asarray(jax.jit(jax.vmap(move))(jax.random.split(jax.random.key(2), 2000)))
    whole = parvi.fields.GradientDescent(optax.sgd(step_size), num_steps=1)
    expected = whole.solve(jax.random.key(0), problem, whole.init(start))[0].trainable
    spread = moves.std(axis=0)
    noisy = spread > 1e-12
    z_scores = np.abs(moves.mean(axis=0) - expected)[noisy] / (spread[noisy] / np.sqrt(2000))
    # 12 scores beyond 4.5: probability 1e-4, and the seed is fixed.
    assert np.max(z_scores) < 4.5
    # Batches of 10 from W = 0: the move's variance is that of s psi^T over the particles, / 10.
    features = np.concatenate([np.ones((NUM, 1)), problem.particles], axis=1)
    products = np.asarray(problem.scores)[:, :, None] * features[:, None, :]
    expected_spread = step_size * products.std(axis=0) / np.sqrt(10)
    # A standard deviation from 2000 draws is right to about 2 %; heavy products, so 10 %.
    np.testing.assert_allclose(spread, expected_spread, rtol=0.1)


def test_convex_regulariser_is_minimised():
    """h(f) = sum f^4 / 4 over constants: the minimiser is the cube root of the mean score."""
    regulariser = parvi.fields.Convex(lambda f: jnp.sum(f**4) / 4)
    problem = problem_of(parvi.functions.Linear(), regulariser=regulariser)
    start = begun(problem)
    mean_score = jnp.mean(problem.scores, axis=0)
    constant = jnp.zeros_like(start.trainable).at[:, 0].set(jnp.cbrt(mean_score))
    gradient = jax.grad(lambda w: problem.loss(jax.random.key(0), Parameters((), w)))(constant)
    assert np.max(np.abs(gradient[:, 0])) < ROUNDING
    assert np.max(np.abs(mean_score)) > 1e-3


def init(solver, functions, num=NUM, **settings):
    field = parvi.fields.PFG(functions, parvi.preconditioners.Identity(), solver, **settings)
    return field.init(jax.random.key(0), jnp.zeros((num, DIM)))


def test_check():
    cubic = parvi.fields.Convex(lambda f: jnp.sum(jnp.abs(f) ** 3) / 3)
    for solver in (parvi.fields.Ridge(0.1), parvi.fields.HeldOutRidge()):
        with pytest.raises(ValueError, match=r"linear in their weights .* got MLP"):
            init(solver, parvi.functions.MLP(4))
        with pytest.raises(ValueError, match="quadratic objective only, got Convex"):
            init(solver, parvi.functions.Linear(), regulariser=cubic)
    with pytest.raises(ValueError, match=r"Ridge\(0\) fits 4 features and needs more particles"):
        init(parvi.fields.Ridge(0.0), parvi.functions.Linear(), num=4)
    init(parvi.fields.Ridge(0.0), parvi.functions.Linear(), num=5)
    init(parvi.fields.Ridge(0.1), parvi.functions.Linear(), num=1)
    with pytest.raises(ValueError, match=r"between 1 and the number of particles \(40\), got 41"):
        init(parvi.fields.GradientDescent(SGD, batch_size=41), parvi.functions.MLP(4))
    init(
        parvi.fields.GradientDescent(SGD, batch_size=40), parvi.functions.MLP(4), regulariser=cubic
    )
    with pytest.raises(ValueError, match="PFG needs a solver"):
        parvi.fields.PFG(parvi.functions.Linear())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parvi.fields.Ridge(-1.0), "ridge must not be negative"),
        (lambda: parvi.fields.HeldOutRidge(ridges=()), "ridges must be positive"),
        (lambda: parvi.fields.HeldOutRidge(ridges=(0.0, 1.0)), "ridges must be positive"),
        (lambda: parvi.fields.HeldOutRidge(holdout=1.0), "holdout must be between 0 and 1"),
        (lambda: parvi.fields.GradientDescent(SGD, num_steps=0), "num_steps must be at least 1"),
        (lambda: parvi.fields.GradientDescent(SGD, warm_up=-1), "warm_up at least 0"),
        (lambda: parvi.fields.GradientDescent(SGD, holdout=1.5), "holdout must be between 0 and 1"),
    ],
)
def test_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
