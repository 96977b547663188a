"""Kernel sums on many lines at once, where a kernel is a function of one variable.

A line has a unit direction g, the particles' positions t = x . g on it, a component s of their
scores and a bandwidth h. With phi = exp(-(t - t_j)^2 / h) and a number c, the velocity on it is

    f(t) = E_j[phi s_j + c d phi/dt_j] = E_j[phi (s_j + 2 c (t - t_j) / h)].

All lines take part in one loop, over the particles or over the distances between two particles in
the cloud: m n numbers at a time for m lines, and never a kernel matrix, which XLA does not
vectorise inside of a loop over the lines.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.fields.kernels import AbstractBandwidth, Median, _median_by_counting

# phi is zero there in float64 too, and a power of a larger gap might overflow. In roots of h.
_FARTHEST = 30
# Lines whose medians are searched together: all of them wait for the slowest, but each of too few
# would pay for the loop. Of 32, 64, 128 and 753 the best at (m, n) = (753, 100).
_SEARCHED_TOGETHER = 64


def velocities_on_lines(
    lines: Float[Array, "m d"],
    squares: Float[Array, " m"],
    particles: Float[Array, "n d"],
    scores: Float[Array, "n m"],
    points: Float[Array, "p d"],
    cosines: float | Float[Array, " m"] = 1.0,
) -> tuple[Float[Array, "m p"], Float[Array, "m p"], Float[Array, "m p"]]:
    """f, f' and f'' on each line at the points. O(m n p) time, O(m (n + p)) memory.

    Parameters
    ----------
    lines
        g, one a row.
    squares
        h.
    particles
        x_j, each of the same weight.
    scores
        s_j, the component of the scores that counts on the line.
    points
        Where to evaluate.
    cosines
        c, how much of the repulsion on the line counts.
    """
    num = particles.shape[0]
    centre = jnp.mean(particles, axis=0)
    length = jnp.sqrt(squares)[:, None]
    at = lines @ (points - centre).T / length
    c = jnp.broadcast_to(jnp.asarray(cosines, at.dtype), squares.shape)[:, None]
    # A loop over the particles, each seen from all points on all lines: m n numbers at a time,
    # and differences before powers, which powers of far points would not survive in float32.
    columns = ((particles - centre) @ lines.T / length.T, scores * length.T)

    def add(sums, column):
        other, score = column
        gap = jnp.clip(at - other[:, None], -_FARTHEST, _FARTHEST)
        phi = jnp.exp(-(gap**2))
        # In units of the root of h: (phi p)' = phi (p' - 2 D p), from p = s_j + 2 c D.
        force = 2 * c * gap
        value = score[:, None] + force
        slope = 2 * c - 2 * gap * value
        bend = -2 * value - 2 * force - 2 * gap * slope
        # Three sums, not a stack of them, which XLA does not vectorise: 15 times slower.
        terms = (phi * value, phi * slope, phi * bend)
        return tuple(total + term for total, term in zip(sums, terms, strict=True)), None

    zeros = jnp.zeros_like(at)
    (value, slope, bend), _ = jax.lax.scan(add, (zeros, zeros, zeros), columns, unroll=2)
    return value / (num * length), slope / (num * length**2), bend / (num * length**3)


def discrepancies_on_lines(
    lines: Float[Array, "m d"],
    squares: Float[Array, " m"],
    particles: Float[Array, "n d"],
    scores: Float[Array, "n m"],
    cosines: Float[Array, " m"],
) -> tuple[Float[Array, "m n"], Float[Array, " m"], Float[Array, "m n"]]:
    """f at the particles, E[f'] and s f' + c f'' at the particles, on each line.

    They are what the discrepancy D = E[s f + c f'] and its derivatives are made of: its double sum
    is symmetric, so that dD/dc = 2 E[f'] and dD/dt_i = (2 / n)(s f' + c f'')(t_i). In units of the
    root of h, with D = t_i - t_j and q = 1 - 2 D^2,

        E[f'] = E_ij[phi (D (s_i - s_j) + 2 c q)],
        s f' + c f'' = 2 E_j[phi (c q (s_i - s_j) - D (s_i s_j + 2 c^2 (q + 2)))].

    Each pair of particles is seen once and serves both of them: O(m n^2 / 2) time, O(m n) memory.
    """
    num = particles.shape[0]
    length = jnp.sqrt(squares)[:, None]
    t = lines @ (particles - jnp.mean(particles, axis=0)).T / length
    s = scores.T * length
    c = cosines[:, None]
    c2, cc = 2 * c, 2 * c**2
    all_t, all_s = _twice(t), _twice(s)

    def add(sums, shift_and_share):
        shift, share = shift_and_share
        values, other_values, slopes, weights, other_weights = sums
        other_s = _shifted(all_s, shift)
        gap = jnp.clip(t - _shifted(all_t, shift), -_FARTHEST, _FARTHEST)
        square = gap**2
        phi = share * jnp.exp(-square)
        force, difference, q = c2 * gap, s - other_s, 1 - 2 * square
        weight = phi * (c * q * difference - gap * (s * other_s + cc * (q + 2)))
        return (
            values + phi * (other_s + force),
            _added(other_values, phi * (s - force), shift),
            slopes + phi * (gap * difference + c2 * q),
            # The pull on the one is the opposite of that on the other.
            weights + weight,
            _added(other_weights, -weight, shift),
        ), None

    # A particle with itself: phi = 1, D = 0.
    start = (s, jnp.zeros_like(all_t), jnp.zeros_like(t) + c, jnp.zeros_like(t))
    start = (*start, jnp.zeros_like(all_t))
    sums, _ = jax.lax.scan(add, start, _shifts(num, t.dtype), unroll=2)
    values, other_values, slopes, weights, other_weights = sums
    values = values + _folded(other_values)
    weights = weights + _folded(other_weights)
    mean_slope = 2 * jnp.sum(slopes, axis=1) / (num**2 * squares)
    return values / (num * length), mean_slope, 2 * weights / (num * length**3)


def squares_on_lines(
    bandwidth: AbstractBandwidth, positions: Float[Array, "m n"], max_points: int
) -> Float[Array, " m"]:
    """h from the positions on each line: what ``bandwidth.of`` gives, the median faster."""
    if not isinstance(bandwidth, Median):
        return jax.vmap(lambda t: bandwidth.of(t[:, None], max_points))(positions)
    num = positions.shape[1]
    if num > max_points:
        # The same of the particles that the bandwidth itself would take.
        positions = positions[:, jnp.linspace(0, num - 1, max_points).astype(int)]
    median = jax.lax.map(_median_distance, positions, batch_size=_SEARCHED_TOGETHER) ** 2
    square = median / jnp.log(num) if bandwidth.over_log and num > 1 else median
    return jnp.where(square > 0, square, 1.0)


def _median_distance(t):
    """The median of |t_i - t_j| over distinct pairs on one line.

    The search is that of ``kernels.median_square_distance``. Its sort and its binary searches do
    not vectorise over the lines: to compare all pairs is faster up to some 500 particles.
    """
    num = t.shape[0]
    if num < 2:
        return jnp.zeros((), t.dtype)
    twice = jnp.concatenate([t, t])
    shifts, shares = _shifts(num, t.dtype)

    def count(threshold):
        def add(counts, shift_and_share):
            shift, halves = shift_and_share
            gap = jnp.abs(jax.lax.dynamic_slice_in_dim(twice, shift, num) - t)
            return counts + jnp.where(gap <= threshold, halves, 0), None

        halves = (2 * shares).astype(jnp.int32)
        start = jnp.zeros(num, jnp.int32)
        counts, _ = jax.lax.scan(add, start, (shifts, halves), unroll=8)
        return jnp.sum(counts) // 2

    # Points that coincide may differ by the rounding of a projection on this line.
    resolution = 4 * jnp.finfo(t.dtype).eps * jnp.max(jnp.abs(t))
    return _median_by_counting(count, num * (num - 1) // 2, resolution, jnp.max(t) - jnp.min(t))


def _shifts(num, dtype):
    """Every pair once: each particle with that 1, 2, ... n // 2 places after it, cyclically.

    Of an even number the last shift meets each pair twice, each time with half of its share.
    """
    shifts = jnp.arange(1, num // 2 + 1)
    return shifts, jnp.where(2 * shifts == num, 0.5, 1.0).astype(dtype)


def _twice(array):
    return jnp.concatenate([array, array], axis=1)


def _shifted(doubled, shift):
    return jax.lax.dynamic_slice_in_dim(doubled, shift, doubled.shape[1] // 2, axis=1)


def _added(doubled, terms, shift):
    total = _shifted(doubled, shift) + terms
    return jax.lax.dynamic_update_slice_in_dim(doubled, total, shift, axis=1)


def _folded(doubled):
    num = doubled.shape[1] // 2
    return doubled[:, :num] + doubled[:, num:]
