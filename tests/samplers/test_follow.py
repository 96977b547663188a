"""Many particles make the transitions that some of them have made, a block at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
import parvi.cloud
import parvi.run.run
import parvi.status
from parvi.cloud import Cloud
from parvi.kept import forget
from parvi.run.run import Run
from parvi.samplers.apart import Apart
from parvi.samplers.explore import Explore
from parvi.samplers.follow import Follow
from parvi.samplers.sequence import Many, Sequence, Stage
from parvi.targets import zoo

DIM, NUM = 3, 2000
BOTH = Sequence(
    Stage("explore some", Apart(Explore(window=4, num_windows=2))), Stage("follow", Follow())
)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(parvi.cloud, "BLOCK", 250)
    forget()
    yield
    forget()


def narrow(exact):
    return (0.6 * exact.draw(np.random.default_rng(0), NUM)).astype(np.float32)


def test_narrow_particles_become_draws(small_blocks, monkeypatch):
    exact = zoo.rotated_gaussian(DIM, 9.0)
    found = {}
    for name, large in {"held": 1 << 30, "not held": 1}.items():
        monkeypatch.setattr(parvi.run.run, "_LARGE", large)
        found[name] = parvi.sample(exact.target, narrow(exact), sampler=BOTH)
    result = found["held"]
    assert result.status == parvi.Status.CONVERGED
    stage = result.history["stage"]
    # 4 + 8 transitions, if the first window has still seen the particles move.
    assert (stage == "follow").sum() in (4, 12)
    truth = exact.draw(np.random.default_rng(1), 100_000)
    # Five standard errors of a standard deviation of 2000 draws.
    ratios = result.particles.std(axis=0) / truth.std(axis=0)
    np.testing.assert_allclose(ratios, 1, atol=5 / (2 * NUM) ** 0.5)
    # Another key is another set of draws; a block is not a copy of another.
    assert len(np.unique(result.particles, axis=0)) == NUM
    np.testing.assert_allclose(found["not held"].particles, result.particles, rtol=1e-4, atol=1e-4)
    # A transition is one gradient at its beginning and one a leapfrog, of every particle; scores
    # that are held are found once more at its end.
    own = {
        name: r.history["gradients"][r.history["stage"] == "follow"] for name, r in found.items()
    }
    assert len(set(own["held"])) == 1
    assert own["held"][0] - own["not held"][0] == NUM
    leapfrogs = own["not held"][0] // NUM - 1
    assert own["not held"][0] == NUM * (1 + leapfrogs)
    step = result.history["step_size"][stage == "follow"][0]
    assert leapfrogs == round(np.pi / 2 / step)


def test_exploring_apart_moves_nothing(small_blocks):
    exact = zoo.rotated_gaussian(DIM, 9.0)
    start = narrow(exact)
    alone = Sequence(Stage("explore some", Apart(Explore(window=2, num_windows=1))))
    with pytest.warns(parvi.status.NotAtRestWarning, match="still move"):
        result = parvi.sample(exact.target, start, sampler=alone)
    np.testing.assert_array_equal(result.particles, start)
    assert result.history["drift"][-1] > 1
    # Every step evaluates the 250 particles that it moves, and the stage the same at its start.
    assert set(result.history["gradients"].tolist()) == {250}


def test_chunks_change_no_bit(small_blocks):
    exact = zoo.rotated_gaussian(DIM, 9.0)
    start = narrow(exact)
    unbroken, chunked = (Run.begin(exact.target, start, BOTH, key=3) for _ in range(2))
    unbroken.advance(1000)
    while not chunked.is_done:
        chunked.advance(3)
    assert unbroken.status == parvi.Status.CONVERGED
    assert not np.array_equal(unbroken.particles, start)
    np.testing.assert_array_equal(chunked.particles, unbroken.particles)


def test_what_some_particles_need_does_not_grow_with_all():
    rows = jax.ShapeDtypeStruct((100_000, DIM), np.float32)

    def memory(x):
        return Apart(Explore()).init(jax.random.key(0), Cloud.unread(lambda y: -jnp.sum(y**2), x))

    leaves = jax.tree_util.tree_leaves(jax.eval_shape(memory, rows))
    assert max(leaf.shape[0] for leaf in leaves if leaf.shape) <= parvi.cloud.BLOCK


def test_without_a_stage_that_explores_it_says_so():
    with pytest.raises(ValueError, match="needs a stage Apart"):
        parvi.sample(zoo.funnel().target, sampler=Sequence(Stage("follow", Follow())))


def test_many_is_many_particles_and_many_numbers():
    many = Many()
    assert many.known((50_000, 61), {})
    # A network's weights are many numbers of few particles; few numbers cost little.
    assert not many.known((100, 100_000), {})
    assert not many.known((100_000, 2), {})


@pytest.mark.slow
def test_the_default_follows_where_it_would_bend():
    """Affine maps leave a Student-t too narrow, which 20 000 particles show and 512 do not."""
    exact = zoo.student_t(60)
    start = np.random.default_rng(0).normal(size=(20_000, 60)).astype(np.float32)
    result = parvi.sample(exact.target, start)
    assert result.status == parvi.Status.CONVERGED
    names = list(dict.fromkeys(result.history["stage"].tolist()))
    assert names[-3:] == ["explore some", "follow", "verify again"]
    assert "bend" not in names
    truth = exact.draw(np.random.default_rng(1), 200_000)
    quantiles = [0.1, 0.5, 0.9, 0.98]
    ours, exact_ones = (
        np.quantile(np.linalg.norm(x, axis=1), quantiles) for x in (result.particles, truth)
    )
    # Five standard errors of the 98 % quantile of 20 000 draws, about.
    np.testing.assert_allclose(ours, exact_ones, rtol=0.03)
