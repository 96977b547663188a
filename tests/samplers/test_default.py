"""The default on what it is for, against exact draws and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.cloud import Cloud
from parvi.fields import PFG, Irrotational, Whitened
from parvi.functions import Linear
from parvi.preconditioners import WhitenedCurvature
from parvi.results.metrics import worth
from parvi.run.compile.programs import Context, begin, one_step
from parvi.run.run import Run
from parvi.samplers.default import affine
from parvi.targets import zoo

NUM = 512


def start(dim, num=NUM, seed=0):
    return np.random.default_rng(seed).normal(size=(num, dim))


def stages(result):
    """Names in the order in which they came."""
    return list(dict.fromkeys(result.history["stage"].tolist()))


@pytest.fixture(scope="module")
def banana_run():
    return parvi.sample(zoo.banana().target, start(2))


@pytest.mark.parametrize(
    ("exact", "least"),
    [(zoo.funnel(), 1.5), (zoo.student_t(), 2.0), (zoo.rotated_gaussian(20, 1e4), 2.0)],
    ids=["funnel", "Student-t", "ill-conditioned Gaussian"],
)
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
    assert stages(banana_run) == ["affine", "bend", "fly", "bend again"]
    assert (banana_run.history["stage"] == "fly").sum() == 320
    truth = zoo.banana().draw(np.random.default_rng(1), 10_000)
    assert worth(banana_run.particles, truth) > 1.5
    # Every arrival is one gradient a particle, and the start one more.
    assert banana_run.num_gradients == NUM * (1 + banana_run.num_steps)


@pytest.mark.xdist_group("banana")
def test_num_steps_is_a_maximum(banana_run):
    few = parvi.sample(zoo.banana().target, start(2), num_steps=40)
    assert few.num_steps == 40
    assert few.status == parvi.Status.MAX_STEPS
    for name, column in few.history.items():
        np.testing.assert_array_equal(column, banana_run.history[name][:40])
    many = parvi.sample(zoo.rotated_gaussian(3, 4.0).target, start(3), num_steps=500)
    assert many.status == parvi.Status.CONVERGED
    assert many.num_steps < 100


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


def test_separated_modes_get_their_weights():
    exact = zoo.four_modes(20)
    result = parvi.sample(exact.target, start(20))
    quadrant = 2 * (result.particles[:, 0] > 0) + (result.particles[:, 1] > 0)
    weights = np.bincount(quadrant, minlength=4) / NUM
    assert stages(result)[-2:] == ["temper", "settle"]
    assert np.nanmin(result.history["beta"]) < 0.02
    assert np.max(np.abs(weights - 0.25)) < 0.05


def test_affine_alone_is_exact_between_gaussians():
    exact = zoo.rotated_gaussian(10, 1e4)
    result = parvi.sample(exact.target, start(10), sampler=affine(share=1e-9), num_steps=60)
    precision = -np.asarray(jax.hessian(exact.target.full())(jnp.zeros(10)))
    covariance = np.cov(result.particles.T, bias=True)
    np.testing.assert_allclose(covariance @ precision, np.eye(10), atol=1e-4)
    np.testing.assert_allclose(result.particles.mean(axis=0), 1, atol=1e-4)
    same = parvi.sample(exact.target, start(10), sampler=parvi.pfg(num_features=0))
    assert stages(same) == ["affine alone"]


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
    assert stages(result) == ["affine alone"]
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


def test_a_path_that_does_not_settle_is_undone():
    """The particles are then those from before the path, and the history says so."""
    exact = zoo.four_modes(2)
    ready = parvi.pfg()
    hasty = [
        parvi.Stage(s.name, s.sampler, s.when, s.back_to)
        if s.name != "settle"
        else parvi.Stage("settle", parvi.stopping.exactly(s.sampler, 1), s.when, "temper")
        for s in ready.stages
    ]
    sampler = parvi.Sequence(*hasty)
    with jax.enable_x64(True):
        run = Run.begin(exact.target, start(2), sampler)
        while run.stage.name != "temper":
            run.advance(1)
        before = np.asarray(run.particles)
        run.advance(5000)
    assert run.status == parvi.Status.CONVERGED
    np.testing.assert_array_equal(run.particles, before)
    assert [name for name, _ in run.history][-1] == "settle, undone"


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
        parvi.Sequence(parvi.Stage("one", affine(), back_to="none"))
