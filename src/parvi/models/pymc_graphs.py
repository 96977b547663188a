"""Graphs of PyTensor as JAX functions."""

from collections.abc import Callable

import jax
from jax._src.config import enable_x64


def jaxified(inputs: list, outputs: list) -> Callable:
    """A graph of PyTensor as a JAX function, with JAX's precision as it was."""
    if not outputs:
        return lambda *values: []
    before = bool(enable_x64.get_global())
    try:
        # The first import switches x64 on for the whole process.
        from pymc.sampling.jax import get_jaxified_graph

        return get_jaxified_graph(inputs, outputs)
    finally:
        jax.config.update("jax_enable_x64", before)


def forward(model) -> Callable:
    """A function from the values of the free variables to those of the value variables."""
    inputs = [variable.type() for variable in model.free_RVs]
    replaced = dict(zip(model.free_RVs, inputs, strict=True))
    outputs = []
    for variable, given in zip(model.free_RVs, inputs, strict=True):
        transform = model.rvs_to_transforms[variable]
        moved = given if transform is None else transform.forward(given, *variable.owner.inputs)
        outputs.append(moved)
    from pytensor.graph.replace import graph_replace

    return jaxified(inputs, graph_replace(outputs, replaced, strict=False))
