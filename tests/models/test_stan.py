"""Stan models through BridgeStan; the folder of BridgeStan is that of the variable BRIDGESTAN."""

import os
import pathlib
import shutil

import jax
import numpy as np
import pytest

import parvi
from models.fronts import BY_HAND, EFFECTS, NUMPYRO, STAN_DATA, agree

bridgestan = pytest.importorskip("bridgestan", reason="needs the package bridgestan")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("BRIDGESTAN" not in os.environ, reason="BRIDGESTAN names no folder"),
]
FILES = pathlib.Path(__file__).parent / "stan"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles a model at first use."""
    folder = tmp_path_factory.mktemp("stan")
    made = {}

    def get(name, data=None):
        if name not in made:
            made[name] = bridgestan.compile_model(shutil.copy(FILES / f"{name}.stan", folder))
        return bridgestan.StanModel(str(made[name]), data, warn=False)

    return get


@pytest.fixture(scope="module")
def stan(compiled):
    def get(name):
        file = {"schools": "eight_schools"}.get(name, name)
        groups = {"predictive": {"y": "y_rep"}, "log_likelihood": {"y": "log_lik"}}
        return parvi.from_stan(compiled(file, STAN_DATA[name]), **groups)

    return get


@pytest.mark.parametrize("name", sorted(STAN_DATA))
def test_the_log_density_and_its_score_are_those_written_by_hand(stan, name):
    target = stan(name)
    agree(target.full(), BY_HAND[name], target.layout.dim)


def test_products_with_the_hessian_are_stans(stan):
    target = stan("radon")
    point = np.random.default_rng(0).normal(size=target.layout.dim)
    with jax.enable_x64(True):
        found = jax.hessian(target.full())(point)
        expected = jax.hessian(BY_HAND["radon"])(point)
    # BridgeStan's products are finite differences of gradients, in steps of about 1e-4.
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", sorted(STAN_DATA))
def test_the_same_start_gives_the_same_particles_as_numpyro(stan, name):
    start = np.random.default_rng(2).normal(size=(64, stan(name).layout.dim))
    one, other = (parvi.sample(t, start, key=1) for t in (stan(name), NUMPYRO[name]()))
    np.testing.assert_allclose(one.flat, other.flat, rtol=0, atol=1e-6)


def test_groups_and_generated_quantities(stan):
    data = parvi.sample(stan("schools"), num_particles=400, num_steps=0).to_arviz()
    assert set(data["posterior"].data_vars) == {"mu", "tau", "t", "theta"}
    np.testing.assert_array_equal(data["observed_data"]["y"].values, EFFECTS)
    theta = data["posterior"]["theta"].values[0]
    sigma = np.array(STAN_DATA["schools"]["sigma"])
    expected = -0.5 * ((EFFECTS - theta) / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(data["log_likelihood"]["y"].values[0], expected, rtol=1e-12)
    errors = (data["posterior_predictive"]["y"].values[0] - theta) / sigma
    # 3200 standard normal numbers: five standard errors.
    assert abs(errors.mean()) < 5 / np.sqrt(3200)
    assert abs(errors.std() - 1) < 5 / np.sqrt(2 * 3200)


def test_arrays_have_stans_shapes_and_indices(compiled):
    target = parvi.from_stan(compiled("supports"))
    shapes = dict(zip(target.layout.paths, target.layout.shapes, strict=True))
    assert shapes == {"R": (3, 3), "flag": (), "m": (2, 3), "o": (2,), "p": (3,)}
    assert target.layout.flat_names()[5:9] == ["m[0,0]", "m[1,0]", "m[0,1]", "m[1,1]"]
    flat = np.random.default_rng(0).normal(size=(8, 13))
    result = parvi.sample(target, flat, num_steps=0)
    np.testing.assert_allclose(result.particles["m"][:, 0, 1], np.exp(flat[:, 7]))
    np.testing.assert_allclose(result.particles["R"], result.particles["R"].transpose(0, 2, 1))
    assert set(np.unique(result.particles["flag"])) <= {0, 1}
    again = parvi.sample(target, result.particles, num_steps=0)
    np.testing.assert_allclose(again.flat, flat, atol=1e-10)


def test_what_is_wrong_is_said_in_words(compiled):
    model = compiled("eight_schools", STAN_DATA["schools"])
    for settings, words in [
        ({"data": {}}, "has its data already"),
        ({"predictive": {"y": "nothing"}}, "has no nothing"),
        ({"predictive": {"z": "y_rep"}}, "data have no z"),
    ]:
        with pytest.raises(ValueError, match=words):
            parvi.from_stan(model, **settings)
    result = parvi.sample(model, num_particles=8, num_steps=0)
    with pytest.raises(ValueError, match="Stan does not draw from its prior"):
        result.to_arviz(num_prior=3)
    outside = result.particles | {"tau": -result.particles["tau"]}
    with pytest.raises(ValueError, match="outside the support"):
        parvi.sample(model, outside, num_steps=0)
