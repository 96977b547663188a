"""How hard the compiler should try.

XLA takes seconds to make the default's many small kernels fast, and a run of the default on a
small problem is over in a fraction of one. For those the kernels are compiled without
optimisation: two to three times sooner, each step four to five times slower. The choice is made
by the size of the problem, never by a clock: the same call always gives the same bits
(docs/decisions/0011-stages-and-effort.md).
"""

import functools
import math
from typing import Any

import equinox as eqx
import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from parvi.interface import AbstractSampler, LogDensity

# Of XLA's own debug options; the range of JAX versions is pinned.
QUICK: dict[str, str | bool] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": "0",
}
# Numbers computed in a step, at most: at 2.5 ns each 50 ms. A run has 15 to 60 such steps, and the
# optimising compiler takes four to five seconds longer.
_MOST = 20_000_000
# Numbers that the sampler itself computes, for each one of the particles and features.
_OWN = 30


def is_brief(
    sampler: AbstractSampler, log_density: LogDensity, particles: jax.ShapeDtypeStruct
) -> bool:
    """Whether a run of so many particles is over sooner than an optimising compiler."""
    if not sampler.brief or jax.default_backend() != "cpu":
        return False
    num, dim = particles.shape
    one = jax.ShapeDtypeStruct((dim,), particles.dtype)
    arrays, static = eqx.partition(log_density, eqx.is_array)
    leaves, structure = jax.tree_util.tree_flatten(static)
    # By way of jit, which remembers: a second run traces nothing.
    jaxpr = _value_and_score.trace((tuple(leaves), structure), arrays, one).jaxpr
    return num * (_OWN * (dim + min(num // 8, 128)) + _numbers(jaxpr.jaxpr)) <= _MOST


@functools.partial(jax.jit, static_argnums=0)
def _value_and_score(static, arrays, x):
    leaves, structure = static
    log_density = eqx.combine(arrays, jax.tree_util.tree_unflatten(structure, leaves))
    return jax.value_and_grad(log_density)(x)


def _numbers(jaxpr: Jaxpr) -> float:
    """Numbers that are computed; infinitely many where a loop has no known length."""
    total: float = 0
    for equation in jaxpr.eqns:
        inner = [sub for value in equation.params.values() for sub in _inside(value)]
        if equation.primitive.name == "while":
            return math.inf
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        if inner:
            total += times * sum(_numbers(sub) for sub in inner)
        else:
            total += sum(math.prod(getattr(out.aval, "shape", ())) for out in equation.outvars)
    return total


def _inside(value: Any) -> list[Jaxpr]:
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if isinstance(value, (tuple, list)):
        return [sub for item in value for sub in _inside(item)]
    return []
