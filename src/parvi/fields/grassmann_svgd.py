"""Grassmann SVGD (Liu, Zhu, Ton, Wynne & Duncan, AISTATS 2022): SVGD on learned subspaces.

For a projector A (d x k, orthonormal columns) the kernel sees A^T x and the velocity stays in
the span of A,

    f_A(x) = A E_y[ k(A^T x, A^T y) A^T grad log p(y) + grad_2 k(A^T x, A^T y) ],

which is SVGD in k dimensions, where an RBF kernel does not yet lose the variance. Several
projectors work side by side, f = sum_l f_{A_l}, and each is moved on the Grassmann manifold by
noisy gradient ascent of its own Stein discrepancy alpha(A) = E[f_A . grad log p + div f_A]:

    A <- retraction of A by (I - A A^T)(delta grad alpha(A) + sqrt(2 T delta) noise).

Only the span of A matters, so the Q of a QR decomposition is the retraction. The particles move
with the current projectors, which then move for the next step. One evaluation of the kernel serves
both; moving the projectors first would take two.

On lines (k = 1) no automatic differentiation is needed. With t = a . x, s = a . score and f the
scalar velocity on the line,

    alpha(a) = E[s f(t) + f'(t)],
    grad alpha(a) = 2 E[f(t) score + (s f'(t) + f''(t)) x],

because the double sum in alpha is symmetric. They take one exponential for each pair of particles.

The sum, not the average, is the direction of steepest descent when the function is free in all
subspaces at once, and the authors use it. Complementary projectors then give the full score. Its
KL rate is minus the sum of the discrepancies.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.fields.lines import velocities_on_lines
from parvi.fields.svgd import MEDIAN_POINTS, SVGDVelocity
from parvi.interface import AbstractField, AbstractJointVelocity, Fit, kl_rate
from parvi.kernels import RBF, AbstractBandwidth, Fixed, Median

# Default maximum of projectors. The authors' experiments have min(20, d // k).
_MAX_PROJECTORS = 20


class GrassmannMemory(NamedTuple):
    """The projectors of the next step, their temperature, and the last velocity's magnitude."""

    projectors: Float[Array, "m d k"]
    temperature: Float[Array, ""]
    magnitude: Float[Array, ""]


class GrassmannVelocity(AbstractJointVelocity):
    """A sum of SVGD velocities, each in its subspace, with its own bandwidth."""

    projectors: Float[Array, "m d k"]
    squares: Float[Array, " m"]
    particles: Float[Array, "n d"]
    scores: Float[Array, "n d"]

    def with_divergences(self, points):
        if self.projectors.shape[2] == 1:
            lines = self.projectors[..., 0]
            values, slopes, _ = _on_lines(lines, self.squares, self.particles, self.scores, points)
            return values.T @ lines, jnp.sum(slopes, axis=0)

        def one(projector_and_square):
            projector, square = projector_and_square
            return _projected(projector, square, self.particles, self.scores, points)

        # A loop over the projectors holds a single kernel matrix at a time.
        values, divergences = jax.lax.map(one, (self.projectors, self.squares))
        # div_x A g(A^T x) = tr(A^T A dg) = div g: the columns of A are orthonormal.
        return jnp.einsum("mnk,mdk->nd", values, self.projectors), jnp.sum(divergences, axis=0)


class GrassmannSVGD(AbstractField):
    """SVGD on m learned subspaces of dimension k. O(m n^2 k) time, O(n^2) memory; O(m n) on lines.

    The projectors move with noise, so the field is stochastic. A step uses the projectors of the
    step before and bandwidths from its own particles.

    Parameters
    ----------
    subspace_dim
        k, the dimension of each subspace, or d if that is smaller.
    num_projectors
        m; None for min(20, d // k), as in the authors' experiments.
    projector_step
        delta, the step of the projectors.
    temperature
        T, the temperature of the noise on the projectors.
    annealing_tolerance
        T grows tenfold at each step at which the mean magnitude of the velocity (its largest
        coordinate, averaged over the particles) changes by less than this value times the number
        of projectors. Subspaces in which nothing is left to do are then exchanged for others. 0
        keeps T constant.
    bandwidth
        Bandwidth of each projector's RBF kernel, from the projected particles.
    """

    subspace_dim: int = 1
    num_projectors: int | None = None
    projector_step: float = 0.1
    temperature: float = 1e-4
    annealing_tolerance: float = 1e-4
    bandwidth: AbstractBandwidth = Median()

    def __check_init__(self):
        if self.subspace_dim < 1:
            raise ValueError(f"subspace_dim must be at least 1, got {self.subspace_dim}.")
        if self.num_projectors is not None and self.num_projectors < 1:
            raise ValueError(
                f"num_projectors must be None or at least 1, got {self.num_projectors}."
            )
        for name in ("projector_step", "temperature", "annealing_tolerance"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")

    def init(self, key, particles):
        dim, dtype = particles.shape[1], particles.dtype
        k = min(self.subspace_dim, dim)
        num = self.num_projectors or min(_MAX_PROJECTORS, dim // k)
        # The authors start from blocks of coordinate axes; after the last axis comes the first.
        axes = jnp.arange(num * k).reshape(num, k) % dim
        projectors = jnp.swapaxes(jnp.eye(dim, dtype=dtype)[axes], 1, 2)
        temperature = jnp.asarray(self.temperature, dtype)
        return GrassmannMemory(projectors, temperature, jnp.asarray(jnp.finfo(dtype).max, dtype))

    def fit(self, key, cloud, memory):
        particles, scores, projectors = cloud.particles, cloud.scores, memory.projectors
        on_lines = projectors.shape[2] == 1

        def square(projector):
            return self.bandwidth.of(particles @ projector, MEDIAN_POINTS)

        # On lines a median needs no pairs, so all medians are computed at once.
        squares = jax.vmap(square)(projectors) if on_lines else jax.lax.map(square, projectors)
        # The gradients treat the bandwidths as constants.
        gradients_of = _gradients_on_lines if on_lines else _gradients
        values, divergences, gradients = gradients_of(projectors, squares, particles, scores)

        magnitude = jnp.mean(jnp.max(jnp.abs(values), axis=1))
        tolerance = self.annealing_tolerance * len(projectors)
        settled = jnp.abs(magnitude - memory.magnitude) < tolerance
        # Noise of unit size draws the subspaces afresh at each step. More noise would only send
        # each to its own complement and back.
        hottest = max(self.temperature, 0.5 / self.projector_step) if self.projector_step else 0.0
        hotter = jnp.minimum(10 * memory.temperature, hottest)
        temperature = jnp.where(settled, hotter, memory.temperature)
        moved = _moved(key, projectors, gradients, self.projector_step, temperature)
        velocity = GrassmannVelocity(projectors, squares, particles, scores)
        rate = kl_rate(values, divergences, scores)
        fit = Fit(velocity, values, rate, {"temperature": temperature})
        return fit, GrassmannMemory(moved, temperature, magnitude)


def _projected(projector, square, particles, scores, points):
    """SVGD in the subspace: its velocity there, (n, k), and its divergences."""
    inner = SVGDVelocity(particles @ projector, scores @ projector, RBF(Fixed(square)))
    return inner.with_divergences(points @ projector)


def _gradients(projectors, squares, particles, scores):
    """Velocity and divergences at the particles, and the gradient of each discrepancy."""

    def discrepancy(projector, square):
        # This is alpha(A), the squared kernel Stein discrepancy in the subspace.
        values, divergences = _projected(projector, square, particles, scores, particles)
        return -kl_rate(values, divergences, scores @ projector), (values, divergences)

    def one(projector_and_square):
        return jax.grad(discrepancy, has_aux=True)(*projector_and_square)

    gradients, (values, divergences) = jax.lax.map(one, (projectors, squares))
    total = jnp.einsum("mnk,mdk->nd", values, projectors)
    return total, jnp.sum(divergences, axis=0), gradients


def _gradients_on_lines(projectors, squares, particles, scores):
    """The same for k = 1, in closed form."""
    num = particles.shape[0]
    lines = projectors[..., 0]
    values, slopes, bends = _on_lines(lines, squares, particles, scores, particles)
    # alpha does not change when all particles move together, so their mean adds only rounding.
    centred = particles - jnp.mean(particles, axis=0)
    gradients = values @ scores + (lines @ scores.T * slopes + bends) @ centred
    return values.T @ lines, jnp.sum(slopes, axis=0), (2 / num) * gradients[..., None]


def _on_lines(lines, squares, particles, scores, points):
    """f, f' and f'' on each line, (m, n) each, at the points."""
    centre = jnp.mean(particles, axis=0)
    at, positions = lines @ (points - centre).T, lines @ (particles - centre).T
    return velocities_on_lines(at, positions, lines @ scores.T, squares)


def _moved(key, projectors, gradients, step, temperature):
    """One step of noisy gradient ascent on the Grassmann manifold, for each projector."""
    noise = jax.random.normal(key, projectors.shape, projectors.dtype)
    ambient = step * gradients + jnp.sqrt(2 * temperature * step) * noise
    inside = jnp.einsum("mdk,mdj->mkj", projectors, ambient)
    tangent = ambient - jnp.einsum("mdk,mkj->mdj", projectors, inside)
    moved = projectors + tangent
    if projectors.shape[2] == 1:
        return moved / jnp.linalg.norm(moved, axis=1, keepdims=True)
    return jnp.linalg.qr(moved)[0]
