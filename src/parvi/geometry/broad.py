"""Broad Gaussians, from which a tempered path begins, and Gaussians at modes that are known."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from parvi.cloud import Place
from parvi.geometry.frame import AbstractGaussianFrame, DenseFrame, DiagonalFrame, tells_covariance

# Log volume by which the broad Gaussian may be widened beyond the particles.
_ROOM = 6.0
# Particles count as much wider from this many times the expected width on.
_NARROW = 1.4
# The share of the broad Gaussian beside modes that are known, and how much of the rest is shared
# equally, as Laplace's masses may be wrong.
_BROAD, _EQUAL = 0.5, 0.5
# A broad Gaussian alone has particles for all modes if their log volumes differ by no more: 25 of
# 512 for the narrowest of modes of equal weight.
_UNEQUAL = 3.0


class Base(eqx.Module):
    """The mixture from which a path begins: a broad Gaussian, and narrow ones at known modes.

    A mode that is much narrower than others has hardly any mass in a broad Gaussian beside theirs,
    so a path from there may lose it. What is known of a mode is right at every temperature, but
    modes that nobody knows of have little mass beside it until late. So the modes are left out if
    their volumes are alike.

    Parameters
    ----------
    broad
        The broad Gaussian, N(0, I) in this frame.
    modes
        Those at the modes: a frame whose arrays have one more axis, or None.
    log_shares
        The logs of the shares, that of the broad one first.
    """

    broad: AbstractGaussianFrame
    modes: DenseFrame | None
    log_shares: Float[Array, " k"]

    @classmethod
    def alone(cls, broad: AbstractGaussianFrame) -> "Base":
        """No mode is known."""
        return cls(broad, None, jnp.zeros(1, broad.mean.dtype))

    @classmethod
    def beside(
        cls, broad: AbstractGaussianFrame, modes: DenseFrame, log_masses: Float[Array, " k"]
    ) -> "Base":
        """Modes of these masses, if their volumes differ; those with -inf do not count."""
        counts = jnp.isfinite(log_masses)
        volumes = jax.lax.map(lambda frame: frame.log_volume, modes)
        largest = jnp.max(jnp.where(counts, volumes, -jnp.inf))
        unequal = largest - jnp.min(jnp.where(counts, volumes, jnp.inf)) > _UNEQUAL
        equal = counts / jnp.sum(counts)
        shares = (1 - _EQUAL) * jax.nn.softmax(log_masses) + _EQUAL * equal
        first = jnp.where(unequal, _BROAD, 1.0)
        shares = jnp.concatenate([first[None], (1 - first) * shares])
        return cls(broad, modes, jnp.log(shares).astype(log_masses.dtype))

    def widened(self, broad: AbstractGaussianFrame) -> "Base":
        """The same modes beside another broad Gaussian."""
        return Base(broad, self.modes, self.log_shares)

    def draw(self, normals: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Points of the mixture from points of N(0, I): of every part its share of them."""
        points = self.broad.leave(normals)
        if self.modes is None:
            return points
        num = len(normals)
        bounds = jnp.cumsum(jnp.exp(self.log_shares))
        parts = jnp.searchsorted(bounds[:-1], (jnp.arange(num) + 0.5) / num)

        def one(points, mode):
            number, frame = mode
            return jnp.where((parts == number)[:, None], frame.leave(normals), points), None

        numbers = jnp.arange(1, len(bounds))
        return jax.lax.scan(one, points, (numbers, self.modes))[0]

    def log_density(self, particles: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The log density of the mixture, with its constant."""
        return jax.scipy.special.logsumexp(self._log_parts(particles), axis=0)

    def score(self, particles: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The score of the mixture."""
        first = _score(self.broad, particles)
        if self.modes is None:
            return first
        owned = self.owned(particles)

        def one(total, mode):
            frame, share = mode
            return total + share[:, None] * _score(frame, particles), None

        return jax.lax.scan(one, owned[0][:, None] * first, (self.modes, owned[1:]))[0]

    def owned(self, particles: Float[Array, "n d"]) -> Float[Array, "k n"]:
        """The share of every part, the broad one first, in the density at every particle."""
        return jax.nn.softmax(self._log_parts(particles), axis=0)

    def _log_parts(self, particles):
        parts = log_normal(self.broad, particles)[None]
        if self.modes is not None:
            others = jax.lax.map(lambda frame: log_normal(frame, particles), self.modes)
            parts = jnp.concatenate([parts, others])
        return parts + self.log_shares[:, None]


def _score(frame, particles):
    return -frame.push(frame.enter(particles))


def broad(particles, scores, breadth: float) -> AbstractGaussianFrame:
    """A frame in which N(0, I) is broad: as wide as the particles in every direction, and more.

    Clumps that were found may lie on a line, and others beside it. So narrow directions are
    widened until they hold as many clumps as the widest one, or until the volume is large enough.
    The Fisher information gives the width of a clump.
    """
    if not tells_covariance(particles.shape):
        own = DiagonalFrame.of(particles)
        return DiagonalFrame(own.mean, breadth * own.scale)
    frame = DenseFrame.of(particles)
    scores = frame.pull(scores)
    fisher = scores.T @ scores / len(scores)
    values, vectors = jnp.linalg.eigh((fisher + fisher.T) / 2)
    values = jnp.maximum(values, 1.0)
    missing = 0.5 * jnp.log(jnp.max(values) / values)
    room = jnp.minimum(1.0, _ROOM / jnp.maximum(jnp.sum(missing), 1e-9))
    wider = breadth * jnp.exp(room * missing)
    return DenseFrame(
        frame.mean, frame.factor @ (vectors * wider), (vectors / wider).T @ frame.inverse
    )


def rescaled(base: AbstractGaussianFrame, place: Place) -> AbstractGaussianFrame:
    """The base with every axis scaled so that the scores have mean square 1.

    More than one number for each axis would be fitted to the same particles that then fly in it:
    the covariance of 512 particles in 100 dimensions made them 8 % too narrow.
    """
    squares = jnp.mean(base.pull(place.scores) ** 2, axis=0)
    scale = jnp.where(squares > 0, squares, 1.0) ** -0.5
    if isinstance(base, DiagonalFrame):
        return DiagonalFrame(base.mean, base.scale * scale)
    assert isinstance(base, DenseFrame)
    return DenseFrame(base.mean, base.factor * scale, base.inverse / scale[:, None])


def is_wider(z: Float[Array, "n d"], width: float) -> Bool[Array, ""]:
    """Whether the particles are much wider than this in some direction."""
    centred = z - jnp.mean(z, axis=0)
    widest = jnp.linalg.eigvalsh(centred.T @ centred / len(z))[-1]
    # The particles, and those of which the frame was made, both have a widest direction by chance.
    chance = (1 + math.sqrt(z.shape[1] / len(z))) ** 2
    return jnp.sqrt(widest) > _NARROW * width * chance


def log_normal(base, particles):
    """The log density of the broad Gaussian, with its constant."""
    square = jnp.sum(base.enter(particles) ** 2, axis=1)
    return -0.5 * (square + particles.shape[1] * math.log(2 * math.pi)) - base.log_volume
