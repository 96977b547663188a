"""``sample``: the loop over chunks, between which everything that is not arithmetic happens."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from parvi.interface import AbstractSampler, Info
from parvi.results.result import Result, Timing
from parvi.run.advance import IN_PLACE, OPTIMISED, QUICK, Run, onward, start_in_place
from parvi.run.effort import Effort, wanted
from parvi.run.initial import as_key, as_target, dtype_of, flat_particles, initial_values
from parvi.run.interrupts import noted_interrupts
from parvi.run.parts import IN_PARTS
from parvi.run.progress import Bar
from parvi.run.sharding import gathered, particle_sharding, replicate, spread, spread_target
from parvi.run.threads import single_blas_thread
from parvi.samplers.ready import pfg
from parvi.status import SamplingError, SamplingInterrupted, Status
from parvi.targets.precision import precision
from parvi.targets.target import AbstractTarget

# Steps of one compiled call at the most, and how long one should take: often enough for the bar
# and for Ctrl-C, seldom enough that dispatch costs nothing.
_CAPACITY = 128
_SECONDS_PER_CHUNK = 0.25
# Particles of so many bytes (32 MB: about where the default begins to stream them) are moved in
# place, without a second array to fall back on.
_LARGE = 1 << 25


def sample(
    log_density: Callable | AbstractTarget,
    init: PyTree | Callable | None = None,
    key: Any = 0,
    num_particles: int | None = None,
    sampler: AbstractSampler | None = None,
    num_steps: int | None = None,
    progress: bool | None = None,
    checkpoint: Any = None,
    mesh: Any = None,
    throw: bool = True,
) -> Result:
    """Move particles until they are a sample of a density known up to a constant.

    Parameters
    ----------
    log_density
        Of one particle (an array or any pytree) to a scalar; or a ``Target``.
    init
        The first particles: an ``(n, d)`` array, a pytree of arrays with leading axis n, or
        ``init(key, n)``. None where the target knows its shape: N(0, I), unconstrained. Its dtype
        is the run's: a NumPy float64 array runs in float64 whatever JAX's flag says.
    key
        An int or a JAX key. The same key gives the same bits.
    num_particles
        Where ``init`` is a function or None; 512 unless given.
    sampler
        ``parvi.pfg()`` unless given.
    num_steps
        Exactly so many. None: until the sampler's stopping rule says so.
    progress
        A bar on standard error. None: where that is a terminal.
    checkpoint
        Reserved; not there yet, and refused.
    mesh
        A ``jax.sharding.Mesh``: particles are spread over its first axis, rows of a
        ``MiniBatch``'s data over its second, if it has one. On several machines every process
        calls ``sample`` with the same arguments and gets all particles (docs/scaling.md).
    throw
        Whether a failed run raises ``SamplingError`` (with the result in it) or comes back with
        its status. An interrupted run raises ``SamplingInterrupted``, a ``KeyboardInterrupt``.

    Returns
    -------
    Result
        The particles, how the run ended and its history.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, parvi
    >>> start = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = parvi.sample(lambda x: -0.5 * jnp.sum(x**2 / jnp.array([1.0, 4.0, 9.0])), start)
    >>> bool(np.allclose(result.particles.std(axis=0), [1, 2, 3], rtol=1e-2))
    True
    """
    if checkpoint is not None:
        raise ValueError(
            f"checkpoint= is reserved and does nothing yet: got {checkpoint!r}, expected None; "
            "leave it out."
        )
    if num_steps is not None and (not isinstance(num_steps, (int, np.integer)) or num_steps < 0):
        raise ValueError(f"num_steps must be None or an int of at least 0, got {num_steps!r}.")
    sampler = pfg() if sampler is None else sampler
    if not isinstance(sampler, AbstractSampler):
        raise ValueError(
            f"sampler must be a sampler such as parvi.pfg(), got {sampler!r}; note the brackets."
        )
    target = as_target(log_density)
    key_init, key_check, key_run = _three(as_key(key))
    values = initial_values(key_init, init, num_particles, target)
    dtype = dtype_of(values)
    lent = any(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(values))

    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(single_blas_thread())
        stack.enter_context(precision(dtype))
        target, particles = flat_particles(key_init, values, num_particles, target, dtype)
        particles, num_moved = target.admit(particles, key_check)
        sharding = particle_sharding(mesh, len(particles))
        if sharding is not None:
            particles = spread(particles, sharding)
        limit = sampler.max_steps if num_steps is None else int(num_steps)
        bar = stack.enter_context(Bar(limit, progress))
        stops = np.bool_(num_steps is None)
        # Handed over, not lent: a million particles need not be kept twice.
        handed = [particles]
        del particles
        with noted_interrupts() as interrupts:
            outcome = _drive(
                key_run, handed, lent, sampler, target, limit, stops, bar, sharding, interrupts
            )
        outcome.interrupted |= interrupts.came
        seconds = time.perf_counter() - began
        flat = gathered(outcome.run.state.particles, sharding)
        return _finish(outcome, flat, sampler, target, key, seconds, num_moved, throw)


@jax.jit
def _three(key):
    """One program: to split and to unpack by themselves are two."""
    return tuple(jax.random.split(key, 3))


class _Outcome:
    """What the loop leaves behind, also where it was interrupted."""

    def __init__(self, run: Run):
        self.run = run
        self.infos: list[Info] = []
        self.interrupted = False
        self.compile_seconds = 0.0


def _drive(key, handed, lent, sampler, target, limit, stops, bar, sharding, interrupts) -> _Outcome:
    particles = handed.pop()
    like = jax.ShapeDtypeStruct(particles.shape, particles.dtype)
    rule = sampler.stopping_rule
    # Once: data in NumPy's arrays would be copied at every call of ``advance``.
    if sharding is None:
        target = jax.tree_util.tree_map(_on_device, target)
    else:
        target = spread_target(target, sharding.mesh)
        key, sampler, rule = replicate((key, sampler, rule), sharding.mesh)
    before = time.perf_counter()
    programs = _programs(sampler, like, target, sharding)
    begin = start_in_place if programs is IN_PLACE and not lent else programs.start
    run = begin(key, particles, sampler, target, rule, sharding)
    del particles
    outcome = _Outcome(jax.block_until_ready(run))
    outcome.compile_seconds = time.perf_counter() - before
    done, chunk, compiles = 0, 1, True
    try:
        while done < limit and int(outcome.run.status) in (Status.RUNNING, Status.PAUSED):
            if interrupts.came:
                break
            if int(outcome.run.status) == Status.PAUSED:
                sampler, outcome.run = onward(outcome.run, sampler, sharding)
                programs = _programs(sampler, like, target, sharding)
                chunk, compiles = 1, True
            # As arrays: a Python number would be part of the compiled program.
            until = np.int32(min(done + chunk, limit))
            before = time.perf_counter()
            arguments = key, outcome.run, sampler, target, rule, until, stops, _CAPACITY, sharding
            run, infos = jax.block_until_ready(programs.advance(*arguments))
            seconds = time.perf_counter() - before
            outcome.run, steps = run, int(run.state.step) - done
            outcome.infos.append(_first(infos, steps))
            if steps > 0:
                kl_rate = float(outcome.infos[-1].kl_rate[-1])
                bar.update(done + steps, kl_rate, steps / seconds)
            if compiles:
                # The first call of a stage compiles: its seconds say nothing of a step's.
                outcome.compile_seconds += seconds
            else:
                chunk = int(np.clip(steps / seconds * _SECONDS_PER_CHUNK, 1, _CAPACITY))
            done, compiles = done + steps, False
    except KeyboardInterrupt:
        if outcome.run.state.particles.is_deleted():
            # A second Ctrl-C, while large arrays were moved in place: asked for and given up.
            raise
        outcome.interrupted = True
    return outcome


def _programs(sampler, like, target, sharding):
    if like.size * like.dtype.itemsize >= _LARGE:
        return IN_PLACE
    if sharding is not None:
        return OPTIMISED
    chosen = wanted(sampler, target, like)
    return {Effort.QUICK: QUICK, Effort.QUICK_AROUND: IN_PARTS, Effort.FULL: OPTIMISED}[chosen]


def _on_device(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _first(infos: Info, steps: int) -> Info:
    return jax.tree_util.tree_map(lambda column: np.asarray(column)[:steps], infos)


def _finish(outcome, flat, sampler, target, key, seconds, num_moved, throw) -> Result:
    run = outcome.run
    status = Status(int(run.status))
    if outcome.interrupted:
        status = Status.INTERRUPTED
    elif status == Status.RUNNING:
        status = Status.CONVERGED if bool(run.settled) else Status.MAX_STEPS
    result = Result.build(
        target=target,
        flat=flat,
        status=status,
        infos=outcome.infos,
        sampler=sampler,
        key=key,
        timing=Timing(seconds, outcome.compile_seconds),
        num_moved=num_moved,
    )
    if throw and outcome.interrupted:
        raise SamplingInterrupted(
            f"{status.message} The particles after {result.num_steps} steps are in the .result of "
            "this exception.",
            result,
        )
    if throw and status.failed:
        raise SamplingError(
            f"{status.name}: {status.message} It happened at step {result.num_steps}; the last "
            "good particles and the history are in the .result of this exception. Try a shorter "
            "step or the default sampler, start closer to the target, or look at the log density "
            "there; throw=False returns the result instead of raising.",
            result,
        )
    return result
