"""Maps of whole runs: densities, draws, evidence, and what they say where they do not hold."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import parvi
from parvi.geometry.frame import DenseFrame
from parvi.results.endings import with_transport
from parvi.results.transport import distil
from parvi.results.transport.chain import Chain
from parvi.results.transport.elsewhere import elsewhere
from parvi.results.transport.importance import Importance
from parvi.results.transport.layers import AbstractLayer, Affine, Bent, Inverted
from parvi.results.transport.making import judged
from parvi.results.transport.transport import Transport
from parvi.results.transport.witness import witnessed
from parvi.targets import zoo
from parvi.targets.flatten import Layout

pytestmark = pytest.mark.xdist_group("transport")

FACTOR = np.linalg.cholesky(np.array([[2.0, 0.8, 0.1], [0.8, 1.0, 0.0], [0.1, 0.0, 0.5]]))
MEAN = np.array([1.0, -2.0, 0.5])


def gaussian(x):
    z = jnp.linalg.solve(jnp.asarray(FACTOR), x - MEAN)
    return -0.5 * jnp.sum(z**2)


def skewed(x):
    return jnp.sum(1.5 * x - jnp.exp(x)) - 0.5 * jnp.sum(jnp.diff(x) ** 2)


def between(x, data):
    """Both of them, so that their runs share their programs."""
    return (1 - data["skewed"]) * gaussian(x) + data["skewed"] * skewed(x)


TARGET = parvi.Target(between, like=np.zeros(3), data={"skewed": np.zeros(())})


def start(dim, num=512):
    return np.random.default_rng(0).normal(size=(num, dim))


@pytest.fixture(scope="module")
def exact():
    return parvi.sample(TARGET, start(3))


@pytest.fixture(scope="module")
def bent():
    return parvi.sample(TARGET.with_data({"skewed": np.ones(())}), start(3), transport=True)


def test_exact_on_gaussians(exact):
    points = start(3, 50) * 2
    expected = scipy.stats.multivariate_normal(MEAN, FACTOR @ FACTOR.T).logpdf(points)
    np.testing.assert_allclose(exact.transport.log_prob(points), expected, rtol=1e-2)
    found = exact.importance
    assert found.share > 0.9
    constant = np.linalg.slogdet(FACTOR)[1] + 1.5 * np.log(2 * np.pi)
    assert found.standard_error < 0.01
    assert abs(exact.log_evidence() - constant) < 3 * found.standard_error


@pytest.mark.slow
def test_a_bent_target(bent):
    """The density of the map is that of its own draws, and better than the affine part alone."""
    transport = bent.transport
    assert bent.status == parvi.Status.CONVERGED
    assert bent.importance.share > 0.85
    flat = transport.draw_flat(3, 2000)
    # By the entropy of the draws: E[log q] of a Gaussian with their covariance is a lower bound.
    covariance = np.cov(np.asarray(flat).T)
    entropy = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]
    assert -np.mean(transport.log_prob_flat(flat)) < entropy
    affine = Transport(
        (transport.maps[0].layers[0],), transport.log_weights, transport.layout, transport.target
    )
    assert affine.importance(4096).share < bent.importance.share - 0.05


@pytest.mark.slow
def test_the_tail_of_a_log_scale():
    """log tau with a flat density of tau near 0 has an exponential tail to the left.

    Bounded features alone leave a Gaussian's: e^-3.3 and e^-6.5 of the density at -6 and -7, of
    which one in 400 and one in 1100 draws lie beyond.
    """

    def log_density(x):
        return x[0] - jnp.exp(x[0]) - 0.5 * jnp.sum(x[1:] ** 2)

    result = parvi.sample(log_density, start(6))
    points = np.zeros((2, 6))
    points[:, 0] = -6, -7
    constant = 2.5 * np.log(2 * np.pi)
    truth = points[:, 0] - np.exp(points[:, 0]) - constant
    assert (result.transport.log_prob(points) - truth > [-2.5, -5.0]).all()
    assert result.log_evidence() == pytest.approx(constant, abs=0.01)


@pytest.mark.slow
def test_sobol_draws_are_closer_than_independent_ones(bent):
    transport = bent.transport
    truth = transport.draw(0, 100_000).mean(axis=0)

    def error(sobol):
        sets = [transport.draw(seed, 256, sobol=sobol) for seed in range(10)]
        return np.mean([(np.asarray(draws).mean(axis=0) - truth) ** 2 for draws in sets])

    assert error(True) < 0.3 * error(False)


def test_works_under_transformations(bent):
    transport = bent.transport
    points = bent.particles[:4]
    expected = transport.log_prob(points)
    with jax.enable_x64(True):
        each = jax.vmap(lambda x: transport.log_prob(x[None])[0])
        np.testing.assert_allclose(jax.jit(each)(points), expected, rtol=1e-9)
        slope = jax.grad(lambda x: transport.log_prob(x[None])[0])(points[0])
        step = 1e-5 * np.eye(3)[0]
        ends = transport.log_prob(np.stack([points[0] + step, points[0] - step]))
        np.testing.assert_allclose(slope[0], (ends[0] - ends[1]) / 2e-5, rtol=1e-4)
        drawn = jax.jit(lambda key: transport.draw(key, 3))(jax.random.key(0))
    np.testing.assert_allclose(drawn, transport.draw(0, 3), rtol=1e-9)


@pytest.mark.slow
def test_particles_on_a_constrained_scale(tmp_path):
    """A gamma and a normal distribution: density on the user's scale, evidence, and the file."""

    def log_density(p):
        return 2 * jnp.log(p["rate"]) - 3 * p["rate"] - 0.5 * p["x"] ** 2

    target = parvi.Target(log_density, constraints={"rate": parvi.Positive()})
    rng = np.random.default_rng(0)
    init = {"rate": rng.gamma(2, size=300), "x": rng.normal(size=300)}
    result = parvi.sample(target, init)
    points = {"rate": np.array([0.3, 1.0, 2.5]), "x": np.array([0.0, -1.0, 2.0])}
    expected = scipy.stats.gamma(3, scale=1 / 3).logpdf(points["rate"])
    expected = expected + scipy.stats.norm.logpdf(points["x"])
    np.testing.assert_allclose(result.transport.log_prob(points), expected, atol=0.25)
    constant = np.log(2 / 27) + 0.5 * np.log(2 * np.pi)
    assert result.log_evidence() == pytest.approx(constant, abs=0.01)
    assert result.transport.draw(0, 7)["rate"].min() > 0

    path = tmp_path / "run.npz"
    result.save(path)
    loaded = parvi.load(path)
    np.testing.assert_array_equal(
        loaded.transport.draw(5, 4)["rate"], result.transport.draw(5, 4)["rate"]
    )
    with pytest.raises(ValueError, match="does not hold the log density"):
        loaded.transport.importance()
    again = loaded.transport.importance(4096, target=target)
    assert again.log_evidence == result.transport.importance(4096).log_evidence


def test_a_saved_map(bent, tmp_path):
    bent.save(tmp_path / "run.npz")
    loaded = parvi.load(tmp_path / "run.npz")
    np.testing.assert_array_equal(loaded.transport.draw(5, 4), bent.transport.draw(5, 4))
    with pytest.raises(ValueError, match="does not hold the log density"):
        loaded.transport.importance()
    again = loaded.transport.importance(4096, target=bent.target)
    assert again.log_evidence == bent.transport.importance(4096).log_evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    # All factors of both densities are normal: ten with one of sd 1.5, and two with one of 0.5.
    ("target", "log_evidence"),
    [
        (zoo.funnel().target, 5 * np.log(2 * np.pi) + np.log(1.5)),
        (zoo.banana().target, np.log(2 * np.pi) + np.log(0.5)),
    ],
    ids=["funnel", "banana"],
)
def test_what_is_straightened_has_a_map(target, log_evidence, tmp_path):
    result = parvi.sample(target, start(target.layout.dim))
    found = result.transport.importance(4096)
    assert found.share > 0.8
    assert abs(found.log_evidence - log_evidence) < 4 * found.standard_error
    result.save(tmp_path / "run.npz")
    loaded = parvi.load(tmp_path / "run.npz")
    np.testing.assert_array_equal(loaded.transport.draw(5, 4), result.transport.draw(5, 4))


@pytest.mark.slow
def test_modes_get_a_map_each():
    def log_density(x):
        left = -0.5 * jnp.sum((x + 4) ** 2) + jnp.log(0.3)
        right = -0.5 * jnp.sum((x - 4) ** 2 / 0.25) + jnp.log(0.7) + 2 * jnp.log(2.0)
        return jnp.logaddexp(left, right)

    result = parvi.sample(log_density, 3 * start(2))
    transport = result.transport
    assert len(transport.maps) == 2
    np.testing.assert_allclose(sorted(np.exp(transport.log_weights)), [0.3, 0.7], atol=0.03)
    found = transport.importance(4096)
    assert found.share > 0.8
    assert abs(found.log_evidence - np.log(2 * np.pi)) < 3 * found.standard_error + 1e-3
    with pytest.raises(ValueError, match="2 maps, one for every mode"):
        transport.distil()


def test_where_there_is_no_map(exact):
    """A map to a tenth of the target's width is refused, and so is one of too few particles."""
    with pytest.raises(ValueError, match="There is no map here"):
        judged(narrow_map(exact.transport), exact.particles, jax.random.key(0))
    few = parvi.sample(gaussian, start(3, 4), num_steps=0)
    with pytest.raises(ValueError, match="do not determine the covariance"):
        few.transport  # noqa: B018
    with pytest.raises(ValueError, match="do not determine the covariance"):
        few.log_evidence()
    assert few.more(9).shape == (9, 3)


def narrow_map(transport):
    affine = transport.maps[0].layers[0].frame
    narrow = Affine(DenseFrame(affine.mean, affine.factor / 10, affine.inverse * 10))
    return Transport((narrow,), transport.log_weights, transport.layout, transport.target)


def test_evidence_and_networks_are_refused_in_words(exact, monkeypatch):
    bad = narrow_map(exact.transport)
    result = dataclasses.replace(exact, saved_transport=bad)
    with pytest.raises(ValueError, match="evidence is not known: the weighted draws are worth"):
        result.log_evidence()
    monkeypatch.setattr(distil, "distilled", lambda *_: bad.maps[0])
    with pytest.raises(ValueError, match="One network cannot represent this map"):
        exact.transport.distil()


def test_a_tempered_path_that_was_broken_off_has_no_evidence(exact):
    """At a lower temperature the sum of the path so far is the evidence of another density."""

    def result(stages, beta, log_evidence):
        history = {"stage": stages, "beta": beta, "log_evidence": log_evidence}
        history = {name: np.asarray(column) for name, column in history.items()}
        return dataclasses.replace(exact, history=history)

    nan = np.nan
    with pytest.raises(ValueError, match="ended before its tempered path did"):
        result(["affine", "temper", "temper"], [nan, 0.0, 0.3], [nan, 0.0, -5.0]).log_evidence()
    # A second path was broken off after a whole one.
    again = result(["temper", "temper", "temper"], [0.3, 1.0, 0.1], [-5.0, -9.0, -2.0])
    assert again.log_evidence() == -9.0
    balanced = result(["temper", "temper", "balance"], [0.3, 1.0, nan], [-5.0, -9.0, -8.9])
    assert balanced.log_evidence() == -8.9


def test_particles_that_the_map_contradicts(exact):
    """The status, the warning and the check all say so; so does a warning where there is no map."""
    moved = exact.particles + 0.5 * exact.particles.std(axis=0)
    result = dataclasses.replace(exact, particles=moved, saved_transport=exact.transport)
    with pytest.warns(parvi.NotAtRestWarning, match="weighted draws of the map have other means"):
        assert with_transport(result).status == parvi.Status.NOT_AT_REST
    assert "weighted draws of the map disagree" in str(result.check())
    few = parvi.sample(gaussian, start(3, 4), num_steps=0)
    with pytest.warns(parvi.NotAtRestWarning, match="No map was made. There is no map here"):
        assert with_transport(few) is few


@pytest.mark.parametrize("seen", [True, False])
def test_a_mode_that_nothing_has_reached(seen):
    """It is found with its mass; where particles are in both modes, nothing is elsewhere."""

    def log_density(x):
        left = -0.5 * jnp.sum((x + 6) ** 2) + jnp.log(0.3)
        return jnp.logaddexp(left, -0.5 * jnp.sum((x - 6) ** 2) + jnp.log(0.7))

    rng = np.random.default_rng(0)
    centres = np.full(200, -6.0) if seen else rng.choice([-6.0, 6.0], size=200)
    with jax.enable_x64(True):
        flat = jnp.asarray(centres[:, None] + rng.normal(size=(200, 2)))
        place, log_mass = map(np.asarray, elsewhere(log_density, flat, jax.random.key(0)))
    if seen:
        np.testing.assert_allclose(place, 6.0, atol=0.1)
        assert log_mass == pytest.approx(np.log(0.7 * 2 * np.pi), abs=0.01)
    else:
        assert log_mass == -np.inf


def test_particles_that_contradict_a_map():
    """A map of one of two modes, and one whose images end before the particles do."""

    def log_density(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x + 6) ** 2), -0.5 * jnp.sum((x - 6) ** 2))

    def transport(layer):
        return Transport((layer,), np.zeros(1), Layout.of(np.zeros(1)), target)

    target = parvi.Target(log_density, like=np.zeros(1))
    one = np.eye(1)
    particles = np.random.default_rng(0).normal(size=(200, 1)) - 6
    left = transport(Affine(DenseFrame(-6 * np.ones(1), one, one)))
    assert judged(left, particles, jax.random.key(0)) is left
    with pytest.raises(ValueError, match=r"draws and particles differ by .* misses mass"):
        judged(left, np.concatenate([particles, -particles]), jax.random.key(0))
    # z - z + 6 tanh(z / 2) - 6 ends at -12 and 0.
    weights = np.array([[0.0, -1.0, 6.0]])
    short = Bent(DenseFrame(np.zeros(1), one, one), 0.5 * one, np.zeros(1), weights)
    short = transport(Chain((short, Affine(DenseFrame(-6 * np.ones(1), one, one)))))
    far = np.concatenate([particles, [[0.5]] * 10])
    with pytest.raises(ValueError, match="does not reach"):
        judged(short, far, jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ring", "funnel", "cauchy", "missed mode"])
def test_hard_shapes_have_a_good_map_or_none(name):
    """Whatever a map says of itself must hold: its evidence is right, or it is refused."""
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, size=512)
    dim, init, log_density, truth = {
        "ring": (
            2,
            3 * np.stack([np.cos(angles), np.sin(angles)], axis=1),
            lambda x: -0.5 * (jnp.sqrt(jnp.sum(x**2)) - 3.0) ** 2 / 0.1**2,
            np.log(2 * np.pi * 3.0 * 0.1 * np.sqrt(2 * np.pi)),
        ),
        "funnel": (
            3,
            None,
            lambda x: -(x[0] ** 2) / 18 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - x[0],
            np.log(3.0) + 1.5 * np.log(2 * np.pi),
        ),
        "cauchy": (3, None, lambda x: -2.0 * jnp.log1p(jnp.sum(x**2)), 2 * np.log(np.pi)),
        "missed mode": (
            2,
            -6 + 0.5 * start(2),
            lambda x: jnp.logaddexp(
                -0.5 * jnp.sum((x + 6) ** 2), -0.5 * jnp.sum((x - 6) ** 2) + 1.0
            ),
            np.log(2 * np.pi * (1 + np.e)),
        ),
    }[name]
    init = start(dim) if init is None else init
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", parvi.NotAtRestWarning)
        result = parvi.sample(log_density, init, throw=False)
    found, said = None, ""
    try:
        found = result.importance
    except ValueError as error:
        # There is no map here.
        said = str(error)
    assert name != "missed mode" or "another mode, of about 2.7 times" in said
    assert not found or abs(found.log_evidence - truth) < 4 * found.standard_error + 0.02


def test_more_particles(bent):
    more = bent.more(3000)
    assert more.shape == (3000, 3)
    np.testing.assert_allclose(more.mean(axis=0), bent.particles.mean(axis=0), atol=0.1)
    np.testing.assert_array_equal(bent.more(10), bent.more(10))
    with pytest.raises(ValueError, match="at least 1"):
        bent.more(0)


@pytest.mark.slow
def test_the_witness_sees_what_is_wrong(bent):
    flat = bent.particles
    found = bent.importance
    assert witnessed(found, flat).agrees
    assert bent.check()
    centre = flat.mean(axis=0)
    assert not witnessed(found, centre + 0.8 * (flat - centre)).agrees
    assert not witnessed(found, flat + 0.25 * flat.std(axis=0)).agrees
    # Independent draws are not flagged.
    draws = np.random.default_rng(0).choice(len(found.draws), (40, 512), p=found.weights)
    assert all(witnessed(found, found.draws[rows]).agrees for rows in draws)


def test_weights_that_cannot_be_relied_on():
    rng = np.random.default_rng(0)
    even = Importance.of(rng.normal(size=(800, 2)), np.zeros(800))
    assert even
    assert even.share == pytest.approx(1)
    assert even.log_evidence == pytest.approx(0)
    assert even.standard_error == pytest.approx(0)
    rare = np.zeros(800)
    rare[700] = np.log(2000.0)
    found = Importance.of(rng.normal(size=(800, 2)), rare)
    assert not found
    assert "There is no good map here" in str(found)
    falling = np.zeros(8000)
    falling[5000] = np.log(100.0)
    assert "falls" in str(Importance.of(rng.normal(size=(8000, 2)), falling))
    nothing = Importance.of(rng.normal(size=(80, 2)), np.full(80, -np.inf))
    assert nothing.share == 0


@pytest.mark.slow
def test_distilled(bent):
    one = bent.transport.distil()
    share = one.importance(4096).share
    assert share > 0.5
    assert len(one.maps[0].layers) == 2


class Holed(AbstractLayer):
    """The identity, but it finds no inverse where the first coordinate is above 2."""

    def moved(self, points):
        return points, jnp.zeros(len(points))

    def inverse(self, images):
        return jnp.where(images[:, :1] > 2, jnp.nan, images)


@pytest.mark.parametrize("sobol", [False, True])
def test_draws_without_an_image_are_left_out(sobol):
    """A map from flown particles gave nine draws of 2000 as NaN."""
    target = parvi.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(2))
    with jax.enable_x64(True):
        maps = (Inverted(Holed()),)
        transport = Transport(maps, jnp.zeros(1), target.layout, target)
        draws = np.asarray(transport.draw(0, 500, sobol=sobol))
    assert draws.shape == (500, 2)
    assert np.isfinite(draws).all()
    assert draws[:, 0].max() < 2
