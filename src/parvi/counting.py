"""Counts how much a log density computes, from its traced form."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree

from parvi.kept import kept


def numbers_of(log_density: Callable, one: jax.ShapeDtypeStruct) -> float:
    """How many numbers are computed for the value and the score of one particle.

    The count is infinite if a loop has no known length.
    """
    return numbers(traced(log_density, one))


def traced(log_density: Callable, one: jax.ShapeDtypeStruct) -> Jaxpr:
    """The program of a value and a score, whose last argument is the particle."""
    static, arrays = separated(log_density)
    # jit remembers the trace, so a second run traces nothing.
    return _value_and_score.trace(static, arrays, one).jaxpr.jaxpr


def _both(static, arrays, x):
    return jax.value_and_grad(together(static, arrays))(x)


_value_and_score = kept(jax.jit(_both, static_argnums=0))


def separated(tree: PyTree) -> tuple[tuple, PyTree]:
    """The parts of a tree that are not arrays, as a static argument of jit, and its arrays."""
    arrays, static = eqx.partition(tree, eqx.is_array)
    leaves, structure = jax.tree_util.tree_flatten(static)
    return (tuple(leaves), structure), arrays


def together(static: tuple, arrays: PyTree) -> Any:
    """The tree that was ``separated``."""
    leaves, structure = static
    return eqx.combine(arrays, jax.tree_util.tree_unflatten(structure, leaves))


def operations_of(log_density: Callable, one: jax.ShapeDtypeStruct) -> float:
    """How many operations the value and the score of one particle take.

    Unlike in ``numbers_of``, an entry of a matrix product counts as all of its terms.
    """
    return numbers(traced(log_density, one), count=_terms)


def _entries(equation: Any) -> float:
    return sum(math.prod(getattr(out.aval, "shape", ())) for out in equation.outvars)


def _terms(equation: Any) -> float:
    """The entries of an operation's results, times the terms that are summed for each."""
    name, inputs = equation.primitive.name, equation.invars
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return _entries(equation) * math.prod(inputs[0].aval.shape[i] for i in contracted)
    if name == "conv_general_dilated":
        kernel, axis = inputs[1].aval.shape, equation.params["dimension_numbers"].rhs_spec[0]
        return _entries(equation) * (math.prod(kernel) // kernel[axis])
    return _entries(equation)


def numbers(jaxpr: Jaxpr, without: str = "", count: Callable[[Any], float] = _entries) -> float:
    """How many numbers a program computes, without calls of the function named ``without``.

    The count includes all branches, and is infinite if a loop has no known length. ``count`` says
    how much one operation counts.
    """
    total: float = 0
    for equation in jaxpr.eqns:
        if without and equation.params.get("name") == without:
            continue
        inner = _inner(equation)
        if equation.primitive.name == "while":
            return math.inf
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        if inner:
            total += times * sum(numbers(sub, without, count) for sub in inner)
        else:
            total += count(equation)
    return total


def calls_host(jaxpr: Jaxpr) -> bool:
    """Whether a program calls back into Python."""
    for equation in jaxpr.eqns:
        if "callback" in equation.primitive.name or any(map(calls_host, _inner(equation))):
            return True
    return False


def largest_array(jaxpr: Jaxpr, depends: list[bool] | None = None) -> int:
    """The size of the largest array computed from the arguments, or from those in ``depends``.

    Arrays that do not depend on them, above all the data, exist once for all particles.
    """
    depends = [True] * len(jaxpr.invars) if depends is None else depends
    known = {id(var) for var, does in zip(jaxpr.invars, depends, strict=True) if does}
    largest = 0
    for equation in jaxpr.eqns:
        flags = [not isinstance(v, Literal) and id(v) in known for v in equation.invars]
        if not any(flags):
            continue
        known.update(id(var) for var in equation.outvars)
        sizes = [getattr(out.aval, "size", 0) for out in equation.outvars]
        for inner in _inner(equation):
            same = len(inner.invars) == len(flags)
            sizes.append(largest_array(inner, flags if same else None))
        largest = max([largest, *sizes])
    return largest


def _inner(equation: Any) -> list[Jaxpr]:
    """The programs inside loops, branches and calls."""
    return _inside(list(equation.params.values()))


def _inside(value: Any) -> list[Jaxpr]:
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if isinstance(value, (tuple, list)):
        return [sub for item in value for sub in _inside(item)]
    return []
