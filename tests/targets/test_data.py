"""The same model with other data: the same programs, and the right answers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi

_COMPILED = "/jax/core/compile/backend_compile_duration"


class Counted:
    """Counts its traces, and the compilations of the process."""

    def __init__(self, log_density):
        self.traces, self.compilations = 0, 0
        self._log_density = log_density
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def __call__(self, *args):
        self.traces += 1
        return self._log_density(*args)

    def _listen(self, name, seconds, **_):
        self.compilations += name == _COMPILED


def gaussian(particle, data):
    """y ~ N(m, v I), m ~ N(0, I): the posterior is N(sum y / (rows + v), v / (rows + v))."""
    residuals = data["y"] - particle["m"]
    return -0.5 * jnp.sum(residuals**2) / data["v"] - 0.5 * jnp.sum(particle["m"] ** 2)


def data_set(number):
    rng = np.random.default_rng(number)
    return {"y": rng.normal(rng.normal(size=3), 1.0, (20, 3)), "v": 0.5 + number % 3}


def closed_form(data):
    rows, v = len(data["y"]), data["v"]
    return data["y"].sum(axis=0) / (rows + v), np.sqrt(v / (rows + v))


def test_a_hundred_data_sets_cost_one_compilation_and_have_their_own_posteriors():
    counted, affine = Counted(gaussian), parvi.pfg(num_features=0)
    target = parvi.Target(counted, like={"m": np.zeros(3)}, data=data_set(0))
    parvi.sample(target, num_particles=64, sampler=affine)
    before = counted.traces, counted.compilations
    assert min(before) > 0
    for number in range(1, 101):
        data = data_set(number)
        result = parvi.sample(target.with_data(data), key=number, num_particles=64, sampler=affine)
        mean, sd = closed_form(data)
        # Affine maps are exact on Gaussians up to the stopping rule.
        np.testing.assert_allclose(result.particles["m"].mean(axis=0), mean, atol=0.05 * sd)
        np.testing.assert_allclose(result.particles["m"].std(axis=0), sd, rtol=0.05)
    assert (counted.traces, counted.compilations) == before


@pytest.mark.slow
def test_the_default_compiles_each_of_its_stages_once():
    """Data may send a run through further stages; what was met before is not compiled again."""
    counted = Counted(gaussian)
    target = parvi.Target(counted, like={"m": np.zeros(3)}, data=data_set(0))
    seen, counts = set(), []
    for number in range(6):
        result = parvi.sample(target.with_data(data_set(number)), key=number, num_particles=64)
        counts.append((counted.traces, counted.compilations, set(result.history["stage"]) - seen))
        seen |= set(result.history["stage"])
    assert len(seen) > 2
    for before, after in itertools.pairwise(counts):
        assert before[:2] == after[:2] or after[2]


def test_own_derivatives_get_the_data_and_share_their_programs():
    score = Counted(lambda x, y: y - x)
    target = parvi.Target(
        lambda x, y: -0.5 * jnp.sum((y - x) ** 2),
        like=np.zeros(2),
        score=score,
        hessian_vector_product=lambda x, v, y: -v,
        data=np.array([1.0, 2.0]),
    )
    sampler = parvi.pfg(num_features=0)
    parvi.sample(target, num_particles=64, sampler=sampler)
    before = score.traces
    result = parvi.sample(
        target.with_data(np.array([-3.0, 4.0])), num_particles=64, sampler=sampler
    )
    assert score.traces == before > 0
    np.testing.assert_allclose(result.particles.mean(axis=0), [-3, 4], atol=0.05)


def test_rows_of_a_mini_batch_are_replaced_and_programs_shared():
    counted = Counted(lambda m, y: -0.5 * (y - m) ** 2)

    def target(data):
        return parvi.MiniBatch(_flat_prior, counted, data, len(data), like=np.zeros(()))

    rng = np.random.default_rng(0)
    first, second, longer = rng.normal(5, 1, 40), rng.normal(-2, 1, 40), rng.normal(0, 1, 60)
    whole, sampler = target(first), parvi.pfg(num_features=0)
    parvi.sample(whole, num_particles=64, sampler=sampler)
    before = counted.traces
    result = parvi.sample(whole.with_data(second), num_particles=64, sampler=sampler)
    assert counted.traces == before > 0
    np.testing.assert_allclose(result.particles.mean(), second.mean(), atol=0.01)
    # What uses all rows uses all of the new ones, and stays in float64.
    assert whole.with_data(longer).is_fixed
    assert whole.with_data(longer).is_wide
    part = parvi.MiniBatch(_flat_prior, counted, first, 10, like=np.zeros(()))
    assert part.with_data(longer).batch_size == 10
    with pytest.raises(ValueError, match="batch_size must be between 1 and the number of rows"):
        part.with_data(first[:5])


def _flat_prior(m):
    return -1e-6 * m**2


def test_wrong_data_are_refused_in_words():
    target = parvi.Target(gaussian, like={"m": np.zeros(3)}, data=data_set(0))
    with pytest.raises(ValueError, match="data of the target's structure"):
        target.with_data(np.zeros((20, 3)))
    with pytest.raises(ValueError, match="data must be arrays, got a str"):
        target.with_data({"y": np.zeros((20, 3)), "v": "1"})
    with pytest.raises(ValueError, match="no data to replace"):
        parvi.Target(lambda x: -jnp.sum(x**2)).with_data(np.zeros(3))
    batch = parvi.MiniBatch(_flat_prior, lambda m, y: y, np.zeros(4), 2)
    with pytest.raises(ValueError, match="data of the target's structure"):
        batch.with_data((np.zeros(4), np.zeros(4)))
