"""The front door, with whatever comes: a finite result with a true status, or an error of ours."""

import warnings

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import parvi

pytestmark = pytest.mark.xdist_group("fuzz")

SAMPLERS = {
    "pfg": parvi.pfg,
    "svgd": parvi.svgd,
    "langevin": parvi.langevin,
    "sgld": parvi.sgld,
    "mala": parvi.mala,
    "algorithm 1": parvi.pfg_algorithm_1,
    "wild": lambda: parvi.langevin(1e30),
    "no sampler": lambda: "svgd",
}
CONSTRAINTS = [
    None,
    parvi.Positive(),
    parvi.Interval(-1.0, 2.0),
    parvi.Ordered(),
    parvi.Simplex(),
    "positive",
]
LOG_DENSITIES = {
    "normal": lambda x: -0.5 * jnp.sum(x**2),
    "narrow": lambda x: -5e5 * jnp.sum((x - 0.3) ** 2),
    "skewed": lambda x: jnp.sum(x - jnp.exp(x)),
    "flat": lambda x: 0.0 * jnp.sum(x),
    "improper": lambda x: jnp.sum(x),
    "log": lambda x: jnp.sum(jnp.log(x)) - jnp.sum(x),
    "a vector": lambda x: -(x**2),
    "nothing": lambda x: None,
    "NaN": lambda x: jnp.nan * jnp.sum(x),
    "steps": lambda x: -jnp.sum(jnp.round(x) ** 2),
}


@st.composite
def calls(draw):
    """A target, first particles and settings, most of them sound."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    num = draw(st.sampled_from([2, 3, 16, 40, 40]))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.float64, np.int64, np.float16]))
    shapes = draw(st.lists(st.sampled_from([(), (1,), (3,), (2, 2), (0,)]), min_size=1, max_size=3))
    scale = draw(st.sampled_from([1.0, 1.0, 1.0, 0.0, 1e-6, 1e8, np.nan]))
    kinds = [draw(st.sampled_from(CONSTRAINTS)) for _ in shapes]
    leaves = {}
    for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=True)):
        values = scale * rng.normal(size=(num, *shape))
        if isinstance(kind, parvi.Positive):
            values = np.exp(np.clip(values, -20, 20))
        with np.errstate(all="ignore"):
            leaves[f"p{i}"] = values.astype(dtype) if np.isfinite(values).all() else values
    name = draw(st.sampled_from(list(LOG_DENSITIES)))
    function = LOG_DENSITIES[name]

    def log_density(p):
        parts = [function(leaf) for leaf in jax.tree_util.tree_leaves(p)]
        return parts[0] if len(parts) == 1 else sum(parts)

    given_kinds = {f"p{i}": kind for i, kind in enumerate(kinds) if kind is not None}
    return {
        "log_density": log_density,
        "constraints": given_kinds or None,
        "init": leaves,
        "key": draw(st.sampled_from([0, 7, -1, 2**40, "key", None])),
        "sampler": SAMPLERS[draw(st.sampled_from(list(SAMPLERS)))],
        "num_steps": draw(st.sampled_from([0, 1, 4, 4, -1, 1.5])),
    }


def holds(call):
    """Whatever comes out is one of two things."""
    call, said = dict(call), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            target = parvi.Target(call.pop("log_density"), constraints=call.pop("constraints"))
            result = parvi.sample(target, throw=False, sampler=call.pop("sampler")(), **call)
        except (ValueError, TypeError) as error:
            said = str(error)
    if said is not None:
        # Of ours: in words, and not from the inside of JAX.
        assert len(said) > 20, said
        assert "Traced<" not in said, said
        return
    assert isinstance(result.status, parvi.Status)
    assert result.status not in (parvi.Status.RUNNING, parvi.Status.INTERRUPTED)
    for leaf in jax.tree_util.tree_leaves(result.particles):
        assert np.isfinite(leaf).all()
    assert result.num_steps <= call["num_steps"]


COMMON = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


@settings(max_examples=15, **COMMON)
@given(calls())
def test_the_front_door(call):
    holds(call)


@pytest.mark.slow
@settings(max_examples=200, **COMMON)
@given(calls())
def test_the_front_door_for_longer(call):
    holds(call)
