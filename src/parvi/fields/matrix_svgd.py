"""Matrix SVGD: SVGD with matrix-valued kernels (Wang, Tang, Bajaj & Liu 2019).

    f(x) = E_y[ K(x, y) grad log p(y) + K(x, y) grad_y ]

With one preconditioner for all, K = Q^-1 k(|x - y|_Q) (their "constant preconditioning
matrices"), f is SVGD in the coordinates z = Q^1/2 x, and is computed in them. With a mixture of
preconditioners Q_l at anchors z_l (their "mixture preconditioning kernels")

    K(x, y) = sum_l w_l(x) w_l(y) K_l(x, y),      w_l(x) ~ N(x; z_l, Q_l^-1),  sum_l w_l = 1,

each part is SVGD in its own coordinates, with the gradient of the log weights added to the scores.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from parvi.fields.framed import fit_in
from parvi.fields.pfg.metric import AbstractMetric, FramedMetric
from parvi.fields.pfg.preconditioners import (
    AbstractPreconditioner,
    Hessian,
    InverseCovariance,
    RegressedHessian,
)
from parvi.fields.svgd import SVGD, radial_average
from parvi.geometry.frame import AbstractFrame
from parvi.interface import AbstractField, AbstractJointVelocity, Cloud, Fit, default_of, kl_rate
from parvi.kernels import RBF, AbstractKernel, AbstractRadialKernel, Profile, square_distances


class AbstractMatrixKernel(eqx.Module):
    """Makes a matrix-valued kernel of a scalar one, and fits its velocity."""

    @abc.abstractmethod
    def init(self, particles: Float[Array, "n d"]) -> PyTree[Array]:
        """The memory before the first step."""

    @abc.abstractmethod
    def fit(self, kernel: AbstractKernel, cloud: Cloud, memory: PyTree[Array]) -> tuple[Fit, Any]:
        """Fit a velocity; returns it with the new memory."""


class SharedPreconditioner(AbstractMatrixKernel):
    """K = Q^-1 k(|x - y|_Q) with one Q for all: SVGD in z = Q^1/2 x. O(n^2 d) plus the cost of Q.

    Parameters
    ----------
    preconditioner
        Estimates Q, an average over the particles: ``Hessian``, ``Fisher``, ``Kronecker``, ...
    block_size
        As in ``SVGD``.
    """

    preconditioner: AbstractPreconditioner = Hessian()
    block_size: int | None = None

    def init(self, particles):
        return self.preconditioner.init(particles)

    def fit(self, kernel, cloud, memory):
        metric, memory = self.preconditioner.update(cloud, memory)
        # In a frame centred at zero, a kernel that is not radial is the paper's k(z, z').
        frame = frame_of(metric, jnp.zeros_like(cloud.particles[0]))
        # SVGD is deterministic and remembers nothing.
        fit, _ = fit_in(frame, SVGD(kernel, self.block_size), None, cloud, ())
        return fit, memory


class PreconditionerMixture(AbstractMatrixKernel):
    """K = sum_l w_l(x) w_l(y) Q_l^-1 k(|x - y|_{Q_l}), with Q_l estimated at anchor l alone.

    Each of the m anchors costs as much as SVGD, so a fit takes O(m n^2 d) time and the memory of m
    matrices Q_l. If the particles are the anchors, then in high dimension each particle's weight
    is nearly one at its own anchor. The particles then hardly see each other, and the velocity is
    up to m times smaller than with a shared preconditioner. Fewer, fixed anchors avoid this.

    Parameters
    ----------
    preconditioner
        Estimates Q_l from one anchor: ``Hessian``, or a Fisher information, which has rank one.
    anchors
        An array ``(m, d)``; None for the particles themselves, as in the paper.
    """

    preconditioner: AbstractPreconditioner = Hessian()
    anchors: Float[Array, "m d"] | None = None

    def __check_init__(self):
        if isinstance(self.preconditioner, InverseCovariance | RegressedHessian):
            raise ValueError(
                f"{type(self.preconditioner).__name__} needs many particles, but each anchor of "
                "a PreconditionerMixture is alone; use parvi.preconditioners.Hessian()."
            )

    def init(self, particles):
        return jax.vmap(lambda x: self.preconditioner.init(x[None]))(self._anchors(particles))

    def fit(self, kernel, cloud, memory):
        def metric(x, memory):
            return self.preconditioner.update(Cloud.at(cloud.log_density, x[None]), memory)

        anchors = self._anchors(cloud.particles)
        metrics, memory = jax.vmap(metric)(anchors, memory)
        frames = jax.vmap(MetricFrame.of)(metrics, anchors)
        velocity = MixtureVelocity(cloud.particles, cloud.scores, frames, kernel)
        values, divergences = velocity.with_divergences(cloud.particles)
        return Fit(velocity, values, kl_rate(values, divergences, cloud.scores), {}), memory

    def _anchors(self, particles):
        return particles if self.anchors is None else jnp.asarray(self.anchors, particles.dtype)


class MatrixSVGD(AbstractField):
    """SVGD with a matrix-valued kernel.

    Parameters
    ----------
    matrix_kernel
        ``SharedPreconditioner`` or ``PreconditionerMixture``.
    kernel
        The scalar kernel k of distances in the preconditioner's norm. The default takes the median
        of the same distances.
    """

    matrix_kernel: AbstractMatrixKernel = default_of(SharedPreconditioner())
    kernel: AbstractKernel = default_of(RBF())

    def __check_init__(self):
        mixture = isinstance(self.matrix_kernel, PreconditionerMixture)
        if mixture and not isinstance(self.kernel, AbstractRadialKernel):
            raise ValueError(
                f"PreconditionerMixture needs a radial kernel, got {type(self.kernel).__name__}; "
                "use parvi.kernels.RBF() or parvi.kernels.IMQ(), or SharedPreconditioner."
            )

    def init(self, key, particles):
        return self.matrix_kernel.init(particles)

    def fit(self, key, cloud, memory):
        return self.matrix_kernel.fit(self.kernel, cloud, memory)


class MixtureVelocity(AbstractJointVelocity):
    """sum_l w_l(x) f_l(x) over stacked frames; f_l is SVGD with particles weighted by w_l."""

    particles: Float[Array, "n d"]
    scores: Float[Array, "n d"]
    frames: "MetricFrame"
    kernel: AbstractRadialKernel

    def with_divergences(self, points):
        here, here_mean = _responsibilities(self.frames, points)
        there, there_mean = _responsibilities(self.frames, self.particles)

        def add(total, part):
            frame, weight, particle_weight = part
            # grad log w_l = -Q_l (x - z_l) + sum_k w_k Q_k (x - z_k), both in frame l.
            z, y = frame.enter(points), frame.enter(self.particles)
            kernel = self.kernel.adapted(y, None)
            steepness = frame.pull(here_mean) - z
            scores = frame.pull(self.scores + there_mean) - y
            values, divergences = radial_average(kernel, y, scores, z, particle_weight)
            divergences = divergences + jnp.sum(steepness * values, axis=1)
            values = weight[:, None] * frame.stretch(values)
            return (total[0] + values, total[1] + weight * divergences), None

        start = jnp.zeros_like(points), jnp.zeros_like(points[:, 0])
        total, _ = jax.lax.scan(add, start, (self.frames, here, there))
        return total


def _responsibilities(frames, points):
    """w_l at all points, (m, n), and sum_l w_l Q_l (x - z_l), (n, d)."""

    def one(frame):
        z = frame.enter(points)
        # Q (x - z_l) = R z.
        return frame.log_determinant - 0.5 * jnp.sum(z**2, axis=1), frame.shrink(z)

    log_weights, pulls = jax.lax.map(one, frames)
    weights = jax.nn.softmax(log_weights, axis=0)
    return weights, jnp.einsum("mn,mnd->nd", weights, pulls)


class MetricFrame(AbstractFrame):
    """Coordinates z = R (x - m), with R the symmetric root of a metric, which becomes I in them."""

    mean: Float[Array, " d"]
    root: AbstractMetric
    log_determinant: Float[Array, ""]

    @classmethod
    def of(cls, metric: AbstractMetric, mean: Float[Array, " d"]) -> "MetricFrame":
        """The frame of a metric, centred at ``mean``; ``log_determinant`` is that of R."""
        root, log_determinant = metric.root()
        return cls(mean, root, jnp.asarray(log_determinant, mean.dtype))

    def stretch(self, z):
        return self.root.solve(z)

    def shrink(self, dx):
        return self.root.apply(dx)

    # R is symmetric.
    pull, push = stretch, shrink


class ComposedFrame(AbstractFrame):
    """A frame in a frame: L = L_outer L_inner, both centred at zero."""

    mean: Float[Array, " d"]
    outer: AbstractFrame
    inner: AbstractFrame

    def stretch(self, z):
        return self.outer.stretch(self.inner.stretch(z))

    def pull(self, s):
        return self.inner.pull(self.outer.pull(s))

    def shrink(self, dx):
        return self.inner.shrink(self.outer.shrink(dx))

    def push(self, s):
        return self.outer.push(self.inner.push(s))


def frame_of(metric: AbstractMetric, mean: Float[Array, " d"]) -> AbstractFrame:
    """Coordinates, centred at ``mean``, in which any metric is the identity."""
    if isinstance(metric, FramedMetric):
        return ComposedFrame(mean, metric.frame, frame_of(metric.inner, jnp.zeros_like(mean)))
    return MetricFrame.of(metric, mean)


class UnitMean(AbstractRadialKernel):
    """A radial kernel divided by its mean over all pairs of particles.

    The velocity of SVGD carries the factor E[k], which falls to about 2 / n in high dimension.
    Without it one step size serves every n and d: if the mean Hessian is the identity, a unit step
    is about a Newton step.

    Parameters
    ----------
    kernel
        The kernel to divide.
    scale
        One over its mean; set by ``adapted``.
    """

    kernel: AbstractRadialKernel = RBF()
    scale: float | Float[Array, ""] = 1.0

    def adapted(self, particles, max_points):
        kernel = self.kernel.adapted(particles, max_points)
        num, dim = particles.shape
        if max_points is not None and num > max_points:
            particles = particles[jnp.linspace(0, num - 1, max_points).astype(int)]
        used = particles.shape[0]
        value = kernel.profile(square_distances(particles, particles), dim).value
        # In a subset of the particles, pairs of a particle with itself would weigh too much.
        itself = jnp.mean(jnp.diagonal(value))
        others = (jnp.mean(value) * used - itself) / max(used - 1, 1)
        return UnitMean(kernel, 1 / (itself / num + (1 - 1 / num) * others))

    def profile(self, square, dim):
        return Profile(*(self.scale * part for part in self.kernel.profile(square, dim)))
