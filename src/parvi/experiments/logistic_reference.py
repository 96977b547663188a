"""The truth of Figure 5: logistic regression by NUTS, and the measures against it.

Features are scaled to [-1, 1], a column of ones is added, and the prior is N(0, 1). NUTS runs 40
chains side by side, in coordinates in which the posterior is nearly N(0, I) (Laplace's
approximation). As in the paper, the mean is that of 40 000 draws, and 4000 of them serve the MMD.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.diagnostics import effective_sample_size
from jaxtyping import Float

from parvi.experiments import datasets
from parvi.models.logistic import logistic_regression, signed_features
from parvi.results.metrics import elbo
from parvi.results.metrics.pairs import BLOCK_SIZE, mean_over_own_pairs, mean_over_pairs, squares
from parvi.samplers.nuts import nuts
from parvi.sampling import sample
from parvi.targets.target import Target

MEASURES = ("mean_error", "mmd", "elbo", "kernel_elbo")
NUM_PARTICLES = 200
# Many chains run side by side, which is cheaper than a few long ones.
_NUM_CHAINS = 40
# Number of sets of independent draws that make the yardstick.
_NUM_SETS = 20


class Reference(NamedTuple):
    """The posterior according to NUTS; ``facts`` includes the measures of independent draws.

    ``within`` is the mean of the kernel over all pairs of ``draws``, the same for all particles.
    """

    mean: Float[np.ndarray, " d"]
    draws: Float[np.ndarray, "m d"]
    bandwidth: float
    within: float
    facts: dict[str, float]

    @classmethod
    def of(cls, draws: Float[np.ndarray, "all d"], facts: dict[str, float]) -> "Reference":
        """Use all draws for the mean, and a tenth of them for the MMD and its bandwidth."""
        few = draws[: len(draws) // 10]
        centred = few[:512] - few.mean(axis=0)
        bandwidth = float(np.median(squares(centred, centred)))
        new = cls(draws.mean(axis=0), few, bandwidth, 0.0, facts)
        within = mean_over_own_pairs(new._kernel, few, BLOCK_SIZE, distinct=False)
        return new._replace(within=within)

    def mmd(self, particles: Float[np.ndarray, "n d"]) -> float:
        """The square root of MMD^2 with exp(-|x - y|^2 / bandwidth), over all pairs."""
        own = mean_over_own_pairs(self._kernel, particles, BLOCK_SIZE, distinct=False)
        across = mean_over_pairs(self._kernel, particles, self.draws, BLOCK_SIZE)
        return float(np.sqrt(max(own + self.within - 2 * across, 0.0)))

    def measured(
        self, particles: Float[np.ndarray, "n d"], log_joints: Float[np.ndarray, " n"]
    ) -> dict[str, float]:
        """The panels of the figure for one set of particles."""
        return {
            "mean_error": float(np.linalg.norm(particles.mean(axis=0) - self.mean)),
            "mmd": self.mmd(particles),
            "elbo": gaussian_elbo(particles, log_joints),
            "kernel_elbo": elbo(particles, log_joints),
        }

    def _kernel(self, squared):
        return np.exp(squared / -self.bandwidth)


def gaussian_elbo(
    particles: Float[np.ndarray, "n d"], log_joints: Float[np.ndarray, " n"]
) -> float:
    """E[log p(x, data)] over the particles plus the entropy of the Gaussian fitted to them."""
    covariance = np.atleast_2d(np.cov(particles, rowvar=False))
    log_volume = np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]
    return float(np.mean(log_joints) + 0.5 * log_volume)


def rows_of(name: str) -> tuple[Float[np.ndarray, "rows d"], Float[np.ndarray, " rows"]]:
    """The features and labels of a data set."""
    table = datasets.load(name)
    low, high = table.features.min(axis=0), table.features.max(axis=0)
    scaled = 2 * (table.features - low) / (high - low) - 1
    return np.column_stack([scaled, np.ones(len(scaled))]), table.targets


def log_joint(target: Target) -> Callable:
    """log p(x, data) with the prior's constant, so that the evidence is its integral."""
    assert target.layout is not None
    density, constant = target.full(), 0.5 * target.layout.dim * np.log(2 * np.pi)
    return lambda x: density(x) - constant


@functools.lru_cache(maxsize=2)
def reference(name: str, num_draws: int) -> Reference:
    """The posterior of a data set by NUTS; always the same, so it is made once per process."""
    rows = rows_of(name)
    joint = log_joint(logistic_regression(*rows))
    mode, factor = laplace(signed_features(*rows))
    dim = len(mode)
    whitened = Target(lambda z: joint(mode + factor @ z), like=np.zeros(dim))
    rng = np.random.default_rng(0)
    warm_up = min(500, num_draws // 8)
    sampler = nuts(warm_up, num_draws // _NUM_CHAINS, num_chains=_NUM_CHAINS)
    run = sample(whitened, rng.normal(size=(num_draws, dim)), sampler=sampler)
    order = rng.permutation(num_draws)
    draws = (mode + run.particles @ factor.T)[order]
    with jax.enable_x64(True):
        chains = jnp.asarray(run.particles).reshape(-1, _NUM_CHAINS, dim)
        ess = float(jnp.min(effective_sample_size(chains, chain_axis=1, sample_axis=0)))
        log_joints = np.asarray(jax.jit(jax.vmap(joint))(draws))
    facts = {
        "ess": ess,
        "r_hat": float(run.history["r_hat"][-1]),
        "divergences": int(run.history["divergences"][-1]),
        "seconds": run.timing.seconds,
        "noise": float(np.sqrt(np.sum(draws.var(axis=0)) / ess)),
        "elbo": gaussian_elbo(draws, log_joints),
    }
    truth = Reference.of(draws, facts)
    # The yardstick sets are as large as the particles and disjoint from the draws of the MMD.
    rest = np.arange(len(truth.draws), num_draws)
    sets = [rng.choice(rest, NUM_PARTICLES, replace=False) for _ in range(_NUM_SETS)]
    scores = [truth.measured(draws[chosen], log_joints[chosen]) for chosen in sets]
    facts |= {f"independent_{m}": float(np.mean([s[m] for s in scores])) for m in MEASURES}
    return truth


def laplace(
    signed: Float[np.ndarray, "rows d"],
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """The mode by Newton's method, and L, where L L^T is the inverse Hessian there."""
    weights = np.zeros(signed.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(signed @ weights))
        hessian = (signed * (p * (1 - p))[:, None]).T @ signed + np.eye(len(weights))
        weights = weights + np.linalg.solve(hessian, signed.T @ p - weights)
    return weights, np.linalg.inv(np.linalg.cholesky(hessian)).T
