"""``sample`` runs compiled chunks of steps and does everything but arithmetic between them."""

import contextlib
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from parvi.cloud import Place
from parvi.evaluation import evaluate
from parvi.interface import AbstractSampler, reported
from parvi.kept import note
from parvi.results.endings import judged, with_transport
from parvi.results.result import Result, Settings, Timing
from parvi.results.sought import Sought
from parvi.results.storage import rebuilt, structure_of
from parvi.run.checkpoint import Checkpoint, found, identity_of, is_writable, named
from parvi.run.compile.ahead import Ahead
from parvi.run.compile.programs import CAPACITY
from parvi.run.initial import as_key, as_target, dtype_of, initial_values
from parvi.run.interrupts import noted_interrupts
from parvi.run.progress import Bar
from parvi.run.rows import with_rows
from parvi.run.run import Run
from parvi.run.sharding import particle_sharding, spread
from parvi.run.start import keys_of, started
from parvi.run.surroundings import check_surroundings, plain_settings, surrounded
from parvi.run.view import rows_told
from parvi.samplers.balance import Balanced
from parvi.samplers.default import pfg
from parvi.samplers.exploration import Changed, Explored
from parvi.samplers.path import Passes
from parvi.samplers.scout import Sighted
from parvi.samplers.sequence import Sequence
from parvi.status import Status
from parvi.targets.target import AbstractTarget

# A compiled call should be short enough for the bar and for Ctrl-C, and long enough that dispatch
# costs nothing.
_SECONDS_PER_CHUNK = 0.25


def sample(
    log_density: Any,
    init: PyTree | Callable | None = None,
    key: Any = 0,
    num_particles: int | None = None,
    sampler: AbstractSampler | Sequence | None = None,
    num_steps: int | None = None,
    progress: bool | None = None,
    checkpoint: Any = None,
    mesh: Any = None,
    throw: bool = True,
    transport: bool = False,
) -> Result:
    """Move particles until they are a sample of a density known up to a constant.

    Parameters
    ----------
    log_density
        Function from one particle (an array or any pytree) to a scalar, a ``Target``, or a model
        of PyMC, Bambi, Stan (``bridgestan.StanModel``), TensorFlow Probability or, if it takes no
        arguments, NumPyro (docs/models.md).
    init
        The first particles: an ``(n, d)`` array, a pytree of arrays with leading axis n, or a
        function ``init(key, n)``. If the target knows its shape, None draws them from N(0, I) on
        the unconstrained scale; for a model of another library it draws them as that library does.
        The run has their dtype: a NumPy float64 array runs in float64 whatever JAX's flag says.
    key
        An int or a JAX key. The same key gives the same bits on the same machine
        (docs/reliability.md).
    num_particles
        Number of particles if ``init`` is a function or None. The default is 512.
    sampler
        The sampler. The default is ``parvi.pfg()``.
    num_steps
        Maximum number of steps. The run ends earlier if the sampler is done. None means the
        sampler's own limit.
    progress
        Whether to show stage, gradients, KL rate and time on standard error, and the time left
        where the number of steps is known. None shows them if standard error is a terminal.
    checkpoint
        A folder. The run is saved there every ten seconds or so, and the same call resumes from
        it, bit for bit as if it had never been interrupted; another run's folder is refused.
        SIGTERM and SIGHUP then save and end the process. A finished run is found there too.
    mesh
        A ``jax.sharding.Mesh``. Particles are spread over its first axis, and the rows of a
        ``MiniBatch``'s data over its second, if it has one. On several machines every process
        calls ``sample`` with the same arguments and gets all particles (docs/scaling.md).
    throw
        Whether a failed run raises ``SamplingError``, with the result in it. If False, the result
        is returned with its status. An interrupted run always raises ``SamplingInterrupted``, a
        ``KeyboardInterrupt`` with the result in it.
    transport
        Whether ``result.transport``, a map with a density, is made with the run. Its weighted
        draws then count for the status: if they contradict the particles, the run is
        ``NOT_AT_REST``.

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
        is_writable(checkpoint)
    if num_steps is not None and (not isinstance(num_steps, (int, np.integer)) or num_steps < 0):
        raise ValueError(f"num_steps must be None or an int of at least 0, got {num_steps!r}.")
    if num_particles is not None and (
        isinstance(num_particles, bool) or not isinstance(num_particles, (int, np.integer))
    ):
        raise ValueError(f"num_particles must be None or an int, got {num_particles!r}.")
    sampler = _default() if sampler is None else sampler
    if not isinstance(sampler, (AbstractSampler, Sequence)):
        raise ValueError(
            f"sampler must be a sampler such as parvi.pfg(), got {sampler!r}; note the brackets."
        )
    check_surroundings()
    target = as_target(log_density)
    note(target)
    with plain_settings():
        keys = keys_of(as_key(key))
    values = initial_values(keys.init, init, num_particles, target)
    dtype = dtype_of(values, target)

    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(surrounded(dtype))
        interrupts = stack.enter_context(noted_interrupts(endings=checkpoint is not None))
        target, place, num_moved = started(
            target, values, num_particles, sampler, dtype, keys, stack
        )
        sharding = particle_sharding(mesh, len(place.particles))
        limit = sampler.max_steps if num_steps is None else int(num_steps)
        bar = stack.enter_context(Bar(None, progress))
        kept = saved = None
        if checkpoint is not None:
            call = _call(target, dtype, keys.steps, num_steps, num_moved, place)
            identity = identity_of(place, sampler, keys.steps, num_steps, mesh)
            kept = Checkpoint(checkpoint, identity, call)
            saved = kept.read()
        # The list gives up its reference, so that a million particles are not kept twice.
        handed = [place]
        del place
        # A run with a limit of its own may not get as far as the next stage.
        looks_ahead = num_steps is None and sharding is None and saved is None
        ahead = stack.enter_context(Ahead()) if looks_ahead else None
        run = _begun(target, sampler, keys.steps, handed, sharding, ahead)
        if saved is not None:
            run.restore(saved)
        settings = Settings(init, key, num_particles, sampler, num_steps)
        ended = _ended(run, limit, bar, interrupts, kept, began, settings, num_moved)
    result = judged(run, *ended, throw)
    return with_transport(result) if transport and not result.status.failed else result


def resume(
    folder: Any,
    log_density: Callable | AbstractTarget,
    sampler: AbstractSampler | Sequence | None = None,
    progress: bool | None = None,
    throw: bool = True,
) -> Result:
    """Resume a run from its checkpoint alone, without its first particles.

    The particles are those of the run that wrote the checkpoint, bit for bit. (``parvi.sample``
    with the same arguments and the same ``checkpoint`` resumes too, and checks that the arguments
    are the same.)

    Parameters
    ----------
    folder
        The folder that ``checkpoint`` named.
    log_density
        The log density or target of the run; a file cannot hold it.
    sampler
        The sampler of the run, if that was not the default.
    progress, throw
        As in ``parvi.sample``.
    """
    check_surroundings()
    saved = found(folder)
    call, identity = saved.facts["call"], saved.facts["identity"]
    sampler = _default() if sampler is None else sampler
    if named(sampler) != identity["sampler"]:
        raise ValueError(
            f"The run in {folder} had another sampler. Pass it as sampler=...; it was: "
            f"{' '.join(identity['sampler'].split())[:200]}."
        )
    if identity["mesh"] != "None":
        raise ValueError("Resume a run on a mesh by the call of parvi.sample that began it.")
    began = time.perf_counter()
    dtype = np.dtype(call["dtype"])
    target = as_target(log_density)
    with contextlib.ExitStack() as stack:
        stack.enter_context(surrounded(dtype))
        interrupts = stack.enter_context(noted_interrupts(endings=True))
        particles = jnp.asarray(saved.arrays["carry/1"])
        if target.layout is None:
            shapes = [np.zeros(shape, dtype) for shape in call["shapes"]]
            target = target.laid_out(rebuilt(call["structure"], shapes, None))
        key = jax.random.wrap_key_data(jnp.asarray(call["key"], jnp.uint32), impl=call["impl"])
        target = with_rows(target, sampler, (particles.shape[0], particles.shape[1]), dtype)
        run = Run(target, sampler, key, Place(particles, None, None))
        run.restore(saved)
        _check_same(target, run.beginning, call.get("first_log_densities"))
        num_steps = call["num_steps"]
        limit = sampler.max_steps if num_steps is None else num_steps
        bar = stack.enter_context(Bar(None, progress))
        kept = Checkpoint(folder, identity, call)
        settings = Settings(None, call["key"], None, sampler, num_steps)
        ended = _ended(run, limit, bar, interrupts, kept, began, settings, call["num_moved"])
    return judged(run, *ended, throw)


@functools.cache
def _default() -> Sequence:
    """The default sampler, made once: building and printing it takes longer than many a step."""
    return pfg()


def _check_same(target: AbstractTarget, particles, expected: list[float] | None) -> None:
    """Raise a ``ValueError`` if the log density is not that of the run that is resumed."""
    if expected is None:
        return
    values = np.asarray(evaluate(target.full(), particles)[0])
    # Sums of many rows need not be rounded alike in a program of another size.
    rtol = np.finfo(values.dtype).eps ** 0.5
    if not np.allclose(values, expected, rtol=rtol, equal_nan=True):
        raise ValueError(
            f"The checkpoint is of another log density, which was {expected[0]:g} at a first "
            f"particle and is {values[0]:g} here. Give the model and the data of that run."
        )


def _call(target: AbstractTarget, dtype, key, num_steps, num_moved, place: Place) -> dict[str, Any]:
    """What ``resume`` needs beside the state, the target and the sampler."""
    layout = target.layout
    assert layout is not None
    values = None
    if place.log_densities is not None and target.is_fixed:
        values = np.asarray(place.log_densities)[rows_told(len(place.particles))].tolist()
    example = jax.tree_util.tree_unflatten(
        layout.treedef, [np.zeros(shape, dtype) for shape in layout.shapes]
    )
    return {
        "dtype": dtype.name,
        "shapes": [list(shape) for shape in layout.shapes],
        "structure": structure_of(example),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "impl": str(jax.random.key_impl(key)),
        "num_steps": None if num_steps is None else int(num_steps),
        "num_moved": num_moved,
        "first_log_densities": values,
    }


def _ended(
    run: Run, limit: int, bar: Bar, interrupts, kept, began: float, settings, num_moved: int
) -> tuple[Result, BaseException | None, bool]:
    """The result of the run, what a step raised, and whether it was interrupted."""
    error = _driven(run, limit, bar, interrupts, kept)
    if kept is not None and run.carry is not None:
        kept.write(*run.state())
    if interrupts.ending is not None:
        # End the process as the signal would have done, but with the run saved.
        sys.exit(128 + interrupts.ending)
    result = _built(run, settings, time.perf_counter() - began, num_moved)
    return result, error, interrupts.came or isinstance(error, KeyboardInterrupt)


def _begun(target, sampler, key, handed, sharding, ahead) -> Run:
    place = handed.pop()
    if sharding is not None:
        place = jax.tree_util.tree_map(lambda leaf: spread(leaf, sharding), place)
    return Run(target, sampler, key, place, sharding, ahead=ahead)


def _driven(
    run: Run, limit: int, bar: Bar, interrupts, kept: Checkpoint | None
) -> BaseException | None:
    """Advance to the limit or the end, in chunks of about a quarter of a second.

    Returns what was raised on the way, if the particles are still there.
    """
    chunk, compiled = 1, run.compile_seconds
    bar.begin(run.num_steps, run.last_step(limit))
    try:
        while not run.is_done and run.num_steps < limit and not interrupts.came:
            before, done = time.perf_counter(), run.num_steps
            run.advance(min(chunk, limit - done))
            seconds = time.perf_counter() - before
            steps = run.num_steps - done
            has_compiled = run.compile_seconds > compiled
            bar.update(
                run.num_steps, run.stage.name, run.num_gradients, run.kl_rate, not has_compiled
            )
            if kept is not None and kept.is_due:
                kept.write(*run.state())
            if has_compiled:
                chunk, compiled = 1, run.compile_seconds
            else:
                chunk = int(np.clip(steps / seconds * _SECONDS_PER_CHUNK, 1, CAPACITY))
    except (KeyboardInterrupt, Exception) as error:
        # Large arrays are moved in place, and may be gone. Without a step nothing is lost.
        if run.particles.is_deleted() or (run.num_steps == 0 and isinstance(error, Exception)):
            raise
        return error
    return None


def _built(run: Run, settings, seconds, num_moved) -> Result:
    return Result.build(
        target=run.target,
        flat=run.gathered(),
        status=Status.MAX_STEPS if run.status == Status.RUNNING else run.status,
        history=run.history,
        settings=settings,
        timing=Timing(seconds, run.compile_seconds),
        num_moved=num_moved,
        passes=reported(run.reports, Passes),
        balanced=reported(run.reports, Balanced),
        changes=_changes(run),
        sought=_sought(run),
    )


def _sought(run: Run) -> Sought | None:
    """Where scouts began, if there were any."""
    if reported(run.reports, Sighted) is None:
        return None
    assert run.target.layout is not None
    flat = np.asarray(run.gathered())
    return Sought.of(np.asarray(run.beginning), flat, run.target.layout.flat_names())


def _changes(run: Run) -> np.ndarray | None:
    """What the last stage that tested the particles found at every coordinate."""
    made = (run.reports.get(name) for name, _ in reversed(run.history))
    explored = next((report for report in made if isinstance(report, (Changed, Explored))), None)
    return None if explored is None else np.asarray(explored.changes)
