"""The skeletons of CONTRIBUTING.md run as they stand."""

import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.fields import PFG, Ridge, Whitened
from parvi.functions import Linear
from parvi.steppers import Constant

PAGE = pathlib.Path(__file__).parents[1] / "CONTRIBUTING.md"


@pytest.fixture(scope="module")
def names():
    blocks = PAGE.read_text().split("```python\n")[1:]
    assert len(blocks) == 4
    found: dict = {}
    for block in blocks:
        exec(compile(block.split("```")[0], str(PAGE), "exec"), found)
    return found


def target(x):
    return -0.5 * jnp.sum(x**2)


def start():
    return 3 * np.random.default_rng(0).normal(size=(400, 2))


def test_the_field_shrinks_what_is_too_wide(names):
    result = parvi.sample(target, start(), sampler=parvi.Flow(names["Shrink"](), Constant(0.1)))
    # It sees E[x s] = -1, the variance about zero, and nothing else.
    np.testing.assert_allclose(np.mean(result.particles**2, axis=0), 1, rtol=0.05)


def test_the_preconditioner_makes_a_flow(names):
    field = Whitened(PFG(Linear(), names["SecondMoment"](), Ridge(1e-3)))
    result = parvi.sample(target, start(), sampler=parvi.Flow(field, Constant(0.5)))
    assert result.status == parvi.Status.CONVERGED
    np.testing.assert_allclose(result.particles.std(axis=0), 1, rtol=0.02)


def test_the_sampler_leaves_the_target_as_it_is(names):
    result = parvi.sample(target, start(), sampler=names["RandomWalk"](1.0), num_steps=300)
    # 400 independent chains: four standard errors of a standard deviation are 0.14.
    np.testing.assert_allclose(result.particles.std(axis=0), 1, atol=0.14)


def test_the_stages_follow_one_another_where_their_conditions_hold(names):
    def heavy(x):
        return -2 * jnp.sum(jnp.log1p(x**2))

    rng = np.random.default_rng(0)
    for log_density, draws, stages in (
        (target, rng.normal(size=(400, 2)), ["shrink"]),
        (heavy, rng.standard_t(3, size=(400, 2)), ["shrink", "walk"]),
    ):
        result = parvi.sample(log_density, draws, sampler=names["sampler"])
        assert list(dict.fromkeys(result.history["stage"].tolist())) == stages
        assert result.status == parvi.Status.CONVERGED
