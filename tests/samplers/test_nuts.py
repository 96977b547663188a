"""NUTS: exact moments, posteriordb's reference draws, and which draws the particles are."""

import json
import os
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.cloud import Cloud
from parvi.run.step import step
from parvi.samplers.nuts import NUTS, Net, _placed

NUM = 1000
# Bounds are 4.5 standard errors, as if only 400 of the 1000 particles were independent: a
# false-failure rate of 7e-6 for each number that is checked.
EFFECTIVE = 400


@pytest.mark.slow
def test_correlated_gaussian():
    covariance = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 100.0]])
    mean = np.array([3.0, -3.0, 30.0])
    precision = np.linalg.inv(covariance)
    start = np.random.default_rng(0).normal(size=(NUM, 3))
    result = parvi.sample(
        lambda x: -0.5 * (x - mean) @ precision @ (x - mean), start, sampler=parvi.nuts(300, 500)
    )
    scales = np.sqrt(np.diag(covariance))
    errors = (result.particles.mean(axis=0) - mean) / scales
    assert np.abs(errors).max() < 4.5 / np.sqrt(EFFECTIVE)
    # The standard error of a covariance is at most sqrt(2 / n) in units of the two scales.
    found = np.cov(result.particles.T) / np.outer(scales, scales)
    expected = covariance / np.outer(scales, scales)
    np.testing.assert_allclose(found, expected, atol=4.5 * np.sqrt(2 / EFFECTIVE))

    history = result.history
    assert result.status is parvi.Status.CONVERGED
    assert result.num_steps == 800
    assert history["divergences"][-1] == 0
    assert history["drawn"][299] == 0
    assert history["drawn"][-1] == 1
    # Chains of 500 draws that agree: r_hat - 1 is of the order of 1 / 500.
    assert np.isnan(history["r_hat"][:301]).all()
    assert 0.99 < history["r_hat"][-1] < 1.02
    # What dual averaging aims at; NUTS overshoots in few dimensions.
    assert 0.7 < history["acceptance"][300:].mean() < 0.95
    assert len(set(history["step_size"][300:])) == 1
    # E[(x - m) . s] = -d at the target, with the relative error of a variance.
    assert history["stein_ratio"][-1] == pytest.approx(1, abs=4.5 * np.sqrt(2 / EFFECTIVE))


def transitions_held(num_slots, num_draws, num_steps):
    """The transition in every slot, after each of ``num_steps`` draws."""

    def body(carry, number):
        net, transitions = carry
        net, slot = _placed(net, num_draws, number, False)
        transitions = transitions.at[slot].set(number, mode="drop")
        return (net, transitions), transitions

    zero = jnp.zeros((), jnp.int32)
    empty = jnp.full(num_slots, -1)
    numbers = jnp.arange(num_steps)
    return np.asarray(jax.lax.scan(body, (Net(empty, zero, zero), empty), numbers)[1])


@pytest.mark.parametrize(
    ("num_slots", "num_draws"), [(2, 2), (5, 37), (8, 64), (10, 19), (10, 1000), (128, 1000)]
)
def test_the_draws_are_evenly_thinned(num_slots, num_draws):
    held = np.sort(transitions_held(num_slots, num_draws, 3 * num_draws), axis=1)
    # At the planned end all slots are full and num_draws / num_slots apart, in whole steps.
    end = held[num_draws - 1]
    spacing = num_draws / num_slots
    assert end.min() >= 0
    assert np.diff(end).min() >= np.floor(spacing)
    assert np.diff(end).max() <= np.ceil(spacing)
    assert end[-1] >= num_draws - 1 - spacing
    # At every other end, from when they are full: distinct draws of the whole run, with gaps that
    # differ by a factor of two at most, but for the rounding.
    for number in range(2 * num_slots, 3 * num_draws):
        gaps = np.diff(held[number])
        assert gaps.min() >= 1
        assert gaps.max() <= 2 * (gaps.min() + 1)
        # Not every transition has a number, but every second one has.
        assert 0 <= held[number][0] <= 1
        assert held[number][-1] >= number - 2 * gaps.max() - 2


def test_particles_are_the_chains_own_states():
    # Eleven particles of two chains: six slots each, the last of the second chain is dropped.
    num_warmup = 150
    sampler = NUTS(num_warmup, num_draws=37, num_chains=2)
    start = jnp.asarray(np.random.default_rng(0).normal(size=(11, 2)), jnp.float32)
    cloud = Cloud.at(lambda x: -0.5 * jnp.sum(x**2), start)
    memory = sampler.init(jax.random.key(0), cloud)
    move = eqx.filter_jit(step)
    visited = []
    for number in range(num_warmup + 37):
        cloud, memory, info, _ = move(jax.random.key(number), cloud, memory, sampler)
        visited.append(np.asarray(memory.chains.position))
        # What is known of the rows goes with them.
        np.testing.assert_array_equal(cloud.scores, -cloud.particles)
        squares = jnp.sum(cloud.particles**2, axis=1)
        np.testing.assert_allclose(cloud.log_densities, -0.5 * squares, rtol=1e-6)
        assert info.gradients >= 2
        assert (info.status == parvi.Status.CONVERGED) == (number == num_warmup + 36)
        if number == num_warmup - 1:
            # The latest six transitions of the warm-up.
            latest = np.concatenate(visited[-6:])
            assert all((latest == row).all(axis=1).any() for row in np.asarray(cloud.particles))
    draws = np.stack(visited[num_warmup:])
    for chain in range(2):
        rows = np.asarray(cloud.particles)[chain::2]
        found = [int(np.flatnonzero((draws[:, chain] == row).all(axis=1))[0]) for row in rows]
        # Six over 37 draws are 6 to 7 apart; the second chain lost the row of one slot. A chain may
        # stay where it is, so that a state may be seen earlier than the draw that holds it.
        assert len(set(found)) == len(rows)
        gaps = np.diff(np.sort(found))
        assert gaps.min() >= 6 - 2
        assert gaps.max() <= 2 * 7 + 2
    assert float(info.extra["drawn"]) == 1


@pytest.mark.slow
def test_at_most_as_many_steps_as_planned():
    start = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    sampler = parvi.nuts(30, 20, num_chains=4)

    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    def run(num_steps):
        return parvi.sample(log_density, start, key=1, sampler=sampler, num_steps=num_steps)

    within, early, planned = run(10), run(35), run(95)
    assert [within.num_steps, early.num_steps, planned.num_steps] == [10, 35, 50]
    for result in (within, early, planned):
        assert result.particles.dtype == np.float32
        assert result.particles.shape == (40, 2)
        assert np.isfinite(result.particles).all()
    assert within.history["drawn"][-1] == 0
    assert 0 < early.history["drawn"][-1] < 1
    assert planned.history["drawn"][-1] == 1
    assert early.status is parvi.Status.MAX_STEPS
    assert planned.status is not parvi.Status.RUNNING
    # The same chains, seen for longer.
    np.testing.assert_array_equal(planned.history["step_size"][:35], early.history["step_size"])
    assert not np.array_equal(planned.particles, early.particles)


@pytest.mark.slow
def test_chains_that_disagree_have_not_converged():
    """Two modes 40 standard deviations apart, and a chain in each."""

    def log_density(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 20) ** 2), -0.5 * jnp.sum((x + 20) ** 2))

    start = 20 * np.array([[1.0], [-1.0]] * 10)
    apart = parvi.sample(log_density, start, sampler=parvi.nuts(50, 50, num_chains=2))
    assert apart.history["r_hat"][-1] > 5
    assert apart.status is parvi.Status.MAX_STEPS
    together = parvi.sample(log_density, np.abs(start), sampler=parvi.nuts(50, 200, num_chains=2))
    assert together.history["r_hat"][-1] < 1.1
    assert together.status is parvi.Status.CONVERGED


@pytest.mark.slow
def test_a_divergence_is_counted():
    # The funnel with a step that was learnt in a few transitions only: its neck diverges.
    start = np.random.default_rng(0).normal(size=(40, 10))
    result = parvi.sample(
        lambda x: -0.5 * (x[0] / 3) ** 2 - 0.5 * jnp.sum(x[1:] ** 2 * jnp.exp(-x[0]) + x[0]),
        start,
        sampler=parvi.nuts(50, 200, target_acceptance=0.5),
    )
    counts = result.history["divergences"]
    assert counts[49] == 0
    assert counts[-1] > 0
    assert np.all(np.diff(counts) >= 0)
    assert np.isfinite(result.particles).all()


@pytest.mark.slow
@pytest.mark.parametrize("num", [1, 3])
def test_one_particle_and_duplicates_stay_finite(num):
    sampler = parvi.nuts(2, 5)
    cloud = Cloud.at(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros((num, 2)))
    memory = sampler.init(jax.random.key(0), cloud)
    move = eqx.filter_jit(step)
    for number in range(6):
        cloud, memory, info, _ = move(jax.random.key(number), cloud, memory, sampler)
        assert np.isfinite(cloud.particles).all()
    # Fewer particles than chains: they are the chains themselves.
    np.testing.assert_array_equal(cloud.particles, memory.chains.position)
    assert np.isnan(info.extra["r_hat"]) == (num == 1)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="num_draws must be at least 1, got 0"):
        parvi.nuts(num_draws=0)
    with pytest.raises(ValueError, match="target_acceptance must be between 0 and 1"):
        parvi.nuts(target_acceptance=1.0)
    with pytest.raises(ValueError, match="raise num_draws to at least 250"):
        parvi.sample(lambda x: -jnp.sum(x**2), np.zeros((1000, 1)) + 1, sampler=parvi.nuts(10, 20))


def posterior(name):
    """Data and reference draws of a posterior of posteriordb."""
    folder = os.environ.get("PARVI_DATA")
    if folder is None:
        pytest.skip("PARVI_DATA does not name a folder with posteriordb's files")
    for place in (pathlib.Path(folder), pathlib.Path(folder) / "posteriordb"):
        if (place / f"{name}.data.json").exists():
            data = json.loads((place / f"{name}.data.json").read_text())
            with np.load(place / f"{name}.reference.npz", allow_pickle=False) as file:
                return data, file["draws"]
    pytest.skip(f"no {name}.data.json in PARVI_DATA={folder} or its subfolder posteriordb")


def normal(x, mean, scale):
    return -0.5 * ((x - mean) / scale) ** 2 - jnp.log(scale)


def half_cauchy(x, scale):
    return -jnp.log1p((x / scale) ** 2)


def eight_schools(data):
    y, errors = np.array(data["y"], float), np.array(data["sigma"], float)

    def log_density(p):
        theta = p["mu"] + p["tau"] * p["z"]
        prior = normal(p["mu"], 0, 5) + half_cauchy(p["tau"], 5) + jnp.sum(normal(p["z"], 0, 1))
        return prior + jnp.sum(normal(y, theta, errors))

    like = {"mu": np.zeros(()), "tau": np.ones(()), "z": np.zeros(8)}
    target = parvi.Target(log_density, like=like, constraints={"tau": parvi.Positive()})
    return target, lambda p: np.column_stack(
        [p["mu"][:, None] + p["tau"][:, None] * p["z"], p["mu"], p["tau"]]
    )


def kidscore_interaction(data):
    high_school, iq = np.array(data["mom_hs"], float), np.array(data["mom_iq"], float)
    design = np.column_stack([np.ones_like(iq), high_school, iq, high_school * iq])
    score = np.array(data["kid_score"], float)

    def log_density(p):
        likelihood = jnp.sum(normal(score, design @ p["beta"], p["sigma"]))
        return likelihood + half_cauchy(p["sigma"], 2.5)

    like = {"beta": np.zeros(4), "sigma": np.ones(())}
    target = parvi.Target(log_density, like=like, constraints={"sigma": parvi.Positive()})
    return target, lambda p: np.column_stack([p["beta"], p["sigma"]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "settings"),
    [
        # Stan's own setting for this one: its funnel diverges at 0.8.
        (
            "eight_schools-eight_schools_noncentered",
            eight_schools,
            {"target_acceptance": 0.95},
        ),
        # Correlations of 0.99 and standard deviations from 0.1 to 14, from a start of scale 1.
        pytest.param(
            "kidiq-kidscore_interaction",
            kidscore_interaction,
            {"num_warmup": 1000},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_reference_draws(name, model, settings):
    data, reference = posterior(name)
    target, columns = model(data)
    rng = np.random.default_rng(0)
    shapes = zip(target.layout.paths, target.layout.shapes, strict=True)
    start = {path: rng.normal(size=(NUM, *shape)) for path, shape in shapes}
    start |= {scale: np.exp(start[scale]) for scale in ("tau", "sigma") if scale in start}
    result = parvi.sample(target, start, sampler=parvi.nuts(**settings))
    found = columns(result.particles)
    assert found.shape == (NUM, reference.shape[1])
    # Free of the shape of the tails: the share of particles below the reference's quantiles.
    for quantile in (0.1, 0.5, 0.9):
        below = np.mean(found < np.quantile(reference, quantile, axis=0), axis=0)
        error = np.sqrt(quantile * (1 - quantile) / EFFECTIVE)
        np.testing.assert_allclose(below, quantile, atol=4.5 * error)
    assert result.history["divergences"][-1] <= 4
    assert result.history["r_hat"][-1] < 1.03
