"""Mini-batches: each step sees log prior + (N / B) x the log likelihood of B fresh rows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from parvi.targets.flatten import AbstractLayout, Layout, is_wide
from parvi.targets.rows import RowSum, blocks_for, num_rows_of
from parvi.targets.target import AbstractTarget, _Frozen, check_alike


class MiniBatch(AbstractTarget):
    """A posterior whose likelihood is a sum over many rows.

    Rows are drawn with replacement, so a draw costs O(B) instead of O(N), and the log density and
    its gradient are unbiased. If ``batch_size`` is the number of rows, every step uses all of
    them and nothing is random.

    Samplers that are made for mini-batches (``parvi.sgld()``, ``parvi.pfg_algorithm_1()``) take
    them as they come. The default compares log densities of different steps, which would mean
    nothing with a new batch at every step. So it takes ``batch_size`` as a wish:

    - If all rows are cheap enough, or little more than a batch, it uses all of them, in blocks if
      memory demands it. The limit is a count of operations and does not depend on the machine's
      speed.
    - If they are too expensive and there are at least 1.5 particles per dimension, it draws a
      subset of rows for a round. The subset's log density is corrected to second order by all
      rows, and later rounds take more rows until the noise that is left is small
      (``parvi.run.rounds``).
    - If they are too expensive and there are fewer particles, as for a large network, it makes 500
      falling steps of Algorithm 1 on mini-batches, and says that nothing was tested.

    ``result.history["rows"]`` is the number of rows in each step.

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
    num_blocks
        Number of blocks in which all rows are summed. A run chooses it by the memory that all rows
        would take.
    """

    log_prior: Callable
    log_likelihood: Callable
    data: PyTree[Array]
    batch_size: int
    layout: AbstractLayout | None
    constraints: Any = eqx.field(static=True)
    num_blocks: int
    wide: bool = eqx.field(static=True)

    def __init__(
        self,
        log_prior,
        log_likelihood,
        data,
        batch_size,
        like=None,
        constraints=None,
        num_blocks=1,
    ):
        if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)):
            raise ValueError(f"batch_size must be an int, got {batch_size!r}.")
        _check_rows(data, int(batch_size))
        self.log_prior = log_prior
        self.log_likelihood = log_likelihood
        self.data = data
        self.batch_size = int(batch_size)
        self.constraints = _Frozen(constraints)
        known = like is None or isinstance(like, AbstractLayout)
        self.layout = like if known else Layout.of(like, constraints)
        self.num_blocks = num_blocks
        self.wide = is_wide(like)

    @property
    def is_wide(self):
        return self.wide

    @property
    def num_rows(self) -> int:
        """N, the number of rows of data."""
        return num_rows_of(self.data)

    @property
    def is_fixed(self):
        return self.batch_size == self.num_rows

    def at(self, key):
        if self.is_fixed:
            return self.full()
        batch = self.drawn(key, self.batch_size)
        likelihood = RowSum(self.log_likelihood, batch)
        return self._flat(_Posterior(self.log_prior, likelihood, self.num_rows / self.batch_size))

    def full(self):
        return self._flat(_Posterior(self.log_prior, self.likelihood, 1.0))

    @property
    def likelihood(self) -> RowSum:
        """The log likelihood of all rows, a function of one particle."""
        return RowSum(self.log_likelihood, self.data, self.num_blocks)

    def drawn(self, key: Key[Array, ""], num: int) -> PyTree[Array]:
        """Some rows, drawn with replacement."""
        rows = jax.random.randint(key, (num,), 0, self.num_rows)
        return jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf)[rows], self.data)

    def laid_out(self, like):
        return self._changed(like=like)

    def whole(self) -> "MiniBatch":
        """The same target with all rows in every step."""
        return self._changed(batch_size=self.num_rows)

    def in_blocks(self, one: jax.ShapeDtypeStruct) -> "MiniBatch":
        """The same target, with all rows in as many blocks as memory demands."""
        at_once = self._changed(num_blocks=1)
        return self._changed(num_blocks=blocks_for(at_once.full(), self.num_rows, one))

    def with_data(self, data: PyTree[Array]) -> "MiniBatch":
        """The same target with other data; of the same shapes, it shares the compiled programs.

        A target that uses all rows in every step uses all of the new ones too.
        """
        size = num_rows_of(data) if self.is_fixed and _has_rows(data) else self.batch_size
        _check_rows(data, size)
        check_alike(self.data, data)
        return eqx.tree_at(lambda target: (target.data, target.batch_size), self, (data, size))

    def placed(self, data: PyTree[Array] | None) -> "MiniBatch":
        """The same target with its data moved, for instance spread over devices."""
        return eqx.tree_at(lambda t: t.data, self, data, is_leaf=lambda leaf: leaf is None)

    def _changed(self, like=None, batch_size=None, num_blocks=None) -> "MiniBatch":
        return MiniBatch(
            self.log_prior,
            self.log_likelihood,
            self.data,
            self.batch_size if batch_size is None else batch_size,
            self.layout if like is None else like,
            self.constraints.value,
            self.num_blocks if num_blocks is None else num_blocks,
        )


class _Posterior(eqx.Module):
    log_prior: Callable
    likelihood: RowSum
    scale: float

    def __call__(self, particle):
        return self.log_prior(particle) + self.scale * self.likelihood(particle)


def _has_rows(data: PyTree) -> bool:
    leaves = jax.tree_util.tree_leaves(data)
    return bool(leaves) and bool(getattr(leaves[0], "shape", ()))


def _check_rows(data: PyTree, batch_size: int) -> None:
    """Raise a ``ValueError`` unless data are arrays with one common number of rows."""
    leaves = jax.tree_util.tree_leaves(data)
    for leaf in leaves:
        if not isinstance(leaf, (np.ndarray, jax.Array)) or isinstance(leaf, np.ma.MaskedArray):
            raise ValueError(
                f"data must be arrays, got a {type(leaf).__name__}; give its numbers, for "
                "instance table.to_numpy() or array.filled(0.0)."
            )
    lengths = sorted({leaf.shape[0] if getattr(leaf, "shape", ()) else 0 for leaf in leaves})
    if len(lengths) != 1 or lengths[0] == 0:
        raise ValueError(
            f"data must be arrays with one common leading axis of rows, got lengths {lengths}."
        )
    if not 1 <= batch_size <= lengths[0]:
        raise ValueError(
            f"batch_size must be between 1 and the number of rows ({lengths[0]}), got {batch_size}."
        )
