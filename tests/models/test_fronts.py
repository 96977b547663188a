"""Models of NumPyro and PyMC against densities written by hand."""

import jax
import numpy as np
import pytest

import parvi
from models.fronts import BY_HAND, EFFECTS, NUMPYRO, PYMC, agree

QUICK = ["schools", *(pytest.param(n, marks=pytest.mark.slow) for n in ("mixture", "radon"))]


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("front", [NUMPYRO, PYMC], ids=["numpyro", "pymc"])
def test_the_log_density_and_its_score_are_those_written_by_hand(front, name):
    target = front[name]()
    agree(target.full(), BY_HAND[name], target.layout.dim)


@pytest.mark.parametrize(
    "name", ["schools", *(pytest.param(n, marks=pytest.mark.slow) for n in ("radon", "mixture"))]
)
def test_the_same_start_gives_the_same_particles(name):
    sampler, found = parvi.svgd(), []
    for front in (NUMPYRO, PYMC):
        target = front[name]()
        start = np.random.default_rng(2).normal(size=(32, target.layout.dim))
        found.append(parvi.sample(target, start, sampler=sampler, num_steps=20, throw=False))
    one, other = found
    assert np.abs(one.flat - start).max() > 0.1
    np.testing.assert_allclose(one.flat, other.flat, rtol=0, atol=1e-6)
    for site in set(one.particles) & set(other.particles):
        np.testing.assert_allclose(one.particles[site], other.particles[site], atol=1e-5)


def test_particles_have_parameters_and_deterministics_on_their_own_scale():
    for front in (NUMPYRO, PYMC):
        result = parvi.sample(front["schools"](), num_particles=16, num_steps=0)
        particles = result.particles
        assert {name: array.shape for name, array in particles.items()} == {
            "mu": (16,),
            "tau": (16,),
            "t": (16, 8),
            "theta": (16, 8),
        }
        expected = particles["mu"][:, None] + particles["tau"][:, None] * particles["t"]
        np.testing.assert_allclose(particles["theta"], expected, rtol=1e-5)
        np.testing.assert_allclose(particles["tau"], np.exp(result.flat[:, 1]), rtol=1e-6)


@pytest.mark.slow
def test_starts_are_those_of_the_front_end():
    numpyro = parvi.sample(NUMPYRO["schools"](), num_steps=0).flat
    assert numpyro.shape == (512, 10)
    assert numpyro.dtype == np.float32
    # 5120 uniform numbers: the largest is within 0.01 of the end but for 3e-6 of all seeds.
    assert 1.99 < np.abs(numpyro).max() <= 2
    pymc = parvi.sample(PYMC["schools"](), num_steps=0).flat
    assert pymc.dtype == np.float64
    # PyMC starts a half-Cauchy at its scale.
    centre = np.array([0, np.log(5), *np.zeros(8)])
    assert 0.99 < np.abs(pymc - centre).max() <= 1


@pytest.mark.slow
def test_one_target_runs_in_both_precisions():
    target = NUMPYRO["schools"]()
    start = np.random.default_rng(0).normal(size=(16, target.layout.dim))
    for dtype in (np.float32, np.float64, np.float32):
        result = parvi.sample(target, start.astype(dtype), num_steps=0)
        assert result.particles["theta"].dtype == dtype
        assert result.log_density.dtype == dtype
    with jax.enable_x64(True):
        expected = np.asarray(jax.vmap(BY_HAND["schools"])(start))
    wide = parvi.sample(target, start, num_steps=0).log_density
    # Up to the constant of the half-Cauchy distribution.
    np.testing.assert_allclose(wide - expected, np.log(2 / (5 * np.pi)), atol=1e-9)


def test_pymc_leaves_the_precision_of_jax_as_it_was():
    PYMC["schools"]()
    assert not jax.config.read("jax_enable_x64")


@pytest.mark.slow
def test_init_by_name_is_the_inverse_of_constraining():
    for front in (NUMPYRO, PYMC):
        target = front["mixture"]()
        flat = np.random.default_rng(3).normal(size=(8, target.layout.dim))
        one = parvi.sample(target, flat, num_steps=0)
        again = parvi.sample(target, one.particles, num_steps=0)
        np.testing.assert_allclose(again.flat, flat, atol=1e-10)


def test_places_are_named_by_the_models_coords(tmp_path):
    result = parvi.sample(PYMC["schools"](), num_particles=8, num_steps=0)
    assert result.names[:3] == ["mu", "t[A]", "t[B]"]
    assert result.names_flat == ["mu", "tau", *(f"t[{place}]" for place in "ABCDEFGH")]
    result.save(tmp_path / "result.npz")
    loaded = parvi.load(tmp_path / "result.npz")
    assert loaded.names == result.names
    assert loaded.labels == result.labels
    np.testing.assert_array_equal(loaded.flat, result.flat)
    np.testing.assert_array_equal(loaded.particles["theta"], result.particles["theta"])
    np.testing.assert_array_equal(loaded.log_density, result.log_density)
    data = loaded.to_arviz()["posterior"]
    assert list(data["theta"].dims) == ["chain", "draw", "school"]
    assert list(data["school"].values) == list("ABCDEFGH")
    again = loaded.to_arviz(target=PYMC["schools"]())
    np.testing.assert_array_equal(again["observed_data"]["y"].values, EFFECTS)


def test_a_loaded_result_wants_the_target_of_its_model(tmp_path):
    result = parvi.sample(NUMPYRO["schools"](), num_particles=32, num_steps=0)
    result.save(tmp_path / "result.npz")
    loaded = parvi.load(tmp_path / "result.npz")
    for other in (NUMPYRO["mixture"](), lambda x: x["mu"]):
        with pytest.raises(ValueError, match="10 unconstrained numbers: give its target"):
            loaded.check(other)


@pytest.mark.slow
def test_checks_and_maps_work_on_models(tmp_path):
    target = NUMPYRO["radon"]()
    start = parvi.sample(target, num_particles=32, num_steps=0)
    start.save(tmp_path / "start.npz")
    # Uniform starts are no sample of the posterior.
    assert not parvi.load(tmp_path / "start.npz").check(target)
    result = parvi.sample(target, num_particles=256)
    result.save(tmp_path / "result.npz")
    assert parvi.load(tmp_path / "result.npz").check(target)
    drawn = result.transport.draw(0, 2000)
    assert {name: array.shape[1:] for name, array in drawn.items()} == {
        name: array.shape[1:] for name, array in result.particles.items()
    }
    # Means of 2000 draws and of 256 particles: five standard errors of the draws and more.
    particles, draws = result.particles["intercept"], drawn["intercept"]
    assert np.abs((draws.mean(axis=0) - particles.mean(axis=0)) / draws.std(axis=0)).max() < 0.2
    assert np.isfinite(result.transport.log_prob_flat(result.flat)).mean() > 0.9
    with pytest.raises(ValueError, match="log_prob_flat"):
        result.transport.log_prob(result.particles)
    assert result.more(600)["intercept"].shape == (600, 12)
