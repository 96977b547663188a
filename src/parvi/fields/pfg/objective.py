"""The objective E[h(f) - f . grad log p - div f] and its parts (Dong et al. 2023, Eq. 4 and 8).

For h = 1/2 |.|_H^2 its minimiser is the projection of H^-1 grad log p*/p on the function class,
and its minimum is -1/2 E|grad log p*/p|^2_{H^-1} if the class is rich enough.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from parvi.fields.pfg.functions import AbstractFunctions, Parameters, forward_mode
from parvi.fields.pfg.metric import AbstractMetric


class AbstractRegulariser(eqx.Module):
    """h of the objective: a convex function of the velocity at one particle."""

    @abc.abstractmethod
    def penalties(self, values: Float[Array, "n d"], metric: AbstractMetric) -> Float[Array, " n"]:
        """h(f) at every particle."""


class Quadratic(AbstractRegulariser):
    """h(f) = 1/2 |f|_H^2, the default."""

    def penalties(self, values, metric):
        return 0.5 * jnp.sum(values * metric.apply(values), axis=1)


class Convex(AbstractRegulariser):
    """Any convex h, given as a function of the velocity at one particle; H is not used.

    Examples
    --------
    >>> import jax.numpy as jnp, parvi
    >>> cubic = parvi.fields.Convex(lambda f: jnp.sum(jnp.abs(f) ** 3) / 3)
    """

    function: Callable[[Float[Array, " d"]], Float[Array, ""]]

    def penalties(self, values, metric):
        return jax.vmap(self.function)(values)


class AbstractDivergence(eqx.Module):
    """How the divergence of a function is computed."""

    @abc.abstractmethod
    def __call__(
        self,
        key: Key[Array, ""],
        functions: AbstractFunctions,
        parameters: Parameters,
        particles: Float[Array, "n d"],
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """Values and divergences at all particles."""


class ExactDivergence(AbstractDivergence):
    """The divergence in closed form if the function class has one, else by forward mode."""

    def __call__(self, key, functions, parameters, particles):
        return functions.with_divergences(parameters, particles)


class ForwardMode(AbstractDivergence):
    """The exact divergence by d forward passes per particle, even where there is a closed form."""

    def __call__(self, key, functions, parameters, particles):
        return forward_mode(functions, parameters, particles)


class Hutchinson(AbstractDivergence):
    """E[xi . (grad f) xi] over random probes xi: unbiased, by K forward passes per particle.

    Parameters
    ----------
    num_probes
        K, the number of probes for each particle.
    draw
        Function ``(key, shape, dtype)`` that draws probes with mean 0 and covariance I:
        ``jax.random.rademacher`` (the paper's) or ``jax.random.normal``.
    """

    num_probes: int = 1
    draw: Callable = jax.random.rademacher

    def __call__(self, key, functions, parameters, particles):
        num, dim = particles.shape
        probes = self.draw(key, (num, self.num_probes, dim), particles.dtype)

        def one(x, directions):
            value, push = jax.linearize(lambda point: functions(parameters, point), x)
            return value, jnp.mean(jnp.sum(directions * jax.vmap(push)(directions), axis=1))

        return jax.vmap(one)(particles, probes)
