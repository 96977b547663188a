"""Fields that see standardised particles.

With x = m + L z, a velocity f(x) = L g(z) has div_x f = div_z g, the score in z is L^T s, and the
metric is L^T H L, so the whole fit can be done in z. If L L^T is the covariance of the particles,
the method is affine invariant and one learning rate fits every problem.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from parvi.cloud import View
from parvi.geometry.frame import AbstractFrame, DenseFrame, DiagonalFrame, InFrame, tells_covariance
from parvi.interface import AbstractField, AbstractVelocity, Fit


class FramedVelocity(AbstractVelocity):
    """A velocity that was fitted in a frame: f(x) = L g(L^-1 (x - m)).

    Parameters
    ----------
    frame
        The frame, with m and L.
    inner
        g, the velocity in the frame.
    ruler
        The particles' own frame, in which displacements are measured. If None, they are measured
        by the standard deviation of each coordinate.
    """

    frame: AbstractFrame
    inner: AbstractVelocity
    ruler: AbstractFrame | None = None

    def __call__(self, x):
        return self.frame.stretch(self.inner(self.frame.enter(x)))

    def on(self, cloud):
        return self.frame.stretch(self.inner.on(View(cloud, InFrame(self.frame))))

    def divergences(self, cloud):
        return self.inner.divergences(View(cloud, InFrame(self.frame)))

    def kl_rate(self, cloud):
        return self.inner.kl_rate(View(cloud, InFrame(self.frame)))

    def length(self, cloud, displacement):
        if self.ruler is None:
            return super().length(cloud, displacement)
        return jnp.sqrt(jnp.max(self.ruler.mean_squares(displacement)))

    def precondition(self, vector):
        return self.frame.stretch(self.inner.precondition(self.frame.pull(vector)))


class AbstractFramed(AbstractField):
    """Fits any field in a frame of the particles, from the class ``frames``."""

    frames: eqx.AbstractClassVar[type[DenseFrame] | type[DiagonalFrame]]
    field: AbstractField

    @property
    def asks_means_only(self):
        return self.field.asks_means_only

    def init(self, key, particles):
        return self.field.init(key, self.frames.of(particles).enter(particles))

    def fit(self, key, cloud, memory):
        frame = self.frames.of(cloud.particles)
        return fit_in(frame, self.field, key, cloud, memory, ruler=frame)


class Whitened(AbstractFramed):
    """Fits any field in coordinates in which the particles have mean 0 and covariance I.

    The fit is affine invariant if the inner field does not depend on rotations (``Linear`` with
    ``Identity``, ``Hessian``, ``RegressedHessian``; SVGD). Other fields depend on the order of the
    coordinates through the Cholesky factor. O(n d^2 + d^3).
    """

    frames: ClassVar = DenseFrame


class Standardised(AbstractFramed):
    """Fits any field in coordinates that each have mean 0 and variance 1. O(n d)."""

    frames: ClassVar = DiagonalFrame


class WhereTold(AbstractField):
    """Uses one field if there are enough particles to estimate their covariance, else another.

    Parameters
    ----------
    told
        The field for at least 1.5 particles per dimension, for instance a ``Whitened`` one.
    untold
        The field for fewer particles, for instance a ``Standardised`` one.
    """

    told: AbstractField
    untold: AbstractField

    @property
    def asks_means_only(self):
        return self.told.asks_means_only and self.untold.asks_means_only

    def _chosen(self, particles):
        return self.told if tells_covariance(particles.shape) else self.untold

    def init(self, key, particles):
        return self._chosen(particles).init(key, particles)

    def fit(self, key, cloud, memory):
        return self._chosen(cloud.particles).fit(key, cloud, memory)


def fit_in(frame, field, key, cloud, memory, ruler=None):
    """Fit a field in a frame; the velocity measures displacements by the ruler."""
    inner, memory = field.fit(key, View(cloud, InFrame(frame)), memory)
    velocity = FramedVelocity(frame, inner.velocity, ruler)
    # With very many particles, the values in the frame would be one more array of their size.
    values = frame.stretch(inner.values) if cloud.is_held else cloud.values(velocity.on)
    return Fit(velocity, values, inner.kl_rate, inner.extra), memory
