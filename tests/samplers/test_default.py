"""The default on what it is for, against exact draws and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.cloud import Cloud
from parvi.fields import PFG, Irrotational, Whitened
from parvi.functions import Linear
from parvi.geometry.drift import BOUND, tail_error
from parvi.geometry.frame import own_frame
from parvi.preconditioners import WhitenedCurvature
from parvi.results.metrics import worth
from parvi.run.compile.programs import Context, begin, one_step
from parvi.run.run import Run
from parvi.samplers.default import affine
from parvi.samplers.explore import Explore
from parvi.samplers.verify import Verify
from parvi.targets import zoo

NUM = 512


def start(dim, num=NUM, seed=0):
    return np.random.default_rng(seed).normal(size=(num, dim))


def stages(result):
    """Names in the order in which they came."""
    return list(dict.fromkeys(result.history["stage"].tolist()))


# No coordinate of it is followed by the other, so no coupling makes a Gaussian of it. It is one
# target, so that its tests share their programs.
TURNED = zoo.banana(turned=0.4)
ILL_CONDITIONED = zoo.rotated_gaussian(20, 1e4)


@pytest.fixture(scope="module")
def banana_run():
    return parvi.sample(TURNED.target, start(2))


@pytest.mark.parametrize(
    ("exact", "least"),
    [
        # A worth of 1 is that of independent draws; the funnel's varies from 1 to 3 between keys.
        pytest.param(zoo.funnel(), 0.8, marks=pytest.mark.slow),
        pytest.param(zoo.student_t(), 2.0, marks=pytest.mark.slow),
        (ILL_CONDITIONED, 2.0),
    ],
    ids=["funnel", "Student-t", "ill-conditioned Gaussian"],
)
@pytest.mark.xdist_group("banana")
def test_each_particle_is_worth_several_draws(exact, least):
    result = parvi.sample(exact.target, start(exact.target.layout.dim))
    assert result.status == parvi.Status.CONVERGED
    # One hill is not tempered.
    assert "temper" not in stages(result)
    truth = exact.draw(np.random.default_rng(1), 10_000)
    assert worth(result.particles, truth) > least


@pytest.mark.xdist_group("banana")
def test_a_bent_target_flies_and_bends_again(banana_run):
    assert banana_run.status == parvi.Status.CONVERGED
    first = ["affine", "scout", "bend", "fly", "explore", "gather", "polish", "compare", "survey"]
    names = [name.removesuffix(", undone") for name in stages(banana_run)]
    # Scouts that end far apart on the ridge are weighed first.
    assert [name for name in names if name != "weigh"] == first
    assert (banana_run.history["stage"] == "fly").sum() == 320
    truth = TURNED.draw(np.random.default_rng(1), 10_000)
    assert worth(banana_run.particles, truth) > 1.5
    # Every arrival is one gradient a particle, and the start one more; scouts and draws of a survey
    # are few, and a comparison takes none.
    looks = ["scout", "weigh", "compare", "compare, undone", "survey"]
    others = np.isin(banana_run.history["stage"], looks)
    own = banana_run.history["gradients"][others].sum()
    assert 0 < own < 15 * NUM
    assert banana_run.num_gradients == NUM * (1 + (~others).sum()) + own


@pytest.mark.xdist_group("banana")
def test_num_steps_is_a_maximum(banana_run):
    few = parvi.sample(TURNED.target, start(2), num_steps=40)
    assert few.num_steps == 40
    assert few.status == parvi.Status.MAX_STEPS
    for name, column in few.history.items():
        np.testing.assert_array_equal(column, banana_run.history[name][:40])
    many = parvi.sample(ILL_CONDITIONED.target, start(20), num_steps=500)
    assert many.status == parvi.Status.CONVERGED
    assert many.num_steps < 100


@pytest.mark.slow
def test_arrives_from_a_wild_start():
    """Regression with raw units: scores from 1e0 to 1e9, the posterior 1e3 sds away."""
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(200), rng.normal(100, 15, 200), rng.normal(size=200)])
    response = design @ [20.0, 0.6, 5.0] + 18 * rng.normal(size=200)

    def log_density(p):
        residual = jnp.asarray(response) - jnp.asarray(design) @ p["beta"]
        return -0.5 * jnp.sum((residual / p["sd"]) ** 2) - 200 * jnp.log(p["sd"])

    like = {"beta": np.zeros(3), "sd": np.ones(())}
    target = parvi.Target(log_density, like=like, constraints={"sd": parvi.Positive()})
    init = {"beta": start(3), "sd": np.exp(start(1, seed=1)[:, 0])}
    result = parvi.sample(target, init)
    assert result.status == parvi.Status.CONVERGED
    # Flat priors: beta is a Student-t around least squares with 200 - 1 - 3 degrees of freedom.
    inverse = np.linalg.inv(design.T @ design)
    best = inverse @ design.T @ response
    variance = np.sum((response - design @ best) ** 2) / (200 - 1 - 3 - 2) * np.diag(inverse)
    beta = result.particles["beta"]
    assert np.max(np.abs(beta.mean(axis=0) - best) / np.sqrt(variance)) < 0.02
    np.testing.assert_allclose(beta.var(axis=0), variance, rtol=0.03)


def unequal(dim, means, weights):
    """Unit Gaussians with these weights; means along the first coordinates."""
    places = np.zeros((len(weights), dim))
    places[:, : np.shape(means)[1]] = means

    def log_density(x):
        squares = jnp.sum((x - jnp.asarray(places, x.dtype)) ** 2, axis=1)
        return jax.scipy.special.logsumexp(jnp.log(jnp.asarray(weights, x.dtype)) - 0.5 * squares)

    return log_density, places


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dim", "means", "weights"),
    [
        (2, [[-3], [3]], [0.3, 0.7]),
        (20, [[4, 4], [-4, 4], [-4, -4], [4, -4]], [0.55, 0.25, 0.15, 0.05]),
    ],
    ids=["two", "four"],
)
def test_separated_modes_get_their_weights(dim, means, weights):
    log_density, places = unequal(dim, means, weights)
    result = parvi.sample(log_density, start(dim))
    assert result.status == parvi.Status.CONVERGED
    nearest = np.argmin(((result.particles[:, None] - places) ** 2).sum(axis=2), axis=1)
    found = np.bincount(nearest, minlength=len(weights)) / NUM
    assert "temper" in stages(result)
    assert np.max(np.abs(found - weights)) < 0.06
    # The Gaussians are normalised but for their constants.
    assert abs(result.log_evidence() - 0.5 * dim * np.log(2 * np.pi)) < 0.2


@pytest.mark.slow
def test_scouts_find_modes_that_the_cloud_has_lost():
    """All particles begin in one mode but for the few that scouts are taken from."""
    log_density, _ = unequal(3, [[-6], [6]], [0.5, 0.5])
    first = start(3)
    first[:, 0] -= 6
    rows = np.arange(24) * NUM // 24
    first[rows[:4], 0] += 12
    result = parvi.sample(log_density, first)
    share = np.mean(result.particles[:, 0] > 0)
    assert 0.4 < share < 0.6


def test_particles_at_rest_pass_and_others_do_not():
    log_density = zoo.rotated_gaussian(5, 100.0).target
    draws = zoo.rotated_gaussian(5, 100.0).draw(np.random.default_rng(0), NUM)
    passed = parvi.sample(log_density, draws, sampler=Verify())
    assert passed.status == parvi.Status.CONVERGED
    np.testing.assert_array_equal(passed.particles, draws)
    for wrong in (1 + 0.8 * (draws - 1), draws + 0.3 * draws.std(axis=0)):
        with pytest.warns(parvi.NotAtRestWarning, match="standard errors"):
            failed = parvi.sample(log_density, wrong, sampler=Verify())
        assert failed.status == parvi.Status.NOT_AT_REST
        np.testing.assert_array_equal(failed.particles, wrong)


def test_missing_tails_do_not_pass():
    """Cauchy draws, and the same with their outer tenth pulled in."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(2048, 3)) / np.abs(rng.normal(size=2048))[:, None]
    radius = np.linalg.norm(draws, axis=1, keepdims=True)
    bound = np.quantile(radius, 0.9)
    short = draws * np.where(radius > bound, (radius / bound) ** -0.7, 1.0)

    @jax.jit
    def found(points):
        cloud = Cloud.at(lambda x: -2.0 * jnp.log1p(jnp.sum(x**2)), points)
        return tail_error(own_frame(cloud.particles), cloud.place)

    with jax.enable_x64(True):
        for points, least, most in ((draws, -np.inf, BOUND), (short, BOUND, np.inf)):
            assert least < found(points) < most


@pytest.mark.slow
def test_a_state_space_with_fewer_particles_than_parameters():
    """A random walk of 300 steps: neighbours are correlated, and 128 particles cannot tell all."""
    dim = 300
    precision = 5 * np.eye(dim) - 2 * np.eye(dim, k=1) - 2 * np.eye(dim, k=-1)

    def log_density(x):
        return -0.5 * (x - 1) @ (jnp.asarray(precision, x.dtype) @ (x - 1))

    result = parvi.sample(log_density, start(dim, 128))
    assert result.status == parvi.Status.CONVERGED
    sds = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert np.sqrt(np.mean(((result.particles.mean(axis=0) - 1) / sds) ** 2)) < 1.2 * 128**-0.5
    ratios = result.particles.std(axis=0) / sds
    assert 0.75 < ratios.min() < ratios.max() < 1.25


def test_affine_alone_is_exact_between_gaussians():
    exact = zoo.rotated_gaussian(10, 1e4)
    result = parvi.sample(exact.target, start(10), sampler=affine(share=1e-9), num_steps=60)
    precision = -np.asarray(jax.jit(jax.hessian(exact.target.full()))(np.zeros(10)))
    covariance = np.cov(result.particles.T, bias=True)
    np.testing.assert_allclose(covariance @ precision, np.eye(10), atol=1e-4)
    np.testing.assert_allclose(result.particles.mean(axis=0), 1, atol=1e-4)
    same = parvi.sample(exact.target, start(10), sampler=parvi.pfg(num_features=0))
    assert stages(same) == ["affine alone"]


@pytest.mark.slow
def test_affine_velocities_do_not_rotate():
    """H f is a gradient: what else the particles' noise suggests is left out."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x, scores = jnp.asarray(rng.normal(size=(100, 5))), jnp.asarray(rng.normal(size=(100, 5)))
        cloud = Cloud(x, scores, jnp.zeros(100), lambda x: 0.0)
        field = Whitened(PFG(Linear(), WhitenedCurvature(), Irrotational()))
        fit, _ = field.fit(jax.random.key(0), cloud, field.init(jax.random.key(0), x))
        inner = fit.velocity.inner
        linear = np.asarray(inner.metric.apply(inner.parameters.trainable[:, 1:].T).T)
    np.testing.assert_allclose(linear, linear.T, atol=1e-12)
    assert np.abs(linear - np.eye(5)).max() > 0.01


def test_fewer_particles_than_dimensions_need_no_square_matrix():
    dim, num = 400, 30
    scales = np.geomspace(0.1, 10, dim)

    def log_density(x):
        return -0.5 * jnp.sum(((x - 3) / jnp.asarray(scales, x.dtype)) ** 2)

    result = parvi.sample(log_density, start(dim, num))
    assert result.status == parvi.Status.CONVERGED
    assert stages(result) == ["part", "affine alone", "verify"]
    np.testing.assert_allclose(result.particles.mean(axis=0), 3, atol=0.05 * scales.max())
    np.testing.assert_allclose(result.particles.std(axis=0), scales, rtol=0.05)

    target = parvi.Target(log_density, like=np.zeros(dim, np.float32))
    place = Cloud.at(target.full(), jnp.asarray(start(dim, num), jnp.float32)).place
    context = Context(jax.random.key(0), affine(), target, None)
    carry = begin(context, 0, place, 0)
    program = jax.make_jaxpr(lambda c: one_step(context, c))(carry)
    assert _largest(program.jaxpr) < dim * dim


def _largest(jaxpr):
    """The most numbers in any value of a program, inner ones included."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [int(np.prod(v.aval.shape)) for v in equation.outvars]
        for inner in jax.core.jaxprs_in_params(equation.params):
            sizes.append(_largest(inner))
    return max(sizes)


@pytest.mark.slow
def test_a_polish_that_does_not_settle_is_undone():
    """The particles are then those from before it, the run goes on, and the history says so."""
    hasty = parvi.stopping.exactly(affine(), 3)
    sampler = parvi.Sequence(
        parvi.Stage("explore", Explore(window=2)),
        parvi.Stage("polish", hasty, back_to=("polish",)),
        parvi.Stage("verify", Verify()),
    )
    exact = zoo.rotated_gaussian(3, 4.0)
    with jax.enable_x64(True):
        run = Run.begin(exact.target, exact.draw(np.random.default_rng(0), NUM), sampler)
        while run.stage.name != "polish":
            run.advance(1)
        before = np.asarray(run.particles)
        run.advance(5000)
    assert run.status == parvi.Status.CONVERGED
    np.testing.assert_array_equal(run.particles, before)
    names = list(dict.fromkeys(name for name, _ in run.history))
    assert names == ["explore", "polish, undone", "verify"]


def test_sequences_that_cannot_run_are_refused():
    after = parvi.samplers.sequence.After("another")
    with pytest.raises(ValueError, match="No stage can begin"):
        parvi.sample(
            lambda x: -jnp.sum(x**2),
            start(2),
            sampler=parvi.Sequence(parvi.Stage("late", affine(), when=after)),
        )
    with pytest.raises(ValueError, match="names of their own"):
        parvi.Sequence(parvi.Stage("same", affine()), parvi.Stage("same", affine()))
    with pytest.raises(ValueError, match="goes back to"):
        parvi.Sequence(parvi.Stage("one", affine(), back_to=("none",)))
