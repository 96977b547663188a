"""A map as arrays and a record of its structure, for ``Result.save`` and ``load``."""

import dataclasses
from typing import Any

import jax
import numpy as np

from parvi import constraints as kinds
from parvi.geometry.coupling import Coupling
from parvi.geometry.frame import DenseFrame
from parvi.results.transport.chain import Chain, Stack
from parvi.results.transport.layers import AbstractLayer, Affine, Bent, Coupled, Inverted
from parvi.results.transport.transport import Transport
from parvi.targets.flatten import Layout

_PREFIX = "transport/"
_KNOWN = {"Chain", "Stack", "Affine", "Coupled", "Inverted", "Bent"}


def as_arrays(transport: Transport) -> dict[str, np.ndarray]:
    """The arrays of a map, each under a name of its own."""
    leaves = jax.tree_util.tree_leaves(transport.maps)
    arrays = {f"{_PREFIX}{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    return arrays | {f"{_PREFIX}log_weights": np.asarray(transport.log_weights)}


def as_record(transport: Transport) -> dict[str, Any] | None:
    """The structure of a map, and the constraints of its layout, as JSON has them.

    None if a constraint is the user's own, or the layout is a model's, which a file cannot hold.
    """
    if not isinstance(transport.layout, Layout):
        return None
    constraints = transport.layout.constraints
    if any(type(own) is not getattr(kinds, type(own).__name__, None) for own in constraints):
        return None
    return {
        "maps": [_described(layer) for layer in transport.maps],
        "constraints": [_constraint(own) for own in constraints],
    }


def from_file(
    arrays: dict[str, np.ndarray], record: dict[str, Any], example: Any
) -> Transport | None:
    """The map that was saved; None if there is none.

    ``example``: one particle in the structure of the result.
    """
    saved = record.get("transport")
    if saved is None:
        return None
    own = {name.removeprefix(_PREFIX): a for name, a in arrays.items() if name.startswith(_PREFIX)}
    log_weights = own.pop("log_weights")
    numbers = iter(own[str(i)] for i in range(len(own)))
    maps = tuple(_rebuilt(node, numbers) for node in saved["maps"])
    made = [_known(name)(**fields) for name, fields in saved["constraints"]]
    layout = Layout.of(example)
    layout = dataclasses.replace(layout, constraints=tuple(made))
    return Transport(maps, log_weights, layout, None)


def _described(layer: AbstractLayer) -> Any:
    kind = type(layer).__name__
    if isinstance(layer, Chain):
        return [kind, [_described(own) for own in layer.layers]]
    if isinstance(layer, Inverted):
        return [kind, [_described(layer.layer)]]
    if kind not in _KNOWN:
        raise ValueError(f"A map with a layer of kind {kind} cannot be saved.")
    if isinstance(layer, (Bent, Stack)):
        return [kind, [layer.num_tails if isinstance(layer, Bent) else layer.bent.num_tails]]
    return [kind, []]


def _rebuilt(node: Any, numbers: Any) -> AbstractLayer:
    kind, inner = node
    if kind == "Chain":
        return Chain(tuple(_rebuilt(own, numbers) for own in inner))
    if kind == "Inverted":
        return Inverted(_rebuilt(inner[0], numbers))
    if kind == "Coupled":
        return Coupled(Coupling(*(next(numbers) for _ in dataclasses.fields(Coupling))))
    frame = DenseFrame(next(numbers), next(numbers), next(numbers))
    if kind == "Affine":
        return Affine(frame)
    # Files of earlier versions do not mention features for tails.
    num_tails = inner[0] if inner else 0
    bent = Bent(frame, next(numbers), next(numbers), next(numbers), num_tails)
    return Stack(bent) if kind == "Stack" else bent


def _constraint(constraint: Any) -> list:
    fields = dataclasses.fields(constraint)
    values = {field.name: float(getattr(constraint, field.name)) for field in fields}
    return [type(constraint).__name__, values]


def _known(name: str) -> Any:
    found = getattr(kinds, name, None) if name != "AbstractConstraint" else None
    if not isinstance(found, type) or not issubclass(found, kinds.AbstractConstraint):
        raise ValueError(f"A saved map has the unknown constraint {name!r}.")
    return found
