"""Fields that see standardised particles.

With x = m + L z, a velocity f(x) = L g(z) has div_x f = div_z g, the score in z is L^T s, and the
metric is L^T H L: the whole fit may be done in z. With L L^T the covariance of the particles the
method becomes affine invariant, and one learning rate fits every problem.
"""

import jax.numpy as jnp

from parvi.cloud import View
from parvi.geometry.frame import (
    AbstractFrame,
    DenseFrame,
    DiagonalFrame,
    InFrame,
    tells_covariance,
)
from parvi.interface import AbstractField, AbstractVelocity, Fit


class FramedVelocity(AbstractVelocity):
    """A velocity that was fitted in a frame: f(x) = L g(L^-1 (x - m)).

    Parameters
    ----------
    frame
        Its coordinates.
    inner
        g.
    ruler
        The frame in which displacements are measured: the particles' own. None: by the standard
        deviation of each coordinate.
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


class Whitened(AbstractField):
    """Any field, fitted where the particles have mean 0 and covariance I.

    Affine invariant where the field inside does not care for rotations (``Linear`` with
    ``Identity``, ``Hessian``, ``RegressedHessian``; SVGD); others depend on the order of the
    coordinates through the Cholesky factor. O(n d^2 + d^3).
    """

    field: AbstractField

    @property
    def asks_means_only(self):
        return self.field.asks_means_only

    def init(self, key, particles):
        return self.field.init(key, DenseFrame.of(particles).enter(particles))

    def fit(self, key, cloud, memory):
        return _fit_in(DenseFrame.of(cloud.particles), self.field, key, cloud, memory)


class Standardised(AbstractField):
    """Any field, fitted where each coordinate has mean 0 and variance 1. O(n d)."""

    field: AbstractField

    @property
    def asks_means_only(self):
        return self.field.asks_means_only

    def init(self, key, particles):
        return self.field.init(key, DiagonalFrame.of(particles).enter(particles))

    def fit(self, key, cloud, memory):
        return _fit_in(DiagonalFrame.of(cloud.particles), self.field, key, cloud, memory)


class WhereTold(AbstractField):
    """One field where there are enough particles to tell their covariance, another elsewhere.

    Parameters
    ----------
    told
        For at least 1.5 particles a dimension: a ``Whitened`` one, for instance.
    untold
        For fewer: a ``Standardised`` one.
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


def _fit_in(frame, field, key, cloud, memory):
    inner, memory = field.fit(key, View(cloud, InFrame(frame)), memory)
    velocity = FramedVelocity(frame, inner.velocity, ruler=frame)
    # Of very many particles the values in the frame would be one more array of their size.
    values = frame.stretch(inner.values) if cloud.is_held else cloud.values(velocity.on)
    return Fit(velocity, values, inner.kl_rate, inner.extra), memory
