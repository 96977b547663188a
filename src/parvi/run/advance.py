"""The compiled loop: one jitted loop per chunk, no Python inside.

Each step's keys are ``fold_in(key, step)`` and the end of a chunk is data, not shape: however a
run is cut into chunks, it is one program and gives the same bits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from parvi.evaluation import quickly
from parvi.interface import AbstractSampler, AbstractStoppingRule, Info, State
from parvi.run.sharding import constrained
from parvi.status import Status
from parvi.targets.target import AbstractTarget


class Run(NamedTuple):
    """The carry of the loop: what a checkpoint has to hold."""

    state: State
    status: Int[Array, ""]
    rule: PyTree[Array]
    settled: Bool[Array, ""]
    bound: Float[Array, ""]


def _start(
    key: Key[Array, ""],
    particles: Float[Array, "n d"],
    sampler: AbstractSampler,
    target: AbstractTarget,
    rule: AbstractStoppingRule,
    sharding: NamedSharding | None = None,
) -> Run:
    """The carry before the first step."""
    key_sampler, key_target = first_keys(key)
    state = sampler.init(key_sampler, particles, target.at(key_target))
    return begun(constrained(state, len(particles), sharding), rule)


def first_keys(key: Key[Array, ""]) -> Key[Array, "2"]:
    """For the start of the sampler and for its target."""
    # The first step is 0 and every stream is folded by its number: the start takes the last.
    return jax.random.split(jax.random.fold_in(key, jnp.iinfo(jnp.uint32).max))


def begun(state: State, rule: AbstractStoppingRule) -> Run:
    """The carry with which a sampler's first state begins."""
    particles = state.particles
    largest = jnp.maximum(jnp.max(jnp.abs(particles)), 1.0)
    return Run(
        state,
        jnp.asarray(Status.RUNNING, jnp.int32),
        rule.init(particles),
        jnp.zeros((), bool),
        largest / jnp.finfo(particles.dtype).eps,
    )


def _advance(
    key: Key[Array, ""],
    run: Run,
    sampler: AbstractSampler,
    target: AbstractTarget,
    rule: AbstractStoppingRule,
    until: Int[Array, ""] | np.int32,
    stops: Bool[Array, ""] | np.bool_,
    capacity: int,
    sharding: NamedSharding | None = None,
) -> tuple[Run, Info]:
    """Step until number ``until``, the stopping rule or a failure; at most ``capacity`` steps.

    Returns the new carry and ``capacity`` infos, of which the first ones (as many as steps were
    done) are filled. ``stops`` says whether the stopping rule may end the run.
    """

    def one(state: State) -> tuple[State, Info]:
        key_sampler, key_target = step_keys(key, state)
        return sampler.step(key_sampler, state, target.at(key_target))

    # Traced once, for the shapes and for the loop.
    traced, shapes = jax.make_jaxpr(one, return_shape=True)(run.state)
    structure = jax.tree_util.tree_structure(shapes)
    infos = jax.tree_util.tree_map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes[1])

    def proceed(carry: tuple[Run, Any, Any]):
        run, _, done = carry
        return (run.status == Status.RUNNING) & (run.state.step < until) & (done < capacity)

    def body(carry):
        run, infos, done = carry
        found = jaxpr_as_fun(traced)(*jax.tree_util.tree_leaves(run.state))
        state, info = jax.tree_util.tree_unflatten(structure, found)
        run = judged(run, state, info, sampler, rule, stops)
        run = run._replace(state=constrained(run.state, len(run.state.particles), sharding))
        infos = jax.tree_util.tree_map(lambda all_, new: all_.at[done].set(new), infos, info)
        return run, infos, done + 1

    run, infos, _ = jax.lax.while_loop(proceed, body, (run, infos, jnp.zeros((), jnp.int32)))
    return run, infos


class Programs(NamedTuple):
    """The two compiled functions, by how hard the compiler tries."""

    start: Callable[..., Run]
    advance: Callable[..., tuple[Run, Info]]


start = eqx.filter_jit(_start)
advance = eqx.filter_jit(_advance)
OPTIMISED = Programs(start, advance)
# Equinox hands further settings on to jax.jit; its types do not say so.
_jit: Any = eqx.filter_jit
QUICK = Programs(quickly(_start), quickly(_advance))


# Equinox donates all arrays of all arguments but the first.
@_jit(donate="all-except-first")
def _advance_in_place(rest, run):
    key, sampler, target, rule, until, stops, capacity, sharding = rest
    return _advance(key, run, sampler, target, rule, until, stops, capacity, sharding)


@_jit(donate="all-except-first")
def _start_in_place_of(rest, particles):
    key, sampler, target, rule, sharding = rest
    return _start(key, particles, sampler, target, rule, sharding)


def start_in_place(key, particles, sampler, target, rule, sharding=None) -> Run:
    """``start``, which the particles are given away to: not for arrays of the user's."""
    return _start_in_place_of((key, sampler, target, rule, sharding), particles)


def _in_place(key, run, sampler, target, rule, until, stops, capacity, sharding=None):
    rest = key, sampler, target, rule, until, stops, capacity, sharding
    return _advance_in_place(rest, run)


# For so many particles that an array less counts: the carry is given away, and is gone after it.
IN_PLACE = Programs(start, _in_place)


@eqx.filter_jit
def onward(
    run: Run, sampler: AbstractSampler, sharding: NamedSharding | None = None
) -> tuple[AbstractSampler, Run]:
    """The sampler's next stage, and the carry with which it goes on."""
    sampler, state = sampler.onward(run.state)
    state = constrained(state, len(state.particles), sharding)
    return sampler, run._replace(state=state, status=jnp.full_like(run.status, Status.RUNNING))


def step_keys(key: Key[Array, ""], state: State) -> Key[Array, "2"]:
    """The next step's, for the sampler and for the target."""
    return jax.random.split(jax.random.fold_in(key, state.step))


def judged(
    run: Run,
    state: State,
    info: Info,
    sampler: AbstractSampler,
    rule: AbstractStoppingRule,
    stops: Bool[Array, ""] | np.bool_,
) -> Run:
    """The new carry: the old particles where the new ones are not finite, and the status."""
    # In this form nothing of the particles' size is made; NaN and infinity come through.
    largest = jnp.maximum(jnp.max(state.particles), -jnp.min(state.particles))
    finite = jnp.isfinite(largest)
    within = largest <= run.bound
    settled, memory = rule.update(info, run.rule)
    # A step that paused is no step.
    paused = info.status == Status.PAUSED
    settled = settled & ~paused
    memory = jax.tree_util.tree_map(lambda new, old: jnp.where(paused, old, new), memory, run.rule)
    status = jnp.select(
        [~finite, info.status != Status.RUNNING, ~within, settled & stops],
        [Status.NONFINITE, info.status, Status.DIVERGED, Status.CONVERGED],
        Status.RUNNING,
    )
    # The step is counted also where its particles are thrown away: it is in the history. What the
    # sampler remembers of it is of no use after it, and not worth a copy at every step.
    if not sampler.keeps_finite(state.particles):
        old = run.state.particles
        state = state._replace(particles=jnp.where(finite, state.particles, old))
    return Run(state, status.astype(jnp.int32), memory, settled, run.bound)
