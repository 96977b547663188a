"""Sliced SVGD (Gong, Li & Hernandez-Lobato, ICLR 2021): kernels on learned directions.

Each slice r of an orthonormal basis carries one component of the velocity, a function of the
single number x . g_r for a unit test direction g_r,

    f(x) = sum_r r E_y[ (s(y) . r) k(x . g_r, y . g_r) + (r . g_r) d/dv k(x . g_r, v) ],

with v = y . g_r and s = grad log p. A kernel of one variable does not lose the variance in high
dimension. The directions are those in which the particles are worst, found by ascent of the sliced
kernelized Stein discrepancy

    D_r(g) = E_xy[ (s(x) . r)(s(y) . r) k + (r . g)((s(x) . r) dk/dv + (s(y) . r) dk/du)
                   + (r . g)^2 d2k/dudv ],    u = x . g, v = y . g,

whose sum over the slices is minus the KL rate of f. With h the component of f along r, as a
function of t = x . g, and c = r . g,

    D_r = E[(s . r) h(t) + c h'(t)],
    grad D_r(g) = 2 E[h'(t) r + ((s . r) h'(t) + c h''(t)) x],

because the double sum in D_r is symmetric. No automatic differentiation is needed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from parvi.fields.lines import discrepancies_on_lines, squares_on_lines, velocities_on_lines
from parvi.fields.svgd import MEDIAN_POINTS
from parvi.interface import AbstractField, AbstractJointVelocity, Fit
from parvi.kernels import AbstractBandwidth, Median


class SlicedMemory(NamedTuple):
    """One test direction and one bandwidth for each slice, and the state of their optimiser."""

    directions: Float[Array, "d d"]
    squares: Float[Array, " d"]
    optimizer: PyTree[Array]


class SlicedVelocity(AbstractJointVelocity):
    """A sum of one-dimensional kernel averages, each along its slice (an axis without a basis)."""

    basis: Float[Array, "d d"] | None
    directions: Float[Array, "d d"]
    squares: Float[Array, " d"]
    particles: Float[Array, "n d"]
    scores: Float[Array, "n d"]

    def with_divergences(self, points):
        centre = jnp.mean(self.particles, axis=0)
        cosines = _cosines(self.basis, self.directions)
        at, positions = (self.directions @ (x - centre).T for x in (points, self.particles))
        components = _components(self.basis, self.scores)
        values, slopes, _ = velocities_on_lines(at, positions, components, self.squares, cosines)
        # div h(x . g) r = (r . g) h'.
        return _assembled(self.basis, values), cosines @ slopes


class SlicedSVGD(AbstractField):
    """SVGD with one-dimensional kernels on learned directions. O(n^2 d + n d^2) time.

    It takes O(n d + d^2) memory, because it never forms a kernel matrix.

    Parameters
    ----------
    optimizer
        An optax transformation for the test directions, which make one step of ascent per fit.
        Build it once, since a new object is compiled anew.
    basis
        The slices as the rows of an orthogonal matrix; None for the coordinate axes.
    bandwidth
        Bandwidth of each slice's RBF kernel, from the particles projected on its direction.
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
        dim, dtype = particles.shape[1], particles.dtype
        basis = self._basis(particles)
        # Each direction starts at its slice, where the repulsion is strongest.
        directions = jnp.eye(dim, dtype=dtype) if basis is None else jax.vmap(_unit)(basis)
        positions = directions @ _centred(particles).T
        squares = squares_on_lines(self.bandwidth, positions, MEDIAN_POINTS)
        return SlicedMemory(directions, squares, self.optimizer.init(directions))

    def fit(self, key, cloud, memory):
        scores, centred = cloud.scores, _centred(cloud.particles)
        basis = self._basis(centred)
        components = _components(basis, scores)
        # The bandwidth is that of the step before, because the median is the most expensive part
        # of a step and one of them is enough.
        ascent = _gradients(basis, memory.directions, memory.squares, centred, components)
        updates, optimizer = self.optimizer.update(-ascent, memory.optimizer, memory.directions)
        directions = jax.vmap(_unit)(memory.directions + updates)

        positions = directions @ centred.T
        squares = squares_on_lines(self.bandwidth, positions, MEDIAN_POINTS)
        cosines = _cosines(basis, directions)
        values, slopes, _ = discrepancies_on_lines(positions, components, squares, cosines)
        # The sum of the discrepancies is E[f . s + div f].
        rate = -jnp.sum(jnp.mean(values * components, axis=1) + cosines * slopes)
        velocity = SlicedVelocity(basis, directions, squares, cloud.particles, scores)
        fit = Fit(velocity, _assembled(basis, values), rate, {})
        return fit, SlicedMemory(directions, squares, optimizer)

    def _basis(self, particles):
        if self.basis is None:
            return None
        slices, dim = self.basis.shape[0], particles.shape[1]
        if slices != dim:
            raise ValueError(f"basis has {slices} slices, but the particles have {dim} dimensions.")
        return jnp.asarray(self.basis, particles.dtype)


def _gradients(basis, directions, squares, centred, components):
    """The gradient of each slice's discrepancy on the sphere, at its direction."""
    num, dim = centred.shape
    positions, cosines = directions @ centred.T, _cosines(basis, directions)
    _, slopes, weights = discrepancies_on_lines(positions, components, squares, cosines)
    slices = jnp.eye(dim, dtype=centred.dtype) if basis is None else basis
    gradients = 2 * slopes[:, None] * slices + (2 / num) * (weights @ centred)
    # The radial part would change the length, not the direction.
    return gradients - jnp.sum(gradients * directions, axis=1)[:, None] * directions


def _components(basis, vectors):
    """The vectors' components along each slice, (d, n)."""
    return vectors.T if basis is None else basis @ vectors.T


def _assembled(basis, components):
    return components.T if basis is None else components.T @ basis


def _cosines(basis, directions):
    return jnp.diagonal(directions) if basis is None else jnp.sum(basis * directions, axis=1)


def _centred(particles):
    # Only differences count; far from the origin they would be lost to rounding.
    return particles - jnp.mean(particles, axis=0)


def _unit(vector):
    norm = jnp.linalg.norm(vector)
    return vector / jnp.where(norm > 0, norm, 1.0)
