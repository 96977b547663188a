"""How good a set of particles is.

Every metric takes NumPy or JAX arrays and computes in float64. Pairs of particles are computed tile
by tile, so no n x n array is formed. Which metrics apply depends on what is known of the target:

- a reference sample: ``energy_distance``, ``worth``, ``mmd``, ``sliced_wasserstein``;
- scores at the particles: ``ksd``, ``ksd_test``, ``learned_stein_discrepancy``, ``stein_ratio``,
  ``stein_ratios``;
- log densities at the particles: ``elbo``;
- moments: ``marginal_variance``, ``gaussian_kl``.
"""

from parvi.results.metrics.bootstrap import MultinomialBootstrap as MultinomialBootstrap
from parvi.results.metrics.bootstrap import WildBootstrap as WildBootstrap
from parvi.results.metrics.energy import energy_distance as energy_distance
from parvi.results.metrics.energy import mean_distance as mean_distance
from parvi.results.metrics.energy import worth as worth
from parvi.results.metrics.evidence import elbo as elbo
from parvi.results.metrics.evidence import scott as scott
from parvi.results.metrics.evidence import silverman as silverman
from parvi.results.metrics.gaussian import gaussian_kl as gaussian_kl
from parvi.results.metrics.kernel_stein import GoodnessOfFit as GoodnessOfFit
from parvi.results.metrics.kernel_stein import ksd as ksd
from parvi.results.metrics.kernel_stein import ksd_test as ksd_test
from parvi.results.metrics.learned_stein import LearnedStein as LearnedStein
from parvi.results.metrics.learned_stein import (
    learned_stein_discrepancy as learned_stein_discrepancy,
)
from parvi.results.metrics.mean_discrepancy import mmd as mmd
from parvi.results.metrics.moments import SteinRatios as SteinRatios
from parvi.results.metrics.moments import marginal_variance as marginal_variance
from parvi.results.metrics.moments import stein_ratio as stein_ratio
from parvi.results.metrics.moments import stein_ratios as stein_ratios
from parvi.results.metrics.sliced import sliced_wasserstein as sliced_wasserstein
