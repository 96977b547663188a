"""Projected Stein variational Newton (Chen, Wu, Chen, O'Leary-Roseberry & Ghattas 2019).

Data often inform only a few directions of many parameters with prior N(m, C). These are the leading
eigenvectors of the likelihood's Hessian, averaged over the particles, against the prior precision,

    E[-grad^2 log p - C^-1] psi = lambda C^-1 psi,      psi^T C^-1 psi = 1,

and Stein variational Newton is run on the coefficients c = psi^T C^-1 (x - m) alone, in a few
dimensions, where kernels work. The part of each particle outside their span stays unchanged. If
the particles start as draws of the prior, this part already has the posterior's distribution, up
to what eigenvalues below the threshold would have changed. The subspace is recomputed at each step.

Without a prior nothing is known of the directions that are left alone, so none may be left alone:
the subspace is then the whole space.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from parvi.fields.svn import SVN, hessians_along, positive
from parvi.interface import AbstractField, AbstractVelocity, Cloud, Fit, kl_rate


class ProjectedVelocity(AbstractVelocity):
    """f(x) = P g(P^+ (x - m)), the velocity g of the coefficients; div f = div g."""

    origin: Float[Array, " d"]
    lift: Float[Array, "r d"]
    drop: Float[Array, "r d"]
    inner: AbstractVelocity

    def __call__(self, x):
        return self.inner(self.drop @ (x - self.origin)) @ self.lift

    def on(self, cloud):
        return self.inner.on(self._coefficients(cloud)) @ self.lift

    def divergences(self, cloud):
        return self.inner.divergences(self._coefficients(cloud))

    def precondition(self, vector):
        return self.inner.precondition(self.lift @ vector) @ self.lift

    def _coefficients(self, cloud):
        return Cloud(
            (cloud.particles - self.origin) @ self.drop.T,
            cloud.scores @ self.lift.T,
            cloud.log_densities,
            lambda c: cloud.log_density(self.origin + c @ self.lift),
        )


class ProjectedSVN(AbstractField):
    """The velocity of Stein variational Newton in the subspace that the data inform.

    A fit takes O(n^2 r^2 + n r^3) for the block-diagonal system, d + r Hessian-vector products per
    particle, and O(d^3) for the eigenvectors, which are exact (the paper uses a randomised method).
    ``extra["rank"]`` is the number of directions in use.

    Parameters
    ----------
    rank
        r, the maximum number of directions, which is limited to the number of coordinates.
    threshold
        Directions with a smaller \\|lambda\\| are left alone, because the data add less than this
        share of the prior precision in them. It is not used without a prior.
    prior_mean
        m, a number or an array ``(d,)``.
    prior_covariance
        C: a number, the variances ``(d,)``, or a matrix ``(d, d)``. Start from draws of N(m, C).
        None means that the prior is not known. All directions are then in use, so the rank must
        be at least d.
    svn
        System, kernel and damping of the Newton step in the subspace.
    """

    rank: int = 20
    threshold: float = 1e-2
    prior_mean: float | Float[Array, " d"] = 0.0
    prior_covariance: float | Float[Array, "..."] | None = None
    svn: SVN = SVN()

    def __check_init__(self):
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}.")
        if self.threshold < 0:
            raise ValueError(f"threshold must be at least 0, got {self.threshold}.")

    def init(self, key, particles):
        dim = particles.shape[1]
        if self.prior_covariance is None and self.rank < dim:
            raise ValueError(
                f"projected_svn needs the prior: with rank {self.rank} it leaves "
                f"{dim - self.rank} of {dim} directions as they are, which is right only if the "
                "particles start as draws of the prior N(m, C). Give prior_covariance=C (and "
                f"prior_mean=m), or a rank of at least {dim} to use all directions."
            )
        shapes = {"prior_mean": [(), (dim,)], "prior_covariance": [(), (dim,), (dim, dim)]}
        for name, expected in shapes.items():
            given = getattr(self, name)
            if given is None:
                continue
            got = jnp.shape(given)
            if got not in expected:
                raise ValueError(
                    f"{name} has shape {got}, but the particles have {dim} coordinates; expected "
                    f"one of the shapes {expected}."
                )
        return ()

    def fit(self, key, cloud, memory):
        lift, drop, active = self._subspace(cloud)
        origin = jnp.broadcast_to(jnp.asarray(self.prior_mean, lift.dtype), cloud.shape[1:])
        coefficients = (cloud.particles - origin) @ drop.T
        curvatures = positive(-hessians_along(cloud, lift), self.svn.damping)
        # A direction that is left alone must not enter the others' system; 1 is the prior's value.
        curvatures = curvatures + jnp.diag(1.0 * ~active).astype(lift.dtype)
        inner = self.svn.newton(coefficients, cloud.scores @ lift.T, curvatures, active)
        velocity = ProjectedVelocity(origin, lift, drop, inner)
        values = velocity.on(cloud)
        rate = kl_rate(values, velocity.divergences(cloud), cloud.scores)
        return Fit(velocity, values, rate, {"rank": jnp.sum(active, dtype=jnp.int32)}), memory

    def _subspace(self, cloud):
        """psi^T, psi^T C^-1, and a flag for each row in use; the other rows are zero."""
        dim, dtype = cloud.shape[1], cloud.dtype
        if self.prior_covariance is None:
            return jnp.eye(dim, dtype=dtype), jnp.eye(dim, dtype=dtype), jnp.ones(dim, bool)
        stretch, shrink = self._prior(dtype, dim)
        # With C = F F^T, this is the Hessian in coordinates in which the prior is N(0, I).
        products = jax.lax.map(cloud.mean_hessian_product, stretch.T)
        hessian = -products @ stretch
        values, vectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
        informed = jnp.abs(values - 1)
        order = jnp.argsort(-informed)[: self.rank]
        active = informed[order] >= self.threshold
        chosen = vectors[:, order].T * active[:, None]
        return chosen @ stretch.T, chosen @ shrink, active

    def _prior(self, dtype, dim):
        """F and F^-1."""
        covariance = jnp.asarray(self.prior_covariance, dtype)
        if covariance.ndim < 2:
            scale = jnp.broadcast_to(jnp.sqrt(covariance), (dim,))
            return jnp.diag(scale), jnp.diag(1 / scale)
        factor = jnp.linalg.cholesky(covariance)
        identity = jnp.eye(dim, dtype=dtype)
        return factor, jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
