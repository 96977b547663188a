"""Kernel sums on many lines at once, where the kernel is a function of one variable.

On a line the particles have positions t_j, a component s_j of their scores and a bandwidth h. With
phi = exp(-(t - t_j)^2 / h) and a number c, the velocity there is

    f(t) = E_j[phi s_j + c d phi / d t_j] = E_j[phi (s_j + 2 c (t - t_j) / h)].

One loop serves all m lines. It runs over the particles, or over the shift between the particles of
a pair, with m n numbers at a time, because XLA does not vectorise an n x n matrix for each line.
Only the positions on a line matter, so subtract a common centre first to limit rounding.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.kernels import AbstractBandwidth, Median, median_by_counting

# The largest gap, in units of sqrt(h): phi is zero there even in float64, and a power of a larger
# gap might overflow.
_FARTHEST = 30


def velocities_on_lines(
    points: Float[Array, "m p"],
    positions: Float[Array, "m n"],
    scores: Float[Array, "m n"],
    squares: Float[Array, " m"],
    cosines: float | Float[Array, " m"] = 1.0,
) -> tuple[Float[Array, "m p"], Float[Array, "m p"], Float[Array, "m p"]]:
    """f, f' and f'' at points of each line. O(m n p) time, O(m (n + p)) memory.

    Parameters
    ----------
    points
        t, the points at which to evaluate.
    positions
        t_j, the positions of the particles.
    scores
        s_j, the components of their scores.
    squares
        h, the bandwidth of each line.
    cosines
        c, the number for each line.
    """
    num = positions.shape[1]
    length = jnp.sqrt(squares)[:, None]
    at = points / length
    c2 = 2 * jnp.broadcast_to(jnp.asarray(cosines, at.dtype), squares.shape)[:, None]
    # The loop is over the particles, each seen from all points on all lines. Differences come
    # before powers, because float32 would lose the differences of large powers.
    columns = ((positions / length).T, (scores * length).T)

    def add(sums, column):
        other, score = column
        gap = jnp.clip(at - other[:, None], -_FARTHEST, _FARTHEST)
        phi = jnp.exp(-(gap**2))
        # In units of sqrt(h), (phi p)' = phi (p' - 2 D p), starting from p = s_j + 2 c D.
        force = c2 * gap
        value = score[:, None] + force
        slope = c2 - 2 * gap * value
        bend = -2 * value - 2 * force - 2 * gap * slope
        # XLA does not vectorise a stack of the three sums, which would be 15 times slower.
        terms = (phi * value, phi * slope, phi * bend)
        return tuple(total + term for total, term in zip(sums, terms, strict=True)), None

    zeros = jnp.zeros_like(at)
    (value, slope, bend), _ = jax.lax.scan(add, (zeros, zeros, zeros), columns, unroll=2)
    return value / (num * length), slope / (num * length**2), bend / (num * length**3)


def discrepancies_on_lines(
    positions: Float[Array, "m n"],
    scores: Float[Array, "m n"],
    squares: Float[Array, " m"],
    cosines: Float[Array, " m"],
) -> tuple[Float[Array, "m n"], Float[Array, " m"], Float[Array, "m n"]]:
    """f at the particles, E[f'], and s f' + c f'' at the particles, on each line.

    They make up the discrepancy D = E[s f + c f'] and its derivatives. Its double sum is symmetric,
    so dD/dc = 2 E[f'] and dD/dt_i = (2 / n) (s f' + c f'')(t_i). In units of sqrt(h), with
    D = t_i - t_j and q = 1 - 2 D^2,

        E[f'] = E_ij[phi (D (s_i - s_j) + 2 c q)],
        s f' + c f'' = 2 E_j[phi (c q (s_i - s_j) - D (s_i s_j + 2 c^2 (q + 2)))].

    One exponential for each pair of particles serves both, in O(m n^2) time and O(m n) memory.
    Under ``jit``, unused results are not computed.
    """
    num = positions.shape[1]
    length = jnp.sqrt(squares)[:, None]
    t, s, c = positions / length, scores * length, cosines[:, None]
    # Inside the loop, these would be computed for each pair.
    c2, cc2 = 2 * c, 2 * c**2
    all_t, all_s = _twice(t), _twice(s)

    def add(sums, shift_and_share):
        shift, share = shift_and_share
        values, other_values, slopes, weights, other_weights = sums
        other_s = _shifted(all_s, shift)
        gap = jnp.clip(t - _shifted(all_t, shift), -_FARTHEST, _FARTHEST)
        square = gap**2
        phi = share * jnp.exp(-square)
        force, difference, q = c2 * gap, s - other_s, 1 - 2 * square
        weight = phi * (c * q * difference - gap * (s * other_s + cc2 * (q + 2)))
        return (
            values + phi * (other_s + force),
            _added(other_values, phi * (s - force), shift),
            slopes + phi * (gap * difference + c2 * q),
            weights + weight,
            # Antisymmetric, since the discrepancy does not change when all particles move together.
            _added(other_weights, -weight, shift),
        ), None

    zeros, all_zeros = jnp.zeros_like(t), jnp.zeros_like(all_t)
    # A particle with itself has phi = 1 and D = 0. For E[f'] each pair counts once here, for two.
    start = (s, all_zeros, zeros + c, zeros, all_zeros)
    sums, _ = jax.lax.scan(add, start, _shifts(num, t.dtype), unroll=2)
    values, other_values, slopes, weights, other_weights = sums
    values, weights = values + _folded(other_values), weights + _folded(other_weights)
    mean_slopes = 2 * jnp.sum(slopes, axis=1) / (num**2 * squares)
    return values / (num * length), mean_slopes, 2 * weights / (num * length**3)


def squares_on_lines(
    bandwidth: AbstractBandwidth, positions: Float[Array, "m n"], max_points: int
) -> Float[Array, " m"]:
    """h from the positions on each line, as by ``bandwidth.of`` but with a faster median."""
    if not isinstance(bandwidth, Median):
        return jax.vmap(lambda t: bandwidth.of(t[:, None], max_points))(positions)
    num = positions.shape[1]
    if num > max_points:
        # These are the particles that the bandwidth itself would take.
        positions = positions[:, jnp.linspace(0, num - 1, max_points).astype(int)]
    median = jax.vmap(_median_distance)(positions) ** 2
    square = median / jnp.log(num) if bandwidth.over_log and num > 1 else median
    return jnp.where(square > 0, square, 1.0)


def _median_distance(t):
    """The median of |t_i - t_j| over distinct pairs on one line.

    The search is that of ``kernels.median_square_distance``. Its sort and binary searches do not
    vectorise over many lines, and a loop over all pairs is faster up to about 500 particles.
    """
    num = t.shape[0]
    if num < 2:
        return jnp.zeros((), t.dtype)
    all_t = _twice(t)
    shifts, shares = _shifts(num, t.dtype)
    halves = (2 * shares).astype(jnp.int32)

    def count(threshold):
        def add(counts, shift_and_halves):
            shift, halves = shift_and_halves
            within = jnp.abs(t - _shifted(all_t, shift)) <= threshold
            return counts + jnp.where(within, halves, 0), None

        counts, _ = jax.lax.scan(add, jnp.zeros(num, jnp.int32), (shifts, halves), unroll=8)
        return jnp.sum(counts, dtype=jnp.int32) // 2

    # Points that coincide may differ by the rounding of a projection on this line.
    resolution = 4 * jnp.finfo(t.dtype).eps * jnp.max(jnp.abs(t))
    return median_by_counting(count, num * (num - 1) // 2, resolution, jnp.max(t) - jnp.min(t))


def _shifts(num, dtype):
    """Every pair once: each particle with those 1, 2, ..., n // 2 places after it, cyclically.

    If n is even, the last shift meets each pair twice, with half a share each time.
    """
    shifts = jnp.arange(1, num // 2 + 1)
    return shifts, jnp.where(2 * shifts == num, 0.5, 1.0).astype(dtype)


def _twice(array):
    """Repeat the last axis, the particles, so that a cyclic shift is a slice."""
    return jnp.concatenate([array, array], axis=-1)


def _shifted(doubled, shift):
    return jax.lax.dynamic_slice_in_dim(doubled, shift, doubled.shape[-1] // 2, axis=-1)


def _added(doubled, terms, shift):
    total = _shifted(doubled, shift) + terms
    return jax.lax.dynamic_update_slice_in_dim(doubled, total, shift, axis=-1)


def _folded(doubled):
    num = doubled.shape[-1] // 2
    return doubled[..., :num] + doubled[..., num:]
