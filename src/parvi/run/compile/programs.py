"""The compiled loop: one program per chunk of steps, with no Python inside.

Each step's keys are ``fold_in(key, step)`` and the end of a chunk is data, not a shape. However a
run is cut into chunks, it uses one program and gives the same bits.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from parvi.cloud import Cloud, Place
from parvi.counting import numbers, separated, together
from parvi.evaluation import QUICK, evaluate, quickly
from parvi.interface import AbstractSampler, Info
from parvi.kept import kept, on_forgetting
from parvi.run.compile.policy import CAREFUL, Cost, Plan, planned
from parvi.run.sharding import constrained
from parvi.run.step import Stepped, concluded, step
from parvi.status import Status
from parvi.targets.target import AbstractTarget

# The largest number of steps of one compiled call.
CAPACITY = 128
# The number of stages whose programs are kept.
_KEPT = 64


class Carry(NamedTuple):
    """The state of the loop, which a checkpoint has to hold."""

    step: Int[Array, ""]
    place: Place
    memory: PyTree[Array]
    rule: PyTree[Array]
    status: Int[Array, ""]
    bound: Float[Array, ""]


class Record(NamedTuple):
    """The info of a step, and whether it moved any particle."""

    info: Info
    accepted: Bool[Array, ""]


class Context(NamedTuple):
    """Everything that does not change during a stage."""

    key: Key[Array, ""]
    sampler: AbstractSampler
    target: AbstractTarget
    sharding: NamedSharding | None


def begin(context: Context, number: int, place: Place, first: int, careful: bool = True) -> Carry:
    """The carry before the first step of stage ``number``, which is step ``first`` of the run."""
    remember = _careful_start if careful else _quick_start
    # The particles do not pass through the program, which would copy them.
    memory, rule, bound = remember(*separated(context), np.int32(number), place)
    return _first_carry(first, place, memory, rule, bound)


def _first_carry(first: int, place: Place, memory: Any, rule: Any, bound: Any) -> Carry:
    return Carry(jnp.int32(first), place, memory, rule, jnp.int32(Status.RUNNING), bound)


def _start(static: tuple, arrays: PyTree[Array], number: Int[Array, ""], place: Place):
    key, sampler, target, sharding = together(static, arrays)
    # Steps are folded in by their number, so the start takes the last number.
    key_init, key_target = jax.random.split(jax.random.fold_in(key, jnp.iinfo(jnp.uint32).max))
    cloud = Cloud.of(place, target.at(key_target))
    memory = sampler.init(jax.random.fold_in(key_init, number), cloud)
    particles = place.particles
    # This form allocates no array of the particles' size.
    largest = jnp.maximum(jnp.maximum(jnp.max(particles), -jnp.min(particles)), 1.0)
    return (
        constrained(memory, len(particles), sharding),
        sampler.stopping_rule.init(particles),
        largest / jnp.finfo(particles.dtype).eps,
    )


_quick_start = kept(jax.jit(_start, static_argnums=0, compiler_options=QUICK))
_careful_start = kept(jax.jit(_start, static_argnums=0))


def _cloud_and_key(context: Context, carry: Carry) -> tuple[Cloud, Key[Array, ""]]:
    keys = jax.random.split(jax.random.fold_in(context.key, carry.step))
    return Cloud.of(carry.place, context.target.at(keys[1])), keys[0]


def one_step(context: Context, carry: Carry) -> tuple[Carry, Record]:
    """One step of a stage, not compiled."""
    cloud, key = _cloud_and_key(context, carry)
    return _judged(context, carry, step(key, cloud, carry.memory, context.sampler))


def _judged(context: Context, carry: Carry, stepped: Stepped) -> tuple[Carry, Record]:
    """The new carry, and whether the stage is over."""
    particles, info = stepped.cloud.particles, stepped.info
    # This form allocates no array of the particles' size.
    within = jnp.maximum(jnp.max(particles), -jnp.min(particles)) <= carry.bound
    settled, rule = context.sampler.stopping_rule.update(info, stepped.moved, carry.rule)
    status = jnp.select(
        [info.status != Status.RUNNING, ~within, settled],
        [info.status, Status.DIVERGED, Status.CONVERGED],
        Status.RUNNING,
    )
    place, memory = constrained(
        (stepped.cloud.place, stepped.memory), len(particles), context.sharding
    )
    new = Carry(carry.step + 1, place, memory, rule, status.astype(jnp.int32), carry.bound)
    return new, Record(info, stepped.moved)


def lowered(context: Context, place: Place, plan: Plan | None = None) -> Iterator[Any]:
    """A stage's programs for particles of this shape; once compiled, its run finds them ready."""
    traced = _quick_start.trace(*separated(context), np.int32(0), place)
    yield traced.lower()
    carry = _first_carry(0, place, *traced.out_info)
    yield from Stepper(context, carry, plan).lowered(carry)


def memory_like(context: Context, place: Place) -> PyTree[jax.ShapeDtypeStruct]:
    """The structure of the memory with which a stage begins."""
    return _quick_start.trace(*separated(context), np.int32(0), place).out_info[0]


class Programs:
    """The compiled functions of a stage, each made when it is first needed."""

    def __init__(self, traced: ClosedJaxpr, structure: Any, plan: Plan):
        # The plan suggested by the counted numbers of a step.
        self.plan = plan
        loop = functools.partial(_loop, traced, structure)
        self.careful = jax.jit(loop)
        self.in_place = jax.jit(loop, donate_argnums=0)
        self.quick = jax.jit(loop, compiler_options=QUICK)


def _loop(traced, structure, carry, rest, until):
    """Make steps until number ``until`` or the stage's end, at most ``CAPACITY`` of them.

    Returns the new carry and ``CAPACITY`` records, the first of which are filled.
    """
    treedef = jax.tree_util.tree_structure(carry)

    def one(leaves):
        found = jaxpr_as_fun(traced)(*leaves, *jax.tree_util.tree_leaves(rest))
        return jax.tree_util.tree_unflatten(structure, found)

    shapes = jax.tree_util.tree_unflatten(structure, traced.out_avals)[1]
    records = jax.tree_util.tree_map(lambda s: jnp.zeros((CAPACITY, *s.shape), s.dtype), shapes)

    def proceed(state):
        carry, _, done = state
        carry = jax.tree_util.tree_unflatten(treedef, carry)
        return (carry.status == Status.RUNNING) & (carry.step < until) & (done < CAPACITY)

    def body(state):
        carry, records, done = state
        new, record = one(carry)
        records = jax.tree_util.tree_map(lambda all_, a: all_.at[done].set(a), records, record)
        return jax.tree_util.tree_leaves(new), records, done + 1

    start = (jax.tree_util.tree_leaves(carry), records, jnp.zeros((), jnp.int32))
    carry, records, _ = jax.lax.while_loop(proceed, body, start)
    return jax.tree_util.tree_unflatten(treedef, carry), records


def _one_step(static, carry, arrays):
    return one_step(together(static, arrays), carry)


_traceable = kept(jax.jit(_one_step, static_argnums=0))


@functools.lru_cache(maxsize=_KEPT)
def _programs(traced: ClosedJaxpr, structure: Any, is_fixed: bool, sharded: bool) -> Programs:
    own = numbers(traced.jaxpr, without="asked_density")
    cost = Cost(own, numbers(traced.jaxpr) - own if own < np.inf else np.inf)
    return Programs(traced, structure, CAREFUL if sharded else planned(cost, is_fixed))


on_forgetting(_programs.cache_clear)


class Stepper:
    """The programs of a stage with their arguments."""

    def __init__(self, context: Context, carry: Carry, plan: Plan | None = None):
        self.context = context
        static, self._arrays = separated(context)
        # jit remembers its traces, so a second run traces nothing.
        traced = _traceable.trace(static, carry, self._arrays)
        structure = jax.tree_util.tree_structure(traced.out_info)
        sharded = context.sharding is not None
        self.programs = _programs(traced.jaxpr, structure, context.target.is_fixed, sharded)
        self.plan = self.programs.plan if plan is None else plan

    def advance(self, carry: Carry, until: int, first: int, in_place: bool) -> tuple[Carry, Record]:
        """Make steps of a stage that began with step ``first``, in the program of the plan."""
        change = first + self.plan.quick_steps
        if int(carry.step) < change:
            until = min(until, change)
            if self.plan.apart:
                return self._apart(carry, until)
            program = self.programs.quick
        else:
            program = self.programs.in_place if in_place else self.programs.careful
        return program(carry, self._arrays, np.int32(until))

    def lowered(self, carry: Carry) -> Iterator[Any]:
        """The programs of the first step; only the shapes of the carry are used."""
        if self.plan.quick_steps > 0 and self.plan.apart:
            carry = filled(carry)
            propose = _propose.lower(self.context, carry)
            yield propose
            points, pending = filled(propose.postprocess(propose.lowered.out_info))
            evaluated = not isinstance(points, Cloud)
            if evaluated:
                points = Cloud(points, points, points[:, 0], self.context.target.full())
            yield _conclude.lower(self.context, carry, pending, points, evaluated)
            return
        program = self.programs.quick if self.plan.quick_steps > 0 else self.programs.careful
        yield program.lower(carry, self._arrays, np.int32(0))

    def inspected(self, carry: Carry) -> Any:
        """The careful program before its compilation, for inspection."""
        return self.programs.careful.lower(carry, self._arrays, np.int32(0))

    def _apart(self, carry: Carry, until: int) -> tuple[Carry, Record]:
        """Make steps of three programs; only the log density is compiled with care.

        Calling them one by one costs a millisecond or two of a step that takes fifty or more.
        """
        log_density = self.context.target.full()
        records: list[Record] = []
        while (
            int(carry.status) == Status.RUNNING and carry.step < until and len(records) < CAPACITY
        ):
            points, pending = _propose(self.context, carry)
            evaluated = not isinstance(points, Cloud)
            if evaluated:
                values, scores = evaluate(log_density, points)
                points = Cloud(points, scores, values, log_density)
            carry, record = _conclude(self.context, carry, pending, points, evaluated)
            records.append(record)
        return carry, jax.tree_util.tree_map(lambda *column: np.stack(column), *records)


def filled(shapes: Any) -> Any:
    """Zeros in place of shapes. Through NumPy, as JAX would compile a program for every shape."""

    def zeros(leaf):
        is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
        return jnp.asarray(np.zeros(leaf.shape, leaf.dtype)) if is_shape else leaf

    return jax.tree_util.tree_map(zeros, shapes)


@quickly
def _propose(context, carry):
    cloud, key = _cloud_and_key(context, carry)
    return context.sampler.propose(key, cloud, carry.memory)


@quickly
def _conclude(context, carry, pending, there, evaluated):
    cloud, _ = _cloud_and_key(context, carry)
    stepped = concluded(cloud, pending, there, context.sampler, evaluated)
    return _judged(context, carry, stepped)
