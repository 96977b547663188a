"""Subsets: the log density of some rows of data, corrected to second order by all of them.

With c a point near the particles, S a subset of B of the N rows and l_i the log likelihood of row i
as a function of the flat, unconstrained x,

    log p(x) = log prior(x) + T(x) + N/B sum over S of (l_i - t_i)(x),

where t_i is the Taylor polynomial of l_i of second order at c, and T the sum of those of all rows.
Only the remainders l_i - t_i are estimated from a part of the rows (Quiroz, Kohn, Villani & Tran
2019, section 2.3). All particles and steps see the same subset, so the log density is fixed and
can be compared, tested and bent along. T takes d Hessian-vector products at one point, over all
rows: about as much as d scores of one particle.

The error e of this log density has a variance over the particles. It is small if means and
variances are right: by the Cauchy-Schwarz inequality, a weight exp(e) moves no mean by more than
sd(e) standard deviations, and no variance of a Gaussian by more than a share of sqrt(2) sd(e), up
to terms of second order in e. ``error`` estimates it from the differences between parts of S.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from parvi.kept import carefully
from parvi.targets.flatten import AbstractLayout, Layout
from parvi.targets.minibatch import MiniBatch
from parvi.targets.rows import num_rows_of
from parvi.targets.target import AbstractTarget, Density

# Number of parts of a subset that are compared.
NUM_PARTS = 8
# Number of Hessian-vector products, or of particles, at once.
_AT_ONCE = 16


class Subset(AbstractTarget):
    """A fixed log density from a subset of the rows of a ``MiniBatch``.

    Parameters
    ----------
    log_prior, log_likelihood, layout
        Those of the ``MiniBatch``.
    rows
        The rows of the subset, a multiple of ``NUM_PARTS``.
    num_all
        N, the number of all rows.
    centre
        c, flat and unconstrained.
    at_centre
        What ``log_likelihood`` returns at the centre, which is subtracted before rows are summed.
    slope, bend
        The gradient and the Hessian at c of the quadratic that corrects the subset.
    """

    log_prior: Callable
    log_likelihood: Callable
    layout: AbstractLayout | None
    rows: PyTree[Array]
    num_all: int
    centre: Float[Array, " d"]
    at_centre: Float[Array, "..."]
    slope: Float[Array, " d"]
    bend: Float[Array, "d d"]

    @property
    def num_rows(self):
        return num_rows_of(self.rows)

    @property
    def is_fixed(self):
        return True

    def at(self, key):
        return self.full()

    def full(self) -> Any:
        return _Corrected(self._flat(_Part(self)), self.centre, self.slope, self.bend)

    def laid_out(self, like):
        return eqx.tree_at(lambda t: t.layout, self, Layout.of(like), is_leaf=lambda x: x is None)


class _Part(eqx.Module):
    """The log posterior of the subset alone, relative to its log likelihood at the centre."""

    subset: Subset

    def __call__(self, particle):
        rows = self.subset
        gains = jnp.sum(rows.log_likelihood(particle, rows.rows) - rows.at_centre)
        return rows.log_prior(particle) + rows.num_all / rows.num_rows * gains


class _Corrected(eqx.Module):
    density: Density
    centre: Float[Array, " d"]
    slope: Float[Array, " d"]
    bend: Float[Array, "d d"]

    def __call__(self, flat):
        step = flat - self.centre
        return self.density(flat) + self.slope @ step + 0.5 * step @ (self.bend @ step)


class Taylor(NamedTuple):
    """The gradient and the Hessian at the centre of the log likelihood of all rows."""

    slope: Float[Array, " d"]
    bend: Float[Array, "d d"]


@carefully
def taylor(whole: MiniBatch, centre: Float[Array, " d"]) -> Taylor:
    """One pass over all rows for the gradient, and d for the Hessian."""
    layout = whole.layout
    assert layout is not None
    return _derivatives(lambda x: whole.likelihood(layout.argument(x)), centre)


@carefully
def drawn(
    key: Key[Array, ""],
    whole: MiniBatch,
    num: int,
    centre: Float[Array, " d"],
    of_all: Taylor | None,
) -> Subset:
    """A subset of ``num`` fresh rows; without ``of_all`` it stands for all rows by itself."""
    layout = whole.layout
    assert layout is not None
    rows = whole.drawn(key, num)
    slope, bend = jnp.zeros_like(centre), jnp.zeros((centre.size, centre.size), centre.dtype)
    if of_all is not None:
        part = _derivatives(lambda x: jnp.sum(_of_rows(whole, layout, rows, x)), centre)
        scale = whole.num_rows / num
        slope, bend = (every - scale * some for every, some in zip(of_all, part, strict=True))
    return Subset(
        log_prior=whole.log_prior,
        log_likelihood=whole.log_likelihood,
        layout=layout,
        rows=rows,
        num_all=whole.num_rows,
        centre=centre,
        at_centre=_of_rows(whole, layout, rows, centre),
        slope=slope,
        bend=bend,
    )


def _of_rows(whole, layout, rows, flat):
    return jnp.asarray(whole.log_likelihood(layout.argument(flat), rows))


def _derivatives(function, centre) -> Taylor:
    slope = jax.grad(function)

    def product(direction):
        return jax.jvp(slope, (centre,), (direction,))[1]

    identity = jnp.eye(centre.size, dtype=centre.dtype)
    bend = jax.lax.map(product, identity, batch_size=min(_AT_ONCE, centre.size))
    # It is symmetric up to rounding.
    return Taylor(slope(centre), (bend + bend.T) / 2)


@carefully
def error(subset: Subset, particles: Float[Array, "n d"]) -> Float[Array, ""]:
    """sd(e), the standard deviation over the particles of the log density's error.

    Parts of the subset estimate the same sum of remainders. The variance between them, divided by
    their number, is that of the whole subset. O(n) memory beside the rows' own.
    """
    layout = subset.layout
    assert layout is not None
    size = subset.num_rows // NUM_PARTS
    parts = jax.tree_util.tree_map(
        lambda leaf: leaf.reshape(NUM_PARTS, size, *leaf.shape[1:]), subset.rows
    )

    def remainder(x, rows):
        """l(c + h) - l(c) - l'(c) h - l''(c) h^2 / 2 of a part of the rows."""
        step = x - subset.centre
        first = _of_rows(subset, layout, rows, subset.centre)

        def along(t):
            return jnp.sum(_of_rows(subset, layout, rows, subset.centre + t * step) - first)

        def slope(t):
            return jax.jvp(along, (t,), (jnp.ones_like(t),))[1]

        zero, one = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
        tilt, bend = jax.jvp(slope, (zero,), (one,))
        return along(one) - tilt - bend / 2

    found = jax.lax.map(
        lambda x: jax.vmap(lambda rows: remainder(x, rows))(parts),
        particles,
        batch_size=min(_AT_ONCE, len(particles)),
    )
    found = subset.num_all / size * (found - jnp.mean(found, axis=0))
    between = jnp.var(found, axis=1, ddof=1) / NUM_PARTS
    return jnp.sqrt(jnp.mean(between))
