"""Places that sum up what transitions visited, and polished particles compared with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.geometry.frame import DenseFrame
from parvi.interface import AbstractSampler, Info
from parvi.samplers.explore import Explore
from parvi.samplers.gather import Compare, Gather, _summed_up
from parvi.samplers.sequence import After
from parvi.targets import zoo

NUM = 256


@pytest.fixture(scope="module")
def exact():
    return zoo.rotated_gaussian(5, 100.0)


def draws(exact, seed=0):
    return exact.draw(np.random.default_rng(seed), NUM)


def test_one_place_of_every_chain_with_the_moments_of_all():
    rng = np.random.default_rng(0)
    visits = rng.normal(size=(12, NUM, 3))
    with jax.enable_x64(True):
        frame = DenseFrame.of(jnp.asarray(visits[0]))
        found = np.asarray(_summed_up(frame, jnp.asarray(visits)))
    # Each is a place of its own chain, to the last bit.
    assert (np.abs(found - visits).sum(axis=2) == 0).any(axis=0).all()
    every = visits.reshape(-1, 3)
    # One visit of every chain alone is off by about 256^-1/2 = 0.06.
    assert np.abs(found.mean(axis=0) - every.mean(axis=0)).max() < 0.005
    assert np.abs((found**2).mean(axis=0) - (every**2).mean(axis=0)).max() < 0.01


@pytest.mark.slow
def test_gathered_particles_are_closer_than_independent_draws(exact):
    """The error of a mean over 8 sets; that of independent draws is 1, and of their mean 0.2."""
    errors = []
    for seed in range(8):
        start = draws(exact, seed)
        result = parvi.sample(exact.target, start, sampler=Gather(), key=seed)
        assert result.status == parvi.Status.CONVERGED
        truth = exact.draw(np.random.default_rng(99), 200_000)
        sds = truth.std(axis=0)
        errors.append((result.particles.mean(axis=0) - truth.mean(axis=0)) / sds * NUM**0.5)
    assert np.sqrt(np.mean(np.square(errors))) < 0.6


@pytest.mark.slow
@pytest.mark.first_quick
@pytest.mark.parametrize(("wrong", "ends"), [(False, "CONVERGED"), (True, "NOT_AT_REST")])
def test_what_has_other_moments_does_not_pass(exact, wrong, ends):
    """A last stage that widens the particles by a fifth is seen, one that leaves them is not."""
    centre = exact.draw(np.random.default_rng(1), 100_000).mean(axis=0)

    first = parvi.sample(
        exact.target,
        draws(exact),
        sampler=parvi.Sequence(parvi.Stage("explore", Explore()), parvi.Stage("gather", Gather())),
    )
    particles = centre + 1.2 * (first.particles - centre) if wrong else first.particles
    sampler = parvi.Sequence(
        parvi.Stage("gather", Gather()),
        parvi.Stage("jump", _Jump(particles)),
        parvi.Stage("compare", Compare()),
    )
    if wrong:
        with pytest.warns(parvi.NotAtRestWarning, match="standard errors"):
            result = parvi.sample(exact.target, first.particles, sampler=sampler)
    else:
        result = parvi.sample(exact.target, first.particles, sampler=sampler)
    assert result.status.name == ends
    np.testing.assert_array_equal(result.particles, particles)


@pytest.mark.slow
def test_what_does_not_pass_can_be_explored_from_there(exact):
    """Particles that a stage has widened by a half come to rest, and are gathered once more."""
    truth = exact.draw(np.random.default_rng(1), 100_000)
    first = draws(exact)
    centre, lost = truth.mean(axis=0), parvi.Status.NOT_AT_REST
    sampler = parvi.Sequence(
        parvi.Stage("gather", Gather()),
        parvi.Stage("jump", _Jump(centre + 1.5 * (first - centre))),
        parvi.Stage("compare", Compare()),
        parvi.Stage("explore", Explore(), when=After("compare", lost)),
        parvi.Stage("gather again", Gather(), when=After("explore", parvi.Status.CONVERGED)),
    )
    result = parvi.sample(exact.target, first, sampler=sampler)
    assert result.status == parvi.Status.CONVERGED
    stages = list(dict.fromkeys(result.history["stage"].tolist()))
    assert stages == ["gather", "jump", "compare", "explore", "gather again"]
    # Five standard errors of the standard deviations of as many independent draws.
    ratios = result.particles.std(axis=0) / truth.std(axis=0)
    np.testing.assert_allclose(ratios, 1, atol=5 / (2 * len(first)) ** 0.5)


class _Jump(AbstractSampler):
    """Puts the particles somewhere, at once."""

    where: np.ndarray
    stopping_rule: object = parvi.stopping.Never()
    max_steps: int = 1

    def init(self, key, cloud):
        return ()

    def propose(self, key, cloud, memory):
        return jnp.asarray(self.where, cloud.dtype), memory

    def conclude(self, cloud, pending, arrived):
        info = Info.of(cloud, jnp.zeros(()), status=parvi.Status.CONVERGED)
        return jnp.ones((), bool), pending, info
