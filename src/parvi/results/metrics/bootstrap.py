"""Bootstrap weights for degenerate quadratic statistics.

Under the null hypothesis sum_{i != j} u(x_i, x_j) has the law of sum_{i != j} w_i w_j u(x_i, x_j)
in the limit, for random weights w with mean 0 and variance 1.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


class AbstractBootstrap(eqx.Module):
    """A rule for drawing the weights."""

    @abc.abstractmethod
    def weights(self, key: Key[Array, ""], num_bootstrap: int, num: int) -> Float[Array, "b n"]:
        """One row of weights for each bootstrap sample."""


class WildBootstrap(AbstractBootstrap):
    """Random signs (Chwialkowski, Strathmann & Gretton 2016).

    Parameters
    ----------
    flip_probability
        The chance that the sign changes from one point to the next: 1/2 for independent draws, and
        less for the ordered states of a chain, so that neighbours share their sign.
    """

    flip_probability: float = 0.5

    def __check_init__(self):
        if not 0 < self.flip_probability <= 0.5:
            raise ValueError(
                f"flip_probability must be in (0, 1/2], got {self.flip_probability}; 1/2 is for "
                "independent draws, less for the states of a chain."
            )

    def weights(self, key, num_bootstrap, num):
        flips = jax.random.bernoulli(key, self.flip_probability, (num_bootstrap, num))
        return jnp.cumprod(jnp.where(flips, -1.0, 1.0), axis=1)


class MultinomialBootstrap(AbstractBootstrap):
    """Counts of a resample with replacement, minus 1 (Liu, Lee & Jordan 2016, Sec. 4)."""

    def weights(self, key, num_bootstrap, num):
        chosen = jax.random.randint(key, (num_bootstrap, num), 0, num)
        counts = jax.vmap(lambda row: jnp.bincount(row, length=num))(chosen)
        return counts.astype(float) - 1
