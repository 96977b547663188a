"""Input-convex networks (Amos, Xu and Kolter 2017), strongly convex and initially |x|^2 / 2.

    psi(x) = alpha/2 |x|^2 + 1/2 |B x|^2 + b . x + w . u_L(x),
    u_1 = s(V_1 x + c_1),   u_l = s(U_l u_{l-1} + V_l x + c_l)

is convex in x if w >= 0 and U_l >= 0 and the activation s (softplus) is convex and not
decreasing. With alpha I + B^T B = I, b = 0 and w = 0, its gradient is the identity.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

Weights = dict[str, Any]


class ICNN(eqx.Module):
    """A strongly convex function, whose gradient is a transport map.

    The gradient of the quadratic term alone can be any affine optimal map, so steps between
    Gaussians are exact. Mokrov et al. 2021 use convex quadratic layers to the same end.

    Parameters
    ----------
    width
        Number of units in each hidden layer.
    depth
        Number of hidden layers.
    convexity
        alpha in (0, 1), a lower bound on the Hessian, which limits how much one map may contract.
    """

    width: int = 32
    depth: int = 2
    convexity: float = 1e-2

    def __check_init__(self):
        if self.width < 1 or self.depth < 1:
            raise ValueError(
                f"width and depth must be at least 1, got {self.width} and {self.depth}."
            )
        if not 0 < self.convexity < 1:
            raise ValueError(f"convexity must be between 0 and 1, got {self.convexity}.")

    def init(self, key: Key[Array, ""], dim: int, dtype: jnp.dtype) -> Weights:
        """Weights of a function whose gradient is the identity."""
        # One draw serves all layers, because many small draws take long to compile.
        rows = self.width * (dim + 1 + self.width)
        draws = jax.random.normal(key, (self.depth, rows), dtype)
        layers = []
        for number, draw in enumerate(draws):
            direct, offset, chain = jnp.split(draw, [self.width * dim, self.width * (dim + 1)])
            layer = {"direct": direct.reshape(self.width, dim) * dim**-0.5, "offset": offset}
            if number > 0:
                # Positive rows that sum to about 1 let a layer neither grow nor fade.
                chain = jnp.abs(chain).reshape(self.width, self.width)
                layer["chain"] = chain * (jnp.pi / 2) ** 0.5 / self.width
            layers.append(layer)
        return {
            "factor": (1 - self.convexity) ** 0.5 * jnp.eye(dim, dtype=dtype),
            "shift": jnp.zeros(dim, dtype),
            "output": jnp.zeros(self.width, dtype),
            "layers": layers,
        }

    def project(self, weights: Weights) -> Weights:
        """The nearest weights for which the function is convex."""
        layers = [
            layer | {"chain": jnp.maximum(layer["chain"], 0.0)} if "chain" in layer else layer
            for layer in weights["layers"]
        ]
        return weights | {"output": jnp.maximum(weights["output"], 0.0), "layers": layers}

    def __call__(self, weights: Weights, x: Float[Array, " d"]) -> Float[Array, ""]:
        """psi(x)."""
        hidden = None
        for layer in weights["layers"]:
            before = layer["direct"] @ x + layer["offset"]
            hidden = jax.nn.softplus(before if hidden is None else before + layer["chain"] @ hidden)
        square = self.convexity * jnp.sum(x**2) + jnp.sum((weights["factor"] @ x) ** 2)
        return 0.5 * square + weights["shift"] @ x + weights["output"] @ hidden

    def map(self, weights: Weights, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """grad psi(x)."""
        return self.map_with_hessian(weights, x)[0]

    def map_with_hessian(
        self, weights: Weights, x: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """grad psi(x) and grad^2 psi(x), in closed form: O(L h d (h + d)) for L layers of h units.

        With J_l the Jacobian of the preactivations a_l and g_l the derivative of psi with respect
        to u_l, grad^2 psi = alpha I + B^T B + sum_l J_l^T diag(g_l s''(a_l)) J_l.
        """
        # Forward: a_l and J_l. The slope of softplus is the logistic function.
        before: list[Array] = []
        jacobians: list[Array] = []
        for layer in weights["layers"]:
            level, jacobian = layer["direct"] @ x + layer["offset"], layer["direct"]
            if before:
                slope = jax.nn.sigmoid(before[-1])
                level = level + layer["chain"] @ jax.nn.softplus(before[-1])
                jacobian = jacobian + layer["chain"] @ (slope[:, None] * jacobians[-1])
            before.append(level)
            jacobians.append(jacobian)

        factor = weights["factor"]
        hessian = self.convexity * jnp.eye(x.shape[0], dtype=x.dtype) + factor.T @ factor
        gradient = hessian @ x + weights["shift"]

        # Backward: g_l. J_L holds the whole network below, so it gives the gradient.
        towards = weights["output"]
        gradient = gradient + jacobians[-1].T @ (towards * jax.nn.sigmoid(before[-1]))
        for number in reversed(range(self.depth)):
            slope = jax.nn.sigmoid(before[number])
            curvature = towards * slope * (1 - slope)
            hessian = hessian + jacobians[number].T @ (curvature[:, None] * jacobians[number])
            if number > 0:
                towards = weights["layers"][number]["chain"].T @ (towards * slope)
        return gradient, hessian
