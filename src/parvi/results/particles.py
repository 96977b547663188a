"""The particles of a result on the scales on which they are asked for."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from parvi.kept import carefully
from parvi.run.initial import as_target
from parvi.targets.dependent import Dependent
from parvi.targets.flatten import AbstractLayout, Layout
from parvi.targets.minibatch import MiniBatch
from parvi.targets.target import AbstractTarget, Target

# Limit on the rows of data times particles that are evaluated at once.
_ROWS = 2_000_000


def flattened(
    target: Any, particles: PyTree[np.ndarray], known: Float[np.ndarray, "n d"] | None, method: str
) -> tuple[AbstractTarget, Any, list[str]]:
    """The target with all its data, the flat and unconstrained particles, and their names.

    ``known`` are the flat particles of a model of another library. ``method`` is the caller's
    name, for the message if there is no target.
    """
    if target is None:
        raise ValueError(
            f"A loaded result does not hold the log density: give it, result.{method}(target)."
        )
    target = as_target(target)
    if known is not None:
        layout: Any = _dependent(target, known)
        flat: Any = jnp.asarray(known)
    else:
        target = target.laid_out(first_of(particles))
        layout = target.layout
        assert isinstance(layout, Layout)
        flat = jax.vmap(layout.unconstrain)(particles)
    if isinstance(target, MiniBatch):
        # All the data, even if the steps of the run saw mini-batches.
        target = target.whole()
    elif not target.is_fixed:
        target = Target(target.full(), like=np.zeros(layout.dim, flat.dtype))
    return target, flat, layout.flat_names()


def _dependent(target: AbstractTarget, known: Float[np.ndarray, "n d"]) -> Dependent:
    """The layout of the model that these particles belong to."""
    layout = target.layout
    if not isinstance(layout, Dependent) or layout.dim != known.shape[1]:
        raise ValueError(
            f"These particles belong to a model with {known.shape[1]} unconstrained "
            "numbers: give its target, for instance parvi.from_numpyro(model, ...)."
        )
    return layout


def first_of(particles: PyTree[np.ndarray]) -> PyTree[np.ndarray]:
    """The first particle."""
    return jax.tree_util.tree_map(lambda leaf: leaf[0], particles)


def constrained(layout: AbstractLayout, flat: Any) -> PyTree[Any]:
    """The flat particles in their structure and on the scale of their constraints."""
    if isinstance(layout, Layout) and layout.is_flat:
        # The program would copy them, and there may be a million.
        return jax.tree_util.tree_unflatten(layout.treedef, [flat])
    return _constrained(layout, flat)


@carefully
def _constrained(layout, flat):
    return jax.vmap(layout.constrain)(flat)


@carefully
def log_densities(target: AbstractTarget, particles):
    """The user's log density of every particle, with all the data."""
    # One particle at a time would be slow, and all at once would need much memory for large data.
    num = len(jax.tree_util.tree_leaves(particles)[0])
    at_once = max(1, min(256, num, _ROWS // target.num_rows))
    return jax.lax.map(target.full().log_density, particles, batch_size=at_once)
