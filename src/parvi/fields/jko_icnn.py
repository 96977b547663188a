"""JKO steps by input-convex networks (Mokrov et al. 2021; Alvarez-Melis et al. 2021).

By Brenier's theorem, a step of length h of the JKO scheme, min over q of
KL(q | p*) + W2(q, p)^2 / 2h, is a minimisation over convex functions psi, and q is the image of p
under grad psi:

    min_psi E[ |grad psi(x) - x|^2 / 2h - log p*(grad psi(x)) - log det grad^2 psi(x) ]

(Mokrov et al. 2021, Eq. 8 with Theorem 1). The step is implicit, and so stable at any length.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from parvi.cloud import LogDensity
from parvi.fields.icnn import ICNN
from parvi.interface import AbstractField, AbstractJointVelocity, Fit, kl_rate


class ICNNVelocity(AbstractJointVelocity):
    """f(x) = grad psi(x) - x, whose unit step is the JKO step."""

    potential: ICNN
    weights: PyTree[Array]

    def with_divergences(self, points):
        mapped = jax.vmap(self.potential.map_with_hessian, in_axes=(None, 0))
        moved, hessians = mapped(self.weights, points)
        return moved - points, jnp.trace(hessians, axis1=1, axis2=2) - points.shape[1]


class _Descent(NamedTuple):
    """The carry of the inner loop."""

    weights: PyTree[Array]
    optimizer: PyTree[Array]
    best: PyTree[Array]
    lowest: Float[Array, ""]
    # Factor on the length of a step.
    scale: Float[Array, ""]


class JKOICNN(AbstractField):
    """The velocity whose unit step is a JKO step: use it with ``Constant(1.0)``.

    Every fit starts from the identity, with new hidden units, and returns the best map that its
    inner steps met. This start also regularises: on few particles a rich map could gain without
    limit by stretching the neighbourhood of each, but not in a hundred steps.

    The log determinant is exact and takes one Cholesky factor per particle. An inner step costs
    O(h d (h + d) + d^3) per particle for h units per layer, plus one gradient of the log density.
    The field is practical up to about d = 50.

    Parameters
    ----------
    optimizer
        Optimiser of the inner loop. Build it once, since a new optax object is compiled anew.
    potential
        The class of convex functions.
    step_size
        h, in squared units of the field's coordinates. Wrap the field in ``Whitened`` to give it a
        meaning.
    num_inner_steps
        Number of inner steps at each fit.
    """

    optimizer: optax.GradientTransformation
    potential: ICNN = ICNN()
    step_size: float = 1.0
    num_inner_steps: int = 100

    def __check_init__(self):
        if self.step_size <= 0:
            raise ValueError(f"step_size must be positive, got {self.step_size}.")
        if self.num_inner_steps < 1:
            raise ValueError(f"num_inner_steps must be at least 1, got {self.num_inner_steps}.")

    def fit(self, key, cloud, memory):
        start = self.potential.init(key, cloud.particles.shape[1], cloud.particles.dtype)
        velocity = ICNNVelocity(self.potential, self._descend(start, cloud))
        values, divergences = velocity.with_divergences(cloud.particles)
        return Fit(velocity, values, kl_rate(values, divergences, cloud.scores), {}), memory

    def objective(
        self, weights: PyTree[Array], particles: Float[Array, "n d"], log_density: LogDensity
    ) -> Float[Array, ""]:
        """The objective of a JKO step, up to the entropy of the particles."""

        def one(x):
            moved, hessian = self.potential.map_with_hessian(weights, x)
            diagonal = jnp.diagonal(jnp.linalg.cholesky(hessian))
            cost = 0.5 * jnp.sum((moved - x) ** 2) / self.step_size
            return cost - log_density(moved) - 2 * jnp.sum(jnp.log(diagonal))

        return jnp.mean(jax.vmap(one)(particles))

    def _descend(self, start, cloud):
        dtype = cloud.particles.dtype

        def body(number, carry):
            value, gradient = jax.value_and_grad(self.objective)(
                carry.weights, cloud.particles, cloud.log_density
            )
            better = value < carry.lowest
            best = jax.tree.map(lambda a, b: jnp.where(better, a, b), carry.weights, carry.best)
            lowest = jnp.where(better, value, carry.lowest).astype(dtype)

            updates, optimizer = self.optimizer.update(gradient, carry.optimizer, carry.weights)
            # Steps shrink to zero within a fit, since steps of constant length end in a circle.
            length = (carry.scale * (1 - number / self.num_inner_steps)).astype(dtype)
            updates = jax.tree.map(lambda leaf: length * leaf, updates)
            weights = self.potential.project(optax.apply_updates(carry.weights, updates))

            # If the density is not finite, return to the best map and halve the steps.
            finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(weights))
            went = _Descent(weights, optimizer, best, lowest, carry.scale)
            back = _Descent(best, self.optimizer.init(best), best, lowest, 0.5 * carry.scale)
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), went, back)

        worst, one = jnp.asarray(jnp.inf, dtype), jnp.ones((), dtype)
        carry = _Descent(start, self.optimizer.init(start), start, worst, one)
        return jax.lax.fori_loop(0, self.num_inner_steps, body, carry).best
