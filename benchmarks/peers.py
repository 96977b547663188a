"""The peers, each as its own users run it, on logistic regression with a N(0, 1) prior."""

import importlib.util

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
        return jax.lax.fori_loop(0, num_steps, lambda _, s: stein.update(s)[0], state)

    return timed(steps, state, repeats=3)


# Each of those below: (target, first points, draws) to a function of no arguments whose first call
# compiles, and which returns chains of draws; one that draws independently returns one chain.
_WARM_UP = 500
_CHAINS = 4
_ADVI_STEPS = 5000


def numpyro_nuts(target, first, num_draws: int):
    """Four chains in one program, 500 steps of adaptation."""
    from numpyro.infer import MCMC, NUTS

    density = target.full()
    mcmc = MCMC(
        NUTS(potential_fn=lambda x: -density(x)),
        num_warmup=_WARM_UP,
        num_samples=num_draws,
        num_chains=_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )

    def run():
        mcmc.run(jax.random.key(0), init_params=jnp.asarray(first[:_CHAINS]))
        return np.asarray(mcmc.get_samples(group_by_chain=True))

    return run


def blackjax_nuts(target, first, num_draws: int):
    """Four chains in one program, 500 steps of window adaptation."""
    density = target.full()
    adaptation = blackjax.window_adaptation(blackjax.nuts, density)

    def chain(key, position):
        key_warm, key_draw = jax.random.split(key)
        (state, parameters), _ = adaptation.run(key_warm, position, num_steps=_WARM_UP)
        kernel = blackjax.nuts(density, **parameters).step

        def one(state, key):
            state, _ = kernel(key, state)
            return state, state.position

        return jax.lax.scan(one, state, jax.random.split(key_draw, num_draws))[1]

    return _chains(chain, first)


def blackjax_mclmc(target, first, num_draws: int):
    """Four chains in one program, L and step size tuned as its own function does."""
    density = target.full()
    kernel = blackjax.mcmc.mclmc.build_kernel()

    def chain(key, position):
        key_init, key_tune, key_draw = jax.random.split(key, 3)
        state = blackjax.mclmc.init(position, density, key_init)
        state, parameters, *_ = blackjax.mclmc_find_L_and_step_size(
            kernel, num_draws, state, key_tune, density
        )

        def one(state, key):
            state, _ = kernel(
                key,
                state,
                density,
                parameters.inverse_mass_matrix,
                parameters.L,
                parameters.step_size,
            )
            return state, state.position

        return jax.lax.scan(one, state, jax.random.split(key_draw, num_draws))[1]

    return _chains(chain, first)


def _chains(chain, first):
    program = jax.jit(jax.vmap(chain))

    def run():
        keys = jax.random.split(jax.random.key(0), _CHAINS)
        return np.asarray(program(keys, jnp.asarray(first[:_CHAINS])))

    return run


def blackjax_pathfinder(target, first, num_draws: int):
    density = target.full()

    @jax.jit
    def draw(key, position):
        state, _ = blackjax.vi.pathfinder.approximate(key, density, position)
        return blackjax.vi.pathfinder.sample(key, state, num_draws)[0]

    return lambda: np.asarray(draw(jax.random.key(0), jnp.asarray(first[0])))[None]


def numpyro_advi(target, first, num_draws: int):
    """``AutoNormal`` by ``SVI``, Adam 1e-2, 5000 steps of one draw."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.optim import Adam

    signed = jnp.asarray(target.log_density.signed)

    def model():
        weights = numpyro.sample("w", dist.Normal(0, 1).expand([signed.shape[1]]).to_event(1))
        numpyro.factor("likelihood", jnp.sum(jax.nn.log_sigmoid(signed @ weights)))

    guide = AutoNormal(model)
    svi = SVI(model, guide, Adam(1e-2), Trace_ELBO())

    def run():
        found = svi.run(jax.random.key(0), _ADVI_STEPS, progress_bar=False)
        key = jax.random.key(1)
        draws = guide.sample_posterior(key, found.params, sample_shape=(num_draws,))
        return np.asarray(draws["w"])[None]

    return run
