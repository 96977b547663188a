"""Calibration: right posteriors pass, wrong ones are caught, and the tests hold their level."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import parvi
from parvi.calibration import ranks

# Exact on Gaussians, and compiled in a fraction of the default's time.
AFFINE = parvi.pfg(num_features=0)


def prior(key):
    return {"m": jax.random.normal(key, (2,))}


def simulate(key, p, width=1.0, shift=0.0):
    """The posterior has ``width`` of the right standard deviation, and a mean that is too high.

    What is wrong is data, so that all models share their programs.
    """
    y = p["m"] + jax.random.normal(key, (5, 2))
    return {"y": y, "width": jnp.asarray(width), "shift": jnp.asarray(shift)}


def log_density(p, data):
    m = p["m"] - data["shift"]
    return -0.5 * (jnp.sum(m**2) + jnp.sum((data["y"] - m) ** 2)) / data["width"] ** 2


def calibrated(**wrong):
    model = parvi.Model(prior, functools.partial(simulate, **wrong), log_density)
    return parvi.calibrate(model, key=1, num=120, num_particles=64, sampler=AFFINE)


def test_a_conjugate_model_passes():
    """By chance it fails in one of a hundred keys; this one is fixed."""
    found = calibrated()
    assert found
    assert "NOT" not in repr(found)
    assert found.names == ["m[0]", "m[1]", "log density"]
    assert found.ranks.shape == (120, 3)
    assert found.histogram("m[1]").sum() == 120
    assert 0 <= found.ranks.min() < found.ranks.max() <= 64
    # As many as the particles of the closed form would have below the truth.
    assert sum(found.statuses.values()) == 120


@pytest.mark.slow
def test_a_narrow_posterior_is_caught():
    found = calibrated(width=0.7)
    assert not found
    assert set(found.rejected) == {"m[0]", "m[1]", "log density"}
    assert "m[0]: the particles are too narrow" in repr(found)


def test_a_shifted_posterior_is_caught():
    # A standard deviation.
    found = calibrated(shift=6**-0.5)
    assert not found
    assert "m[0]: the particles are too high" in repr(found)


@pytest.mark.slow
def test_one_compilation_serves_all_data_sets():
    traces = 0

    def counted(p, y):
        nonlocal traces
        traces += 1
        return log_density(p, y)

    model = parvi.Model(prior, simulate, counted)
    parvi.calibrate(model, key=1, num=20, num_particles=64, sampler=AFFINE)
    before = traces
    parvi.calibrate(model, key=2, num=30, num_particles=64, sampler=AFFINE)
    assert traces == before > 0


@pytest.mark.slow
def test_constraints_and_objects_that_give_a_model():
    """A rate with a Gamma(2, 1) prior, and ten Poisson counts."""

    class Adapter:
        def as_model(self):
            return parvi.Model(
                lambda key: jax.random.gamma(key, 2.0),
                lambda key, rate: jax.random.poisson(key, rate, (10,)),
                lambda rate, y: jnp.log(rate) - rate + jnp.sum(y * jnp.log(rate) - rate),
                parvi.Positive(),
            )

    found = parvi.calibrate(Adapter(), key=0, num=60, num_particles=64, sampler=AFFINE)
    assert found, found
    assert found.names == ["x", "log density"]


def test_what_cannot_be_calibrated_is_refused_in_words():
    model = parvi.Model(prior, simulate, log_density)
    with pytest.raises(ValueError, match="as_model"):
        parvi.calibrate(log_density)
    with pytest.raises(ValueError, match="at most 256 data sets, or more particles"):
        parvi.calibrate(model, num=300, num_particles=64)
    with pytest.raises(ValueError, match="num must be an int of at least 20"):
        parvi.calibrate(model, num=3)


def uniforms(kind, num, num_particles, rng):
    """Ranks for N(0, 1) posteriors, from particles of several kinds."""
    truths = rng.normal(size=(num, 1))
    if kind == "independent":
        particles = rng.normal(size=(num, num_particles))
    elif kind == "quantiles":
        particles = norm.ppf((np.arange(num_particles) + 0.5) / num_particles)[None]
    else:
        # Stratified: one particle at random in every hundredth or so.
        shares = (np.arange(num_particles) + rng.random((num, num_particles))) / num_particles
        particles = norm.ppf(shares)
    below = np.sum(particles < truths, axis=1)[:, None]
    return ranks.uniforms(below, num_particles, rng)


@pytest.mark.first_quick
@pytest.mark.parametrize("kind", ["independent", "stratified", "quantiles"])
def test_the_level_holds_for_particles_better_than_independent_draws(kind):
    """1000 calibrations with right particles: about ten are rejected at 1 %, and never thirty."""
    rng = np.random.default_rng(0)
    rejected = sum(
        ranks.judged(uniforms(kind, 200, 64, rng)).adjusted[0] < 0.01 for _ in range(1000)
    )
    assert 1 <= rejected < 30


def test_holm_is_holm():
    np.testing.assert_allclose(ranks.holm(np.array([0.04, 0.01, 0.03])), [0.06, 0.03, 0.06])


def test_words_for_shapes():
    grid = (np.arange(1000) + 0.5) / 1000
    words = [ranks.shape_of(norm.cdf(norm.ppf(grid) * a + b)) for a, b in ((2, 0), (0.5, 0))]
    assert words == ["the particles are too narrow", "the particles are too wide"]
    words = [ranks.shape_of(norm.cdf(norm.ppf(grid) + b)) for b in (1, -1)]
    assert words == ["the particles are too low", "the particles are too high"]


def test_the_plot_is_written(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    names = ["a", "b"]
    u = np.random.default_rng(0).random((50, 2))
    found = parvi.calibration.calibrate.Calibration(
        names, (u * 64).astype(int), u, dict.fromkeys(names, 0.5), 64, {parvi.Status.CONVERGED: 50}
    )
    found.plot(tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").stat().st_size > 1000
