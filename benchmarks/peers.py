"""The peers, each as its own users run it, on logistic regression with a N(0, 1) prior."""

import importlib.util
import time

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from blackjax.vi.svgd import rbf_kernel, update_median_heuristic

from benchmarks.timing import Timed, timed


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def torch_algorithm_1(target, particles, num_steps: int) -> Timed:
    """Algorithm 1 in plain PyTorch: T' = 5, 32 units, as ``parvi.pfg_algorithm_1`` has them."""
    from benchmarks.torch_algorithm_1 import algorithm_1

    signed = np.asarray(target.log_density.signed)
    algorithm_1(signed, particles, 3)
    return Timed(algorithm_1(signed, particles, num_steps)[1], 0.0)


def blackjax_svgd(target, particles, num_steps: int) -> Timed:
    """Adam, RBF kernel, its own median heuristic."""
    score = jax.grad(target.full())
    algorithm = blackjax.svgd(score, optax.adam(0.1), rbf_kernel, update_median_heuristic)
    state = algorithm.init(jnp.asarray(particles), {"length_scale": 1.0})

    @jax.jit
    def steps(state):
        return jax.lax.fori_loop(0, num_steps, lambda _, s: algorithm.step(s), state)

    return timed(steps, jax.tree_util.tree_map(jnp.asarray, state), repeats=3)


def numpyro_svgd(target, particles, num_steps: int) -> Timed:
    """SVGD with its RBF kernel, delta guides, the rows as an observed Bernoulli."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.contrib.einstein import SVGD, RBFKernel
    from numpyro.optim import Adam

    signed = jnp.asarray(target.log_density.signed)
    num, dim = particles.shape

    def model():
        weights = numpyro.sample("w", dist.Normal(0, 1).expand([dim]).to_event(1))
        numpyro.factor("likelihood", jnp.sum(jax.nn.log_sigmoid(signed @ weights)))

    stein = SVGD(model, Adam(0.1), RBFKernel(), num_stein_particles=num)
    state = stein.init(jax.random.key(0))

    @jax.jit
    def steps(state):
        return jax.lax.fori_loop(0, num_steps, lambda _, s: stein.update(s), state)

    return timed(steps, state, repeats=3)


def numpyro_nuts(target, num_draws: int, seed: int = 0):
    """NumPyro's NUTS, four chains in one program; draws, effective sizes, seconds in all."""
    from numpyro.diagnostics import effective_sample_size
    from numpyro.infer import MCMC, NUTS

    density = target.full()
    dim = target.layout.dim
    began = time.perf_counter()
    kernel = NUTS(potential_fn=lambda x: -density(x))
    mcmc = MCMC(
        kernel,
        num_warmup=500,
        num_samples=num_draws,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), init_params=jnp.zeros((4, dim)))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True))
    seconds = time.perf_counter() - began
    return draws, effective_sample_size(draws), seconds
