"""``sample`` runs compiled chunks of steps and does everything but arithmetic between them."""

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from parvi.evaluation import quickly
from parvi.geometry.frame import tells_covariance
from parvi.interface import AbstractSampler, reported
from parvi.results.result import Result, Settings, Timing
from parvi.run.compile.ahead import Ahead
from parvi.run.compile.programs import CAPACITY
from parvi.run.initial import as_key, as_target, dtype_of, flat_particles, initial_values
from parvi.run.interrupts import noted_interrupts
from parvi.run.progress import Bar
from parvi.run.rows import with_rows
from parvi.run.run import Run
from parvi.run.sharding import particle_sharding, spread
from parvi.run.threads import single_blas_thread
from parvi.samplers.balance import Balanced
from parvi.samplers.default import pfg
from parvi.samplers.explore import Explored
from parvi.samplers.path import Passes
from parvi.samplers.sequence import Sequence
from parvi.status import NotAtRestWarning, SamplingError, SamplingInterrupted, Status
from parvi.targets.precision import precision
from parvi.targets.target import AbstractTarget

# A compiled call should be short enough for the bar and for Ctrl-C, and long enough that dispatch
# costs nothing.
_SECONDS_PER_CHUNK = 0.25


def sample(
    log_density: Callable | AbstractTarget,
    init: PyTree | Callable | None = None,
    key: Any = 0,
    num_particles: int | None = None,
    sampler: AbstractSampler | Sequence | None = None,
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
        Function from one particle (an array or any pytree) to a scalar, or a ``Target``.
    init
        The first particles: an ``(n, d)`` array, a pytree of arrays with leading axis n, or a
        function ``init(key, n)``. If the target knows its shape, None draws them from N(0, I),
        unconstrained. Their dtype is that of the run: a NumPy float64 array runs in float64
        whatever JAX's flag says.
    key
        An int or a JAX key. The same key gives the same bits.
    num_particles
        Number of particles if ``init`` is a function or None. The default is 512.
    sampler
        The sampler. The default is ``parvi.pfg()``.
    num_steps
        Maximum number of steps. The run ends earlier if the sampler is done. None means the
        sampler's own limit.
    progress
        Whether to show a bar on standard error. None shows it if standard error is a terminal.
    checkpoint
        Reserved for later; anything but None is refused.
    mesh
        A ``jax.sharding.Mesh``. Particles are spread over its first axis, and the rows of a
        ``MiniBatch``'s data over its second, if it has one. On several machines every process
        calls ``sample`` with the same arguments and gets all particles (docs/scaling.md).
    throw
        Whether a failed run raises ``SamplingError`` and an interrupted run
        ``SamplingInterrupted``, a ``KeyboardInterrupt``, both with the result in them. If False,
        the result is returned with its status.

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
    if not isinstance(sampler, (AbstractSampler, Sequence)):
        raise ValueError(
            f"sampler must be a sampler such as parvi.pfg(), got {sampler!r}; note the brackets."
        )
    target = as_target(log_density)
    key_init, key_check, key_run = _three(as_key(key))
    values = initial_values(key_init, init, num_particles, target)
    dtype = dtype_of(values)

    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(single_blas_thread())
        stack.enter_context(precision(dtype))
        target, particles = flat_particles(key_init, values, num_particles, target, dtype)
        num, dim = particles.shape
        target = with_rows(target, sampler, (num, dim), dtype)
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(values)):
            # Many particles are moved in place, which must not change the caller's array.
            particles = jnp.array(particles, copy=True)
        place, num_moved = target.admit(particles, key_check)
        del particles
        sharding = particle_sharding(mesh, len(place.particles))
        limit = sampler.max_steps if num_steps is None else int(num_steps)
        bar = stack.enter_context(Bar(limit, progress))
        # The list gives up its reference, so that a million particles are not kept twice.
        handed = [place]
        del place
        with noted_interrupts() as interrupts:
            # A run with a limit of its own may not get as far as the next stage.
            looks_ahead = num_steps is None and sharding is None
            ahead = stack.enter_context(Ahead()) if looks_ahead else None
            run = _begun(target, sampler, key_run, handed, sharding, ahead)
            interrupted = _driven(run, limit, bar, interrupts)
        interrupted |= interrupts.came
        seconds = time.perf_counter() - began
        settings = Settings(init, key, num_particles, sampler, num_steps)
        return _finish(run, settings, seconds, num_moved, interrupted, throw)


@quickly
def _three(key):
    """Split and unpack in one program; separately they are two."""
    return tuple(jax.random.split(key, 3))


def _begun(target, sampler, key, handed, sharding, ahead) -> Run:
    place = handed.pop()
    if sharding is not None:
        place = jax.tree_util.tree_map(lambda leaf: spread(leaf, sharding), place)
    return Run(target, sampler, key, place, sharding, ahead=ahead)


def _driven(run: Run, limit: int, bar: Bar, interrupts) -> bool:
    """Advance to the limit or the end, in chunks of about a quarter of a second."""
    chunk, compiled = 1, run.compile_seconds
    try:
        while not run.is_done and run.num_steps < limit:
            if interrupts.came:
                return True
            before, done = time.perf_counter(), run.num_steps
            run.advance(min(chunk, limit - done))
            seconds = time.perf_counter() - before
            steps = run.num_steps - done
            bar.update(run.num_steps, run.stage.name, run.kl_rate, steps / seconds)
            if run.compile_seconds == compiled:
                chunk = int(np.clip(steps / seconds * _SECONDS_PER_CHUNK, 1, CAPACITY))
            else:
                chunk, compiled = 1, run.compile_seconds
    except KeyboardInterrupt:
        if run.particles.is_deleted():
            # A second Ctrl-C came while large arrays were moved in place: nothing is left.
            raise
        return True
    return False


def _finish(run: Run, settings, seconds, num_moved, interrupted, throw) -> Result:
    status = run.status
    if interrupted:
        status = Status.INTERRUPTED
    elif status == Status.RUNNING:
        status = Status.MAX_STEPS
    result = Result.build(
        target=run.target,
        flat=run.gathered(),
        status=status,
        history=run.history,
        settings=settings,
        timing=Timing(seconds, run.compile_seconds),
        num_moved=num_moved,
        passes=reported(run.reports, Passes),
        balanced=reported(run.reports, Balanced),
    )
    if status == Status.NOT_AT_REST:
        warnings.warn(_unrest(run, result), NotAtRestWarning, stacklevel=3)
    if status == Status.NOISY:
        warnings.warn(_noise(run, result), NotAtRestWarning, stacklevel=3)
    if throw and interrupted:
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


def _unrest(run: Run, result: Result) -> str:
    """What is not at rest, and what to try."""
    assert run.target.layout is not None
    names = run.target.layout.flat_names()
    report, most = run.reports[run.stage.name], ""
    # A stage of the user's own, or a scout, need not report changes.
    if isinstance(report, Explored):
        changes = np.asarray(report.changes)
        rows = np.argsort(-changes)[:5]
        worst = ", ".join(f"{names[i]} ({float(changes[i]):.1f})" for i in rows)
        most = f"The largest changes of a mean or variance, in standard errors, are: {worst}. "
    return (
        f"{Status.NOT_AT_REST.name}: {Status.NOT_AT_REST.message} It ended after "
        f"{result.num_steps} steps. {most}Do not take these particles for a sample. Try more "
        "particles, a start closer to the target, or another parametrisation (non-centred, or on "
        "another scale); result.check() says more."
    )


def _noise(run: Run, result: Result) -> str:
    """Why the particles were not tested, and what to try."""
    if run.rounds is not None:
        why = run.rounds.words()
    else:
        num, dim = run.particles.shape
        few = f"{num} particles are too few to correct mini-batches in {dim} dimensions"
        why = (
            f"All {run.target.num_rows} rows of data are too many to see at every step, and "
            f"{'mini-batches are not corrected on a mesh' if tells_covariance((num, dim)) else few}"
            ". Judge the particles by their predictions on rows that were held out."
        )
    return (
        f"{Status.NOISY.name}: {Status.NOISY.message} It ended after {result.num_steps} steps. "
        f"{why}"
    )
