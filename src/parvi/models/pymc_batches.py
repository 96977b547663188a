"""Mini-batches of PyMC models. Needs PyMC.

``pm.Minibatch`` draws rows inside the graph, by a random generator of its own. Here the rows become
an input, which ``MiniBatch`` draws. The graph is made for B rows at a time, so other numbers of
rows are taken in pieces of B.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytensor.tensor as pt
from pymc.data import MinibatchOp
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from parvi.models.pymc_graphs import jaxified


def _nodes(outputs: list) -> list[Any]:
    owners = {variable.owner for variable in ancestors(outputs)}
    return [node for node in owners if node is not None and isinstance(node.op, MinibatchOp)]


def depends_on_batch(outputs: list) -> bool:
    """Whether some variable of a graph depends on a mini-batch."""
    return bool(_nodes(outputs))


class Batch:
    """The log prior and the log likelihood of some rows, as functions of the value variables."""

    def __init__(
        self, log_prior: Callable, points: Callable, scaled: dict[str, bool], num_rows, batch_size
    ):
        self._log_prior, self._points = log_prior, points
        self._scaled, self.names = list(scaled.values()), list(scaled)
        self.num_rows, self.batch_size = num_rows, batch_size

    def log_prior(self, *values):
        """Everything that does not depend on the mini-batch."""
        return sum(self._log_prior(*values))

    def log_likelihood(self, values, rows):
        """The log likelihood of each row."""
        found = self.each(values, rows)
        return sum(each.reshape(len(rows), -1).sum(axis=1) for each in found)

    def each(self, values, rows):
        """The log likelihoods of all observed variables, row by row."""
        pieces = math.ceil(len(rows) / self.batch_size)
        short = pieces * self.batch_size - len(rows)
        filled = jnp.concatenate([rows, jnp.zeros(short, rows.dtype)])
        found = jax.vmap(lambda own: self._points(*values, own))(filled.reshape(pieces, -1))
        # PyMC has scaled variables with a total_size to all rows, and MiniBatch does so itself.
        factors = [self.batch_size / self.num_rows if s else 1.0 for s in self._scaled]
        flat = [each.reshape(-1, *each.shape[2:])[: len(rows)] for each in found]
        return [factor * each for factor, each in zip(factors, flat, strict=True)]


def batch_of(model) -> Batch | None:
    """The mini-batch of a model, if it has one; a ``ValueError`` says what cannot be one."""
    inner = [variable for variable in model.observed_RVs if _depends(model, variable)]
    others = [variable for variable in model.observed_RVs if variable not in inner]
    priors = model.logp(vars=[*model.free_RVs, *model.potentials, *others], sum=False)
    if depends_on_batch(priors):
        raise ValueError(
            "A free variable or a potential depends on pm.Minibatch, so every step would have "
            "another prior: let only observed variables depend on it."
        )
    if not inner:
        return None
    points = model.logp(vars=inner, sum=False)
    nodes = _nodes(points)
    if len({node.inputs[-1] for node in nodes}) > 1:
        raise ValueError(
            "The model has several mini-batches, whose rows are drawn apart: give all arrays to "
            "one pm.Minibatch(x, y, batch_size=...)."
        )
    (num_rows,) = {int(given.shape[0].eval()) for node in nodes for given in node.inputs[:-1]}
    batch_size = nodes[0].outputs[0].type.shape[0]
    for variable, point in zip(inner, points, strict=True):
        if not point.ndim or point.type.shape[0] != batch_size:
            raise ValueError(
                f"The observed variable {variable.name} depends on pm.Minibatch, but its log "
                "likelihood is not one number a row: make the rows its first axis."
            )
    rows = pt.lvector("rows")
    replaced = {
        out: given[rows]
        for node in nodes
        for out, given in zip(node.outputs[:-1], node.inputs[:-1], strict=True)
    }
    graph = jaxified([*model.value_vars, rows], clone_replace(points, replaced))
    prior = jaxified(model.value_vars, [pt.sum(each) for each in priors])
    scaled = {v.name: isinstance(v.owner.op, MinibatchRandomVariable) for v in inner}
    return Batch(prior, graph, scaled, num_rows, batch_size)


def _depends(model, variable) -> bool:
    return depends_on_batch([variable, model.rvs_to_values[variable]])
