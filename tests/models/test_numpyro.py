"""What NumPyro models may hold: supports, discrete sites, mini-batches, and what is refused."""

import concurrent.futures
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import parvi
from models.fronts import NUMPYRO, POINTS

X = np.random.default_rng(0).normal(size=(40, 2))
Y = X @ np.array([1.0, -2.0]) + np.random.default_rng(1).normal(size=40)


def regression(x, y, batch_size=None):
    beta = numpyro.sample("beta", dist.Normal(0, 3).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1))
    with numpyro.plate("row", len(y), subsample_size=batch_size) as rows:
        numpyro.deterministic("mean", x[rows] @ beta)
        numpyro.sample("y", dist.Normal(x[rows] @ beta, sd), obs=y[rows])


def supports():
    low = numpyro.sample("low", dist.Uniform(0, 1))
    numpyro.sample("high", dist.Uniform(low, 2))
    numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("factor", dist.LKJCholesky(3, 2.0))
    numpyro.sample("sums", dist.ZeroSumNormal(1.0, (4,)))


@pytest.mark.slow
def test_supports_may_depend_on_one_another():
    result = parvi.sample(supports, num_particles=32, num_steps=0)
    particles = result.particles
    assert result.flat.shape == (32, 1 + 1 + 2 + 3 + 3)
    assert (particles["low"] < particles["high"]).all()
    assert (particles["high"] < 2).all()
    np.testing.assert_allclose(particles["p"].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(particles["sums"].sum(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose((particles["factor"] ** 2).sum(axis=-1), 1, rtol=1e-5)
    # The Jacobian of high = low + (2 - low) sigmoid(u), against automatic differentiation.
    again = parvi.sample(result.target, particles, num_steps=0)
    np.testing.assert_allclose(again.flat, result.flat, atol=1e-4)


def test_a_subsampled_plate_is_a_mini_batch():
    whole = parvi.from_numpyro(regression, jnp.asarray(X), jnp.asarray(Y))
    target = parvi.from_numpyro(regression, jnp.asarray(X), jnp.asarray(Y), batch_size=8)
    assert isinstance(target, parvi.MiniBatch)
    assert (target.num_rows, target.batch_size) == (40, 8)
    point = np.array([0.5, 1.0, 0.3])
    with jax.enable_x64(True):

        @jax.jit
        def parts(x, key):
            sums = target.full()(x), whole.full()(x), target.log_prior(x), target.at(key)(x)
            return *sums, target.log_likelihood(x, jnp.arange(40)), target.drawn(key, 8)

        found = parts(point, jax.random.key(3))
        full, expected, rest, step, each, rows = map(np.asarray, found)
        assert abs(full - expected) < 1e-9
        # Row by row it is the same sum, and a step scales its rows by N / B.
        assert each.shape == (40,)
        assert abs(rest + each.sum() - expected) < 1e-9
        assert abs(step - rest - 5 * each[rows].sum()) < 1e-9
    # Whatever the model computes sees all rows.
    start = point + np.array([[0.0], [0.1]])
    result = parvi.sample(target, start, num_steps=0)
    np.testing.assert_allclose(result.particles["mean"], result.particles["beta"] @ X.T, rtol=1e-6)
    groups = result.to_arviz()
    np.testing.assert_allclose(groups["log_likelihood"]["y"].values[0, 0], each, rtol=1e-6)


@pytest.mark.slow
def test_discrete_sites_are_summed_out_and_drawn_for_the_log_likelihood():
    target = NUMPYRO["mixture"]()
    assert target.layout.paths == ("means", "sd", "weight")
    flat = np.array([[0.0, -2.0, np.log(3.5), -0.4]]).repeat(64, axis=0)
    flat = flat + 1e-3 * np.random.default_rng(0).normal(size=flat.shape)
    data = parvi.sample(target, flat, num_steps=0).to_arviz()
    found = data["log_likelihood"]["y"].values[0]
    # With its component known, a point has one of two log densities.
    each = dist.Normal(np.array([-2.0, 1.5]), np.exp(-0.4)).log_prob(POINTS[:, None])
    nearest = np.abs(found[:, :, None] - np.asarray(each)).min(axis=2)
    assert nearest.max() < 0.1
    assert data["posterior_predictive"]["y"].shape == (1, 64, 80)
    # Predictions come from both components.
    assert 0.3 < (data["posterior_predictive"]["y"].values > 0).mean() < 0.7


@pytest.mark.slow
def test_a_model_may_be_traced_on_several_threads():
    """As programs of later stages are; NumPyro's stack of handlers belongs to the process."""
    target = NUMPYRO["mixture"]()

    def traced(i):
        # A function of its own, or JAX would remember the first trace.
        return str(jax.make_jaxpr(lambda x: target.log_density(x))(np.zeros(4, np.float32)))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(traced, range(16)))) == 1
    finally:
        sys.setswitchinterval(before)


def with_choice(y):
    k = numpyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    mean = numpyro.sample("mean", dist.Normal())
    numpyro.deterministic("twice", 2 * mean)
    numpyro.deterministic("chosen", mean + k)
    numpyro.sample("y", dist.Normal(mean + k, 1), obs=y)


def test_deterministics_of_discrete_sites_are_left_out():
    assert parvi.from_numpyro(with_choice, 1.0).layout.paths == ("mean", "twice")


def masked(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    seen = jnp.array([True, True, False])
    with numpyro.plate("row", 3):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y, obs_mask=seen)


def unbounded():
    numpyro.sample("known", dist.Normal())
    numpyro.sample("rate", dist.ImproperUniform(dist.constraints.positive, (), ()))


def kinked():
    numpyro.sample("far", dist.Laplace(20.0, 1.0))


@pytest.mark.parametrize(
    ("model", "words"),
    [(lambda: masked(jnp.ones(3)), r"no end in y_unobserved\[0\]"), (unbounded, r"in rate \(1\)")],
    ids=["obs_mask", "improper"],
)
def test_coordinates_without_an_end_are_refused(model, words):
    with pytest.raises(ValueError, match=words):
        parvi.sample(model, num_particles=8, num_steps=0)


def test_a_density_that_ends_far_away_is_not_refused():
    assert parvi.sample(kinked, num_particles=8, num_steps=0).flat.shape == (8, 1)


def local(y):
    with numpyro.plate("row", len(y), subsample_size=2) as rows:
        mean = numpyro.sample("mean", dist.Normal())
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])


def crossed(y):
    numpyro.sample("mean", dist.Normal())
    with numpyro.plate("a", 10, subsample_size=2), numpyro.plate("b", 5, subsample_size=2):
        numpyro.sample("y", dist.Normal(), obs=jnp.zeros((2, 2)))


def counted():
    rate = numpyro.sample("rate", dist.Gamma(2, 1))
    numpyro.sample("count", dist.Poisson(rate))


def fixed():
    numpyro.sample("at", dist.Delta(1.0))


@pytest.mark.parametrize(
    ("model", "args", "words"),
    [
        (local, (jnp.zeros(10),), "latent site mean is inside the plate row"),
        (crossed, (None,), "plates a, b all have a subsample_size"),
        (counted, (), "count is a Poisson, whose values cannot be enumerated"),
        (fixed, (), "use numpyro.deterministic"),
        (lambda: None, (), "no continuous latent site"),
        (regression, (X,), "cannot be called with these arguments.*'y'"),
        ("model", (), "NumPyro model is a function, got str"),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_words(model, args, words):
    with pytest.raises(ValueError, match=words):
        parvi.from_numpyro(model, *args)


def test_init_is_checked_in_words():
    target = NUMPYRO["schools"]()
    good = parvi.sample(target, num_particles=4, num_steps=0).particles
    cases = [
        ({"mu": good["mu"], "tau": good["tau"]}, r"\['t'\] are missing"),
        (good | {"nu": good["mu"]}, r"has no \['nu'\]"),
        (good | {"t": good["t"][:, :3]}, r"shape \(3,\) for t"),
        (good | {"tau": -good["tau"]}, "outside the support of tau at 4 of 4"),
        (np.zeros((4, 3)), "10 unconstrained numbers; got ndarray of shape"),
    ]
    for init, words in cases:
        with pytest.raises(ValueError, match=words):
            parvi.sample(target, init, num_steps=0)


def normal(y=None):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    sd = numpyro.sample("sd", dist.HalfNormal(1))
    with numpyro.plate("row", 6):
        numpyro.sample("y", dist.Normal(mean, sd), obs=y)


def test_a_model_for_calibration_has_its_prior_its_data_and_its_density():
    target = parvi.from_numpyro(normal, y=np.zeros(6))
    model = target.as_model()
    with jax.enable_x64(True):
        truths, data = jax.vmap(lambda key: drawn(model, key))(
            jax.random.split(jax.random.key(0), 2000)
        )
        # The prior, not the posterior of the data at hand; five standard errors.
        assert abs(np.mean(truths["mean"])) < 5 / 2000**0.5
        assert abs(np.std(truths["mean"]) - 1) < 5 / 4000**0.5
        spread = (data["y"] - truths["mean"][:, None]) / np.exp(truths["sd"])[:, None]
        assert abs(np.std(spread) - 1) < 5 / 24_000**0.5
        # The density of other data is that of a target of these data.
        other = parvi.from_numpyro(normal, y=np.asarray(data["y"][0]))
        for values in ({"mean": 0.3, "sd": -0.2}, {"mean": -1.0, "sd": 0.5}):
            parameters = {name: np.asarray(value) for name, value in values.items()}
            found = model.log_density(parameters, {"y": data["y"][0]})
            flat = np.array([values["mean"], values["sd"]])
            np.testing.assert_allclose(found, other.full()(flat), rtol=1e-10)


def drawn(model, key):
    first, second = jax.random.split(key)
    truth = model.prior(first)
    return truth, model.simulate(second, truth)


@pytest.mark.slow
def test_a_numpyro_model_is_calibrated():
    found = parvi.calibrate(parvi.from_numpyro(normal, y=np.zeros(6)), key=0, num=100)
    assert found, repr(found)


def test_what_cannot_be_calibrated_says_so():
    with pytest.raises(ValueError, match="no observed site"):
        parvi.calibrate(parvi.from_numpyro(supports))
    with pytest.raises(ValueError, match="does not say how to draw"):
        parvi.calibrate(parvi.Target(lambda x: -jnp.sum(x**2), like=np.zeros(2)))
