"""Mini-batches: each step sees log prior + (N / B) x the log likelihood of B fresh rows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from parvi.targets.flatten import Layout
from parvi.targets.target import AbstractTarget, _Frozen


class MiniBatch(AbstractTarget):
    """A posterior whose likelihood is a sum over many rows.

    Rows are drawn with replacement, so a draw costs O(B) instead of O(N), and the log density and
    its gradient are unbiased. If ``batch_size`` is the number of rows, every step uses all of
    them and nothing is random.

    Parameters
    ----------
    log_prior
        Function of one particle that returns a scalar.
    log_likelihood
        Function ``(particle, batch)`` that returns the log likelihood of each row of the batch,
        or their sum.
    data
        Pytree of arrays with a common leading axis of N rows.
    batch_size
        B, the number of rows in each step.
    like, constraints
        As in ``Target``.
    """

    log_prior: Callable
    log_likelihood: Callable
    data: PyTree[Array]
    batch_size: int
    layout: Layout | None
    constraints: Any = eqx.field(static=True)

    def __init__(self, log_prior, log_likelihood, data, batch_size, like=None, constraints=None):
        leaves = jax.tree_util.tree_leaves(data)
        lengths = sorted({leaf.shape[0] if getattr(leaf, "shape", ()) else 0 for leaf in leaves})
        if len(lengths) != 1 or lengths[0] == 0:
            raise ValueError(
                f"data must be arrays with one common leading axis of rows, got lengths {lengths}."
            )
        if not 1 <= batch_size <= lengths[0]:
            raise ValueError(
                f"batch_size must be between 1 and the number of rows ({lengths[0]}), "
                f"got {batch_size}."
            )
        self.log_prior = log_prior
        self.log_likelihood = log_likelihood
        self.data = data
        self.batch_size = batch_size
        self.constraints = _Frozen(constraints)
        self.layout = None if like is None else Layout.of(like, constraints)

    @property
    def num_rows(self) -> int:
        """N, the number of rows of data."""
        return jax.tree_util.tree_leaves(self.data)[0].shape[0]

    @property
    def is_fixed(self):
        return self.batch_size == self.num_rows

    def at(self, key):
        if self.is_fixed:
            return self.full()
        rows = jax.random.randint(key, (self.batch_size,), 0, self.num_rows)
        batch = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf)[rows], self.data)
        return self._density(batch, self.num_rows / self.batch_size)

    def full(self):
        return self._density(self.data, 1.0)

    def laid_out(self, like):
        parts = (self.log_prior, self.log_likelihood, self.data, self.batch_size)
        return MiniBatch(*parts, like, self.constraints.value)

    def with_data(self, data: PyTree[Array]) -> "MiniBatch":
        """The same target with its data replaced, as when the rows are spread over devices."""
        return eqx.tree_at(lambda t: t.data, self, data, is_leaf=lambda leaf: leaf is None)

    def _density(self, batch, scale):
        return self._flat(_BatchDensity(self.log_prior, self.log_likelihood, batch, scale))


class _BatchDensity(eqx.Module):
    log_prior: Callable
    log_likelihood: Callable
    batch: PyTree[Array]
    scale: float

    def __call__(self, particle):
        likelihood = jnp.sum(self.log_likelihood(particle, self.batch))
        return self.log_prior(particle) + self.scale * likelihood
