"""Stan models through BridgeStan; the folder of BridgeStan is that of the variable BRIDGESTAN."""

import os
import pathlib
import shutil
import warnings

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
FILE_NAMES = {"schools": "eight_schools", "radon": "radon"}


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
        groups = {"predictive": {"y": "y_rep"}, "log_likelihood": {"y": "log_lik"}}
        return parvi.from_stan(compiled(FILE_NAMES[name], STAN_DATA[name]), **groups)

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
        ({"dims": {"nothing": ["school"]}}, "nothing is not in the model"),
        ({"dims": {"theta": ["a", "b"]}}, r"theta has the shape \(8,\)"),
        ({"dims": {"theta": ["a"]}, "coords": {"a": [1, 2]}}, "as many coords= as it has places"),
    ]:
        with pytest.raises(ValueError, match=words):
            parvi.from_stan(model, **settings)
    result = parvi.sample(model, num_particles=8, num_steps=0)
    with pytest.raises(ValueError, match="Stan does not draw from its prior"):
        result.to_arviz(num_prior=3)
    outside = result.particles | {"tau": -result.particles["tau"]}
    with pytest.raises(ValueError, match="outside the support"):
        parvi.sample(model, outside, num_steps=0)


def simulate(rng):
    """Parameters from the prior of ``normal.stan``, and data at them."""
    mean, sd = rng.normal(), abs(rng.normal())
    return {"mean": mean, "sd": sd}, {"y": rng.normal(mean, sd, size=6)}


def normal(compiled, function):
    library = compiled("normal", {"N": 6, "y": [0.0] * 6})
    return parvi.from_stan(library, simulate=function)


def test_a_model_for_calibration_has_the_density_of_every_data_set(compiled):
    model = normal(compiled, simulate).as_model()
    for key in (0, 1):
        truths, numbers = model.drawn(jax.random.key(key), 3)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.key(key))).tolist())
        for i, number in enumerate(numbers):
            parameters, data = simulate(rng)
            np.testing.assert_allclose(truths["mean"][i], parameters["mean"])
            np.testing.assert_allclose(truths["sd"][i], np.log(parameters["sd"]))
            alone = compiled("normal", {"N": 6, "y": data["y"].tolist()})
            point = np.array([0.3, -0.2])

            def log_density(x, number=number):
                return model.log_density({"mean": x[0], "sd": x[1]}, number)

            with jax.enable_x64(True):
                found = jax.value_and_grad(log_density)(point)
                bent = jax.hessian(log_density)(point)
            value, score = alone.log_density_gradient(point)
            np.testing.assert_allclose(found[0], value, rtol=1e-12)
            np.testing.assert_allclose(found[1], score, rtol=1e-12)
            products = [alone.log_density_hessian_vector_product(point, e)[1] for e in np.eye(2)]
            np.testing.assert_allclose(bent, products, rtol=1e-9)


def test_a_stan_model_with_a_simulator_is_calibrated(compiled):
    """By chance it fails in one of a hundred keys; this one is fixed."""
    found = parvi.calibrate(normal(compiled, simulate), 0, num=60, num_particles=256)
    assert found, repr(found)
    assert found.names == ["mean", "sd", "log density"]


def test_a_simulator_that_is_no_simulator_of_the_model_is_refused_in_words(compiled):
    for function, words in [
        (None, "Give parvi.from_stan.*simulate"),
        (lambda rng: 3.0, "must return two dicts"),
        (lambda rng: ({"mean": 0.0}, {}), "draw the parameters mean, sd, got mean"),
        (lambda rng: ({"mean": 0.0, "sd": -1.0}, {}), "outside their support"),
        (lambda rng: ({"mean": [0.0], "sd": 1.0}, {}), r"drew mean of shape \(1,\)"),
        (lambda rng: ({"mean": 0.0, "sd": 1.0}, {"z": 1.0}), "drew z"),
    ]:
        with pytest.raises(ValueError, match=words):
            parvi.calibrate(normal(compiled, function), 0, num=20)


@pytest.mark.parametrize("name", sorted(STAN_DATA))
def test_means_are_those_of_nuts_by_stan(stan, name):
    pystan = pytest.importorskip("stan", reason="needs the package pystan")
    code = (FILES / f"{FILE_NAMES[name]}.stan").read_text()
    with warnings.catch_warnings():
        # PyStan's dependencies use names that later Pythons will not have.
        warnings.simplefilter("ignore")
        built = pystan.build(code, data=STAN_DATA[name], random_seed=1)
        draws = built.sample(num_chains=1, num_samples=10_000, num_warmup=1000, delta=0.95)
    result = parvi.sample(stan(name), num_particles=1024)
    for site, particles in result.particles.items():
        # The draws are along the last axis.
        own = draws[site].reshape(*particles.shape[1:], -1)
        mean, sd = own.mean(axis=-1), own.std(axis=-1)
        # 10 000 draws of NUTS are worth some thousands, whose means err by 0.02.
        assert np.abs((particles.mean(axis=0) - mean) / sd).max() < 0.1, site


def test_a_misspelt_name_is_said_with_those_that_there_are(compiled, tmp_path):
    # BridgeStan warns of a library that is loaded twice.
    library = compiled("eight_schools", STAN_DATA["schools"]).lib_path
    library = shutil.copy(library, tmp_path / "other_model.so")
    data = {"J": 8, "y": list(EFFECTS), "sgima": [1.0] * 8}
    with pytest.raises(ValueError, match=r"The data have no sigma; they have J, y, sgima\.$"):
        parvi.from_stan(library, data)
