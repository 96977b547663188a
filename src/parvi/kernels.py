"""Kernels: positive-definite functions k(x, y), and how their bandwidth follows the particles."""

import abc
from collections.abc import Callable
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Profile(NamedTuple):
    """A radial kernel k = phi(r^2) with its first two derivatives in r^2."""

    value: Float[Array, "..."]
    first: Float[Array, "..."]
    second: Float[Array, "..."]


class AbstractKernel(eqx.Module):
    """A positive-definite function of two points."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"], y: Float[Array, " d"]) -> Float[Array, ""]:
        """k(x, y)."""


class AbstractRadialKernel(AbstractKernel):
    """k(x, y) = phi(|x - y|^2), with a bandwidth."""

    @abc.abstractmethod
    def adapted(self, particles: Float[Array, "n d"], max_points: int | None) -> Self:
        """The same kernel, with its bandwidth fixed at the value for these particles."""

    @abc.abstractmethod
    def profile(self, square: Float[Array, "..."], dim: int) -> Profile:
        """phi and its derivatives at squared distances, in dimension ``dim``."""

    def __call__(self, x, y):
        return self.profile(jnp.sum((x - y) ** 2), x.shape[0]).value


class AbstractBandwidth(eqx.Module):
    """A rule for h, the squared length of a radial kernel."""

    @abc.abstractmethod
    def of(self, particles: Float[Array, "n d"], max_points: int | None) -> Float[Array, ""]:
        """h for these particles, from at most ``max_points`` of them."""


class Fixed(AbstractBandwidth):
    """The same h throughout."""

    square: float | Float[Array, ""]

    def of(self, particles, max_points):
        return jnp.asarray(self.square, particles.dtype)


class Median(AbstractBandwidth):
    """h = median of squared distances, divided by log n unless ``over_log`` is False.

    Division by log n (Liu & Wang 2016) makes sum_j k(x_i, x_j) about 2 in high dimension.
    """

    over_log: bool = True

    def of(self, particles, max_points):
        num = particles.shape[0]
        if max_points is not None and num > max_points:
            # Particles have no order, so evenly spaced rows are as good as random ones.
            particles = particles[jnp.linspace(0, num - 1, max_points).astype(int)]
        median = median_square_distance(particles)
        square = median / jnp.log(num) if self.over_log and num > 1 else median
        return jnp.where(square > 0, square, 1.0)


class RBF(AbstractRadialKernel):
    """k(x, y) = c exp(-|x - y|^2 / h).

    Parameters
    ----------
    bandwidth
        h. ``Fixed(2 * sigma**2)`` is a Gaussian of standard deviation sigma.
    normalised
        Whether c = 1/sigma with h = 2 sigma^2, as in the paper's appendix (Example 1). Otherwise
        c = 1.
    """

    bandwidth: AbstractBandwidth = Median()
    normalised: bool = False

    def adapted(self, particles, max_points):
        return RBF(Fixed(self.bandwidth.of(particles, max_points)), self.normalised)

    def profile(self, square, dim):
        h = _fixed(self.bandwidth)
        value = jnp.exp(-square / h)
        if self.normalised:
            value = value * jnp.sqrt(2 / h)
        return Profile(value, -value / h, value / h**2)


class IMQ(AbstractRadialKernel):
    """The inverse multiquadric k(x, y) = (1 + |x - y|^2 / h)^-beta, with heavy tails."""

    bandwidth: AbstractBandwidth = Median()
    beta: float = 0.5

    def adapted(self, particles, max_points):
        return IMQ(Fixed(self.bandwidth.of(particles, max_points)), self.beta)

    def profile(self, square, dim):
        h, beta = _fixed(self.bandwidth), self.beta
        base = 1 + square / h
        value = base**-beta
        first = -beta / h * value / base
        return Profile(value, first, -(beta + 1) / h * first / base)


class LinearKernel(AbstractKernel):
    """k(x, y) = x^T K y + 1.

    Parameters
    ----------
    matrix
        K, symmetric and positive definite; None for the identity.
    """

    matrix: Float[Array, "d d"] | None = None

    def __call__(self, x, y):
        return x @ self.times(y) + 1

    def times(self, y: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """K y."""
        return y if self.matrix is None else y @ jnp.asarray(self.matrix, y.dtype).T


class CallableKernel(AbstractKernel):
    """Any differentiable positive-definite function k(x, y) of two points."""

    function: Callable[[Float[Array, " d"], Float[Array, " d"]], Float[Array, ""]]

    def __call__(self, x, y):
        return self.function(x, y)


def square_distances(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """|x_i - y_j|^2 by one matrix product, centred first so that little is lost by rounding."""
    centre = jnp.mean(y, axis=0)
    x, y = x - centre, y - centre
    scale = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1)
    square = scale - 2 * (x @ y.T)
    # Points that coincide differ by the rounding of these sums, which must not look like a
    # distance because a median or a bandwidth would follow it.
    resolution = 4 * jnp.finfo(x.dtype).eps * x.shape[1] ** 0.5
    return jnp.where(square <= resolution * scale, 0.0, square)


def median_square_distance(particles: Float[Array, "n d"]) -> Float[Array, ""]:
    """The median of |x_i - x_j|^2 over distinct pairs, without a sort of the pairs.

    Sorting n^2 numbers is 94 % of a naive SVGD step. The rank is a smooth function of the
    threshold, so a safeguarded secant search brings it within 1e-4 of one half in a few passes.
    A pass is O(n^2), or O(n log n) on a line (d = 1) after a sort of the n particles.
    """
    num, dim = particles.shape
    if num < 2:
        return jnp.zeros((), particles.dtype)
    if dim == 1:
        return _median_distance_on_a_line(particles[:, 0]) ** 2
    square = square_distances(particles, particles)

    def count(threshold):
        # The n zero distances of points to themselves are always counted, so they are subtracted.
        return jnp.sum(square <= threshold, dtype=jnp.int32) - num

    zero = jnp.zeros((), particles.dtype)
    return median_by_counting(count, num * (num - 1), zero, jnp.max(square))


def _median_distance_on_a_line(points):
    ordered = jnp.sort(points)
    num = points.shape[0]
    before = jnp.arange(1, num + 1)

    def count(threshold):
        # This counts the points to the right of each that are within reach.
        reach = jnp.searchsorted(ordered, ordered + threshold, side="right")
        return jnp.sum(reach - before, dtype=jnp.int32)

    # Points that coincide may differ by the rounding of a projection on this line.
    resolution = 4 * jnp.finfo(points.dtype).eps * jnp.max(jnp.abs(points))
    farthest = ordered[-1] - ordered[0]
    return median_by_counting(count, num * (num - 1) // 2, resolution, farthest)


def median_by_counting(count, pairs, zero, largest):
    """The threshold below which half of the pairs lie, by a secant search (Illinois).

    Parameters
    ----------
    count
        Function that returns the number of pairs at or below a threshold.
    pairs
        Number of all pairs.
    zero
        Distances up to this value count as zero.
    largest
        A threshold that no pair exceeds.
    """
    half = 0.5 * pairs
    dtype = largest.dtype

    def excess(threshold):
        return count(threshold).astype(dtype) - half

    def proceed(carry):
        step, low, high, _, _, _, value = carry
        close = jnp.abs(value) <= 1e-4 * pairs
        return (step < 40) & ~close & (high - low > 1e-6 * high)

    def body(carry):
        step, low, high, f_low, f_high, _, _ = carry
        secant = (low * f_high - high * f_low) / (f_high - f_low)
        # Every third pass halves the bracket, in case the rank has jumps (clumps of particles).
        middle = jnp.where(step % 3 == 2, 0.5 * (low + high), secant)
        value = excess(middle)
        above = value > 0
        return (
            step + 1,
            jnp.where(above, low, middle),
            jnp.where(above, middle, high),
            jnp.where(above, f_low / 2, value),
            jnp.where(above, value, f_high / 2),
            middle,
            value,
        )

    at_zero, at_largest = excess(zero), jnp.asarray(half, dtype)
    start = (0, zero, largest, at_zero, at_largest, largest, at_largest)
    found = jax.lax.while_loop(proceed, body, start)[5]
    # If half of the pairs coincide, the search would only creep towards zero.
    return jnp.where(at_zero >= 0, jnp.zeros((), dtype), found)


def _fixed(bandwidth):
    if not isinstance(bandwidth, Fixed):
        raise ValueError(
            f"{type(bandwidth).__name__} follows the particles: call kernel.adapted(particles, "
            "None) first, or use parvi.kernels.Fixed(h)."
        )
    return bandwidth.square
