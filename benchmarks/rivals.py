"""NUTS, pathfinder and mean-field VI on any log density, with their gradients counted.

Each is ``(density, start) -> run``, and ``run(seed)`` gives an ``Outcome``. The first call
compiles, so a second one shows what a run takes without compilation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

_CHAINS, _WARM_UP, _DRAWS = 4, 1000, 1000
_MEAN_FIELD_STEPS, _MEAN_FIELD_DRAWS = 5000, 16


class Outcome(NamedTuple):
    """What a method leaves: flat unconstrained particles, gradient evaluations, facts."""

    particles: Float[np.ndarray, "n d"]
    gradients: int | None
    facts: dict


Ready = Callable[[int], Outcome]


def chains(log_density: Callable, num_samples: int) -> Any:
    """NumPyro's NUTS: four vectorised chains, with a warm-up of 1000."""
    import numpyro.infer as infer

    return infer.MCMC(
        infer.NUTS(potential_fn=lambda x: -log_density(x)),
        num_warmup=_WARM_UP,
        num_samples=num_samples,
        num_chains=_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )


def numpyro_nuts(density: Callable, start) -> Ready:
    """Four chains of 1000 + 1000, thinned to as many draws as particles."""
    mcmc, first = chains(density, _DRAWS), jnp.asarray(start[:_CHAINS])

    def run(seed):
        mcmc.warmup(
            jax.random.key(seed),
            init_params=first,
            collect_warmup=True,
            extra_fields=("num_steps",),
        )
        gradients = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
        mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",))
        gradients += int(np.sum(mcmc.get_extra_fields()["num_steps"]))
        return _thinned(np.asarray(mcmc.get_samples()), len(start), gradients)

    return run


def blackjax_nuts(density: Callable, start) -> Ready:
    """Four chains of 1000 + 1000 with window adaptation, thinned as above."""

    def counted(state, info, adaptation):
        return info.num_integration_steps

    adaptation = blackjax.window_adaptation(blackjax.nuts, density, adaptation_info_fn=counted)

    def chain(key, position):
        key_warm, key_draw = jax.random.split(key)
        (state, parameters), before = adaptation.run(key_warm, position, num_steps=_WARM_UP)
        kernel = blackjax.nuts(density, **parameters).step

        def one(state, key):
            state, info = kernel(key, state)
            return state, (state.position, info.num_integration_steps)

        draws, after = jax.lax.scan(one, state, jax.random.split(key_draw, _DRAWS))[1]
        return draws, jnp.sum(before) + jnp.sum(after)

    program = jax.jit(jax.vmap(chain))

    def run(seed):
        keys = jax.random.split(jax.random.key(seed), _CHAINS)
        draws, counts = program(keys, jnp.asarray(start[:_CHAINS]))
        draws = np.asarray(draws).reshape(-1, draws.shape[-1])
        return _thinned(draws, len(start), int(np.sum(counts)))

    return run


def _thinned(draws, num: int, gradients: int) -> Outcome:
    some = draws[np.linspace(0, len(draws) - 1, num).astype(int)]
    return Outcome(some, gradients, {"all": draws})


def pathfinder(density: Callable, start) -> Ready:
    """blackjax's, with as many draws as particles."""
    num = len(start)

    @jax.jit
    def program(key, position):
        state, _ = blackjax.vi.pathfinder.approximate(key, density, position)
        return blackjax.vi.pathfinder.sample(key, state, num)[0]

    def run(seed):
        draws = program(jax.random.key(seed), jnp.asarray(start[0]))
        # Its optimiser does not count its evaluations.
        return Outcome(np.asarray(draws), None, {})

    return run


def mean_field(density: Callable, start) -> Ready:
    """blackjax's mean-field VI with Adam 1e-2."""
    algorithm = blackjax.meanfield_vi(density, optax.adam(1e-2), _MEAN_FIELD_DRAWS)

    @jax.jit
    def program(key, state):
        def one(state, key):
            return algorithm.step(key, state)[0], None

        return jax.lax.scan(one, state, jax.random.split(key, _MEAN_FIELD_STEPS))[0]

    def run(seed):
        key = jax.random.key(seed)
        state = program(key, algorithm.init(jnp.asarray(start[0])))
        draws = algorithm.sample(key, state, len(start))
        return Outcome(np.asarray(draws), _MEAN_FIELD_STEPS * _MEAN_FIELD_DRAWS, {})

    return run
