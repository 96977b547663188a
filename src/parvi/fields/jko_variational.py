"""JKO steps by a primal-dual game (Fan, Zhang, Taghvaei and Chen 2022).

    min_T sup_h E[ |T(x) - x|^2 / 2a + log h(T(x)) + log mu(T(x)) - log p*(T(x)) ] - E_mu[h]

(Eq. 8 with Corollary 3.3). For any density mu that can be sampled, 1 + the supremum is the KL from
p* to the image of the particles under T, and h is their ratio to mu. The game needs no log
determinant and no convexity, and an inner step is O(n) for any map.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from parvi.fields.affine_network import AffineNetwork
from parvi.fields.pfg.functions import Parameters
from parvi.geometry.frame import DenseFrame
from parvi.interface import AbstractField, AbstractJointVelocity, Fit, kl_rate

# Number of draws from mu per particle. They need no log density, and the mean of exp(g) is noisy.
_DRAWS = 8


class ResidualVelocity(AbstractJointVelocity):
    """f(x) = T(x) - x, whose unit step is the JKO step."""

    displacement: AffineNetwork
    weights: PyTree[Array]

    def with_divergences(self, points):
        return self.displacement.with_divergences(Parameters((), self.weights), points)


class LogRatio(eqx.Module):
    """g(y) = w . tanh(V y + c) + b, initially zero, and bounded so that exp(g) cannot overflow."""

    width: int = 32

    def init(self, key: Key[Array, ""], dim: int, dtype: jnp.dtype) -> PyTree[Array]:
        """Weights for standardised particles."""
        draws = jax.random.normal(key, (self.width, dim + 1), dtype)
        return {
            "directions": draws[:, :dim] * dim**-0.5,
            "offsets": draws[:, dim],
            "outputs": jnp.zeros(self.width, dtype),
            "shift": jnp.zeros((), dtype),
        }

    def __call__(self, weights: PyTree[Array], points: Float[Array, "n d"]) -> Float[Array, " n"]:
        """g at every point."""
        hidden = jnp.tanh(points @ weights["directions"].T + weights["offsets"])
        return hidden @ weights["outputs"] + weights["shift"]


class _Game(NamedTuple):
    """The carry of the inner loop."""

    map: PyTree[Array]
    map_optimizer: PyTree[Array]
    # The last map with a finite objective, and the factor on the length of a step.
    safe: PyTree[Array]
    scale: Float[Array, ""]
    dual: PyTree[Array]
    dual_optimizer: PyTree[Array]


class JKOVariational(AbstractField):
    """The velocity whose unit step is a JKO step: use it with ``Constant(1.0)``.

    The map is T(x) = x + an affine map + a network, and starts as the identity at every fit. The
    dual function is h = exp(g), where g is a network on the moved particles in their own frame; it
    is kept from fit to fit.

    mu is the Gaussian with the mean and covariance of the *moved* particles; Fan et al. take those
    of the particles before the step. The KL is the same for every mu, but h then only has to learn
    what is not Gaussian about the particles, and stays near 1 however far the map goes. Between
    Gaussians h = 1, and the step is exact.

    An inner step costs O(n d (d + width)), one gradient of the log density per particle, and eight
    draws from mu per particle for each dual step.

    Parameters
    ----------
    map_optimizer, dual_optimizer
        Optimisers of the inner loop. Build them once, since a new optax object is compiled anew.
    width
        Number of hidden units of the map and of the dual function.
    step_size
        a, in squared units of the field's coordinates. Wrap the field in ``Whitened`` to give it a
        meaning.
    num_inner_steps
        Number of descent steps of the map at each fit.
    num_dual_steps
        Number of ascent steps of the dual function before each descent step.
    """

    map_optimizer: optax.GradientTransformation
    dual_optimizer: optax.GradientTransformation
    width: int = 32
    step_size: float = 1.0
    num_inner_steps: int = 100
    num_dual_steps: int = 5

    def __check_init__(self):
        if self.step_size <= 0:
            raise ValueError(f"step_size must be positive, got {self.step_size}.")
        if min(self.width, self.num_inner_steps, self.num_dual_steps) < 1:
            raise ValueError(
                "width, num_inner_steps and num_dual_steps must be at least 1, got "
                f"{self.width}, {self.num_inner_steps} and {self.num_dual_steps}."
            )

    def init(self, key, particles):
        dual = LogRatio(self.width).init(key, particles.shape[1], particles.dtype)
        return dual, self.dual_optimizer.init(dual)

    def fit(self, key, cloud, memory):
        key_map, key_loop = jax.random.split(key)
        network = AffineNetwork(self.width)
        start = network.init(key_map, cloud.particles).trainable
        one = jnp.ones((), cloud.particles.dtype)
        carry = _Game(start, self.map_optimizer.init(start), start, one, *memory)

        def body(number, carry):
            # Steps shrink to zero within a fit, so that the noise of the game is averaged.
            rest = 1 - number / self.num_inner_steps
            return self._play(jax.random.fold_in(key_loop, number), network, cloud, carry, rest)

        end = jax.lax.fori_loop(0, self.num_inner_steps, body, carry)
        velocity = ResidualVelocity(network, end.safe)
        values, divergences = velocity.with_divergences(cloud.particles)
        fit = Fit(velocity, values, kl_rate(values, divergences, cloud.scores), {})
        return fit, (end.dual, end.dual_optimizer)

    def _play(self, key, network, cloud, carry, rest):
        particles = cloud.particles
        ratio = LogRatio(self.width)

        def moved(weights):
            return particles + network.values(Parameters((), weights), particles)

        now = moved(carry.map)
        frame = DenseFrame.of(now)
        standard = frame.enter(now)

        def dual_loss(weights, key_draw):
            shape = (_DRAWS * particles.shape[0], particles.shape[1])
            draws = jax.random.normal(key_draw, shape, particles.dtype)
            return jnp.mean(jnp.exp(ratio(weights, draws))) - jnp.mean(ratio(weights, standard))

        def ascend(number, state):
            weights, optimizer = state
            gradient = jax.grad(dual_loss)(weights, jax.random.fold_in(key, number))
            updates, optimizer = self.dual_optimizer.update(gradient, optimizer, weights)
            return optax.apply_updates(weights, updates), optimizer

        state = (carry.dual, carry.dual_optimizer)
        dual, dual_optimizer = jax.lax.fori_loop(0, self.num_dual_steps, ascend, state)

        def map_loss(weights):
            proposal = moved(weights)
            cost = 0.5 * jnp.sum((proposal - particles) ** 2, axis=1) / self.step_size
            inside = frame.enter(proposal)
            log_ratio = ratio(dual, inside) - 0.5 * jnp.sum(inside**2, axis=1)
            return jnp.mean(cost + log_ratio - jax.vmap(cloud.log_density)(proposal))

        value, gradient = jax.value_and_grad(map_loss)(carry.map)
        updates, optimizer = self.map_optimizer.update(gradient, carry.map_optimizer, carry.map)
        length = (carry.scale * rest).astype(particles.dtype)
        updates = jax.tree.map(lambda leaf: length * leaf, updates)
        new = optax.apply_updates(carry.map, updates)

        # If the density is not finite, return to the safe map and the old dual and halve the steps.
        finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(new))
        restart = self.map_optimizer.init(carry.safe)
        went = _Game(new, optimizer, carry.map, carry.scale, dual, dual_optimizer)
        back = carry._replace(map=carry.safe, map_optimizer=restart, scale=0.5 * carry.scale)
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), went, back)
