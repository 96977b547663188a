"""How far particles are from obeying Stein's identity, in units of what n draws would show.

For features psi the matrix B = E[s psi^T + (grad psi)^T] is zero at the target. With
q = (G + ridge)^-1 and G = E[psi psi^T], its row b = v^T B in a direction v has the size b q b^T,
whose mean for n independent draws is

    E[ (v . s)^2 psi^T q psi + 2 (v . s) (v . grad psi)^T q psi + (v . grad psi)^T q (v . grad psi) ] / n

because the terms of B are then independent with mean zero. The ratio of the two is the *excess*. It
is 1 for independent draws, above 1 for particles that are biased or too narrow in a way that the
features see, and below 1 for particles that are spread more evenly than by chance. The directions
are the eigenvectors of the Fisher information E[s s^T], so that stiff ones do not drown the
others.
"""  # noqa: E501

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from parvi.cloud import AbstractCloud
from parvi.fields.pfg.closed_form import NormalEquations
from parvi.fields.pfg.functions import RandomFeatures


def stein_excess(
    functions: RandomFeatures,
    frozen: PyTree[Array],
    cloud: AbstractCloud,
    ridge: float,
    others: AbstractCloud | None = None,
) -> Float[Array, " d"]:
    """The excess in every direction. O(n k (k + d)) time, O(n (k + d)) memory.

    With ``others``, G and the directions come from these. Those of the particles themselves are
    fitted to their noise: in 61 dimensions, 512 exact draws have an excess of 1.8 by their own.
    """

    def sums(block, weights):
        fisher = block.scores.T @ (weights[:, None] * block.scores)
        return NormalEquations.share(functions, frozen, block, weights), fisher

    equations, fisher = cloud.mean(sums)
    if others is not None:
        theirs, fisher = others.mean(sums)
        equations = equations._replace(gram=theirs.gram)
    return excess_of(functions, frozen, equations, fisher, cloud, ridge)


def excess_of(
    functions: RandomFeatures,
    frozen: PyTree[Array],
    equations: NormalEquations,
    fisher: Float[Array, "d d"],
    cloud: AbstractCloud,
    ridge: float,
) -> Float[Array, " d"]:
    """The excess from known means; the noise is estimated from some of the particles."""
    gram = equations.gram
    inverse = jnp.linalg.inv(gram + ridge * jnp.eye(len(gram), dtype=gram.dtype))
    basis = jnp.linalg.eigh(fisher)[1]
    wanted = equations.wanted.T @ basis
    size = jnp.sum(wanted * (inverse @ wanted), axis=0)

    # Some of the particles stand for draws of the target: the noise is n times the mean size that
    # n independent draws would have.
    few = cloud.some()
    num, dim = few.shape
    features, slopes = functions.features_and_slopes(frozen, few.particles)
    scores, directions = few.scores @ basis, frozen[0] @ basis
    # The features are (1, z, bent) and their gradients (0, I, slope * direction).
    weighted = features @ inverse
    affine, bent = slice(1, dim + 1), slice(dim + 1, None)
    square = jnp.sum(weighted * features, axis=1) @ scores**2 / num
    along = weighted[:, affine] @ basis + (weighted[:, bent] * slopes) @ directions
    cross = jnp.mean(scores * along, axis=0)
    mixed = jnp.mean(slopes, axis=0) @ ((inverse[bent, affine] @ basis) * directions)
    both = inverse[bent, bent] * (slopes.T @ slopes / num)
    trace = jnp.sum(basis * (inverse[affine, affine] @ basis), axis=0)
    trace = trace + 2 * mixed + jnp.sum(directions * (both @ directions), axis=0)
    return size * cloud.shape[0] / (square + 2 * cross + trace)
