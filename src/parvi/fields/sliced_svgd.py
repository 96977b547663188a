"""Sliced SVGD (Gong, Li & Hernandez-Lobato 2021): one-dimensional kernels on learned directions.

Each slice r of an orthonormal basis carries one component of the velocity, a function of the
single number x . g_r for a unit test direction g_r,

    f(x) = sum_r r E_y[ (s(y) . r) k(x . g_r, y . g_r) + (r . g_r) d/dv k(x . g_r, v) ],

with v = y . g_r and s = grad log p. A kernel of one variable does not lose the variance in high
dimension. The directions are those in which the particles are worst: ascent of the sliced
discrepancy

    D_r(g) = E_xy[ (s(x) . r)(s(y) . r) k + (r . g)((s(x) . r) dk/dv + (s(y) . r) dk/du)
                   + (r . g)^2 d2k/dudv ],    u = x . g, v = y . g,

whose sum over the slices is minus the KL rate of f.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from parvi.fields.kernels import RBF, AbstractBandwidth, Fixed, Median
from parvi.interface import AbstractField, AbstractVelocity, Fit, kl_rate

# Particles from which a median is taken at the most, as in the blocked SVGD.
_MEDIAN_POINTS = 512


class SlicedMemory(NamedTuple):
    """One test direction and one bandwidth for each slice, and the state of their optimiser."""

    directions: Float[Array, "d d"]
    squares: Float[Array, " d"]
    optimizer: PyTree[Array]


class _Slices(NamedTuple):
    """All slices, the first axis of each array: what ``lax.map`` goes over."""

    slices: Float[Array, "r d"]
    directions: Float[Array, "r d"]
    squares: Float[Array, " r"]


class SlicedVelocity(AbstractVelocity):
    """A sum of one-dimensional kernel averages, each along its slice."""

    basis: Float[Array, "d d"]
    directions: Float[Array, "d d"]
    squares: Float[Array, " d"]
    particles: Float[Array, "n d"]
    scores: Float[Array, "n d"]

    def __call__(self, x):
        return self._with_divergences(x[None])[0][0]

    def on(self, cloud):
        return self._with_divergences(cloud.particles)[0]

    def divergences(self, cloud):
        return self._with_divergences(cloud.particles)[1]

    def _with_divergences(self, points):
        def one(slice_):
            return _sliced(slice_, self.particles, self.scores, points)

        # One slice after the other: a single n x n matrix exists at a time.
        every = _Slices(self.basis, self.directions, self.squares)
        values, divergences = jax.lax.map(one, every)
        return values.T @ self.basis, jnp.sum(divergences, axis=0)


class SlicedSVGD(AbstractField):
    """SVGD with one-dimensional kernels on learned directions. O(n^2 d) time, O(n^2 + n d) memory.

    Parameters
    ----------
    optimizer
        An optax transformation for the test directions, one step of ascent a fit. Build it once:
        a new object is a new compilation.
    basis
        The slices, the rows of an orthogonal matrix; None for the coordinate axes.
    bandwidth
        Of the RBF kernel, from the particles projected on its direction, for each slice.

    References
    ----------
    Gong, Li & Hernandez-Lobato (2021), Sliced kernelized Stein discrepancy, ICLR.
    """

    optimizer: optax.GradientTransformation = optax.adam(0.1, b1=0.5, b2=0.9)
    basis: Float[Array, "d d"] | None = None
    bandwidth: AbstractBandwidth = Median()

    def __check_init__(self):
        if self.basis is None:
            return
        basis = np.asarray(self.basis, np.float64)
        if basis.ndim != 2 or basis.shape[0] != basis.shape[1]:
            raise ValueError(f"basis must be a square matrix, got shape {basis.shape}.")
        error = np.max(np.abs(basis @ basis.T - np.eye(len(basis))))
        # A basis made in float32 is orthogonal to about 1e-6 times the root of its size.
        if not error < 1e-4:
            raise ValueError(
                f"The rows of basis must be orthonormal: B B^T differs from I by {error:.2g}. "
                "Orthogonalise it, for instance with numpy.linalg.qr."
            )

    def init(self, key, particles):
        basis = self._basis(particles)
        # Each direction starts at its slice, where the repulsion is strongest.
        return SlicedMemory(basis, self._squares(basis, particles), self.optimizer.init(basis))

    def fit(self, key, cloud, memory):
        particles, scores = cloud.particles, cloud.scores
        basis = self._basis(particles)

        def gradient(slice_):
            # The bandwidth is a fixed number here, from the particles of the step before: the
            # median is the dearest part of a step, and one of them is enough.
            return jax.grad(_discrepancy)(slice_.directions, slice_, particles, scores)

        every = _Slices(basis, memory.directions, memory.squares)
        descent = -jax.lax.map(gradient, every)
        updates, optimizer = self.optimizer.update(descent, memory.optimizer, memory.directions)
        directions = jax.vmap(_unit)(memory.directions + updates)
        squares = self._squares(directions, particles)

        velocity = SlicedVelocity(basis, directions, squares, particles, scores)
        values, divergences = velocity._with_divergences(particles)
        memory = SlicedMemory(directions, squares, optimizer)
        return Fit(velocity, values, kl_rate(values, divergences, scores), {}), memory

    def _basis(self, particles):
        dim, dtype = particles.shape[1], particles.dtype
        if self.basis is None:
            return jnp.eye(dim, dtype=dtype)
        if self.basis.shape[0] != dim:
            raise ValueError(
                f"basis has {self.basis.shape[0]} slices, but the particles have {dim} dimensions."
            )
        return jnp.asarray(self.basis, dtype)

    def _squares(self, directions, particles):
        def square(direction):
            return self.bandwidth.of((particles @ direction)[:, None], _MEDIAN_POINTS)

        return jax.lax.map(square, directions)


def _sliced(slice_, particles, scores, points):
    """The component along a slice at every point, and its share of the divergence."""
    r, g = slice_.slices, slice_.directions
    score, cosine = scores @ r, r @ g
    # v - u for every pair; k = phi((v - u)^2).
    gap = particles @ g - (points @ g)[:, None]
    value, first, second = RBF(Fixed(slice_.squares)).profile(gap**2, 1)
    force = 2 * first * gap
    values = value @ score + cosine * jnp.sum(force, axis=1)
    # div h(x . g) r = (r . g) h', with dk/du = -dk/dv.
    curvature = jnp.sum(2 * first + 4 * second * gap**2, axis=1)
    divergences = -cosine * (force @ score + cosine * curvature)
    num = particles.shape[0]
    return values / num, divergences / num


def _discrepancy(direction, slice_, particles, scores):
    """D_r at the unit vector along ``direction``, as the slice's part of E[f . s + div f]."""
    slice_ = slice_._replace(directions=_unit(direction))
    values, divergences = _sliced(slice_, particles, scores, particles)
    return jnp.mean(values * (scores @ slice_.slices) + divergences)


def _unit(vector):
    norm = jnp.linalg.norm(vector)
    return vector / jnp.where(norm > 0, norm, 1.0)
