"""An animation of the flow: the particles of two coordinates, step by step."""

import contextlib
import pathlib
import subprocess
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from parvi.results.plots.style import columns_of, limits, new_axes, palette, short, styled
from parvi.run.initial import as_key, initial_values
from parvi.run.run import Run
from parvi.run.start import keys_of, started
from parvi.run.surroundings import surrounded

_MOST_PARTICLES = 1024


class Frame(NamedTuple):
    """The particles after some steps, and the stage that they were in."""

    points: Float[np.ndarray, "n 2"]
    step: int
    stage: str


def animate(
    result: Any,
    path: Any,
    names: Sequence[str] | None = None,
    num_frames: int = 60,
    frames_per_second: int = 12,
) -> Any:
    """Run the result again, and write how its particles move to a GIF or an MP4.

    Parameters
    ----------
    result
        A ``Result`` with its target and settings.
    path
        File that ends in .gif, or in .mp4 if ffmpeg is installed.
    names
        Two parameters; by default the first two.
    num_frames
        The largest number of frames.
    frames_per_second
        How fast they follow each other.

    Returns
    -------
    matplotlib.axes.Axes
        The axis of the last frame.
    """
    from matplotlib import animation

    path = pathlib.Path(path)
    writers: dict[str, Any] = {".gif": animation.PillowWriter, ".mp4": animation.FFMpegWriter}
    if path.suffix.lower() not in writers:
        raise ValueError(f"{path} should end in .gif or .mp4.")
    writer = writers[path.suffix.lower()]
    if not writer.isAvailable():
        raise ValueError(
            f"{path.suffix} needs ffmpeg, which was not found: install it (apt, brew and conda "
            "call it ffmpeg), set matplotlib's rcParams['animation.ffmpeg_path'], or write a .gif."
        )
    if not path.absolute().parent.is_dir():
        raise ValueError(f"The folder of {path} does not exist.")
    columns = columns_of(result, names, 2)
    if len(columns) != 2:
        raise ValueError(f"An animation has two parameters, got {len(columns)}.")
    frames = followed(result, columns, num_frames)
    with styled():
        axis = new_axes(1, 1, 4.6, 4.2)[0, 0]
        figure = axis.figure
        every = np.concatenate([frame.points for frame in frames])
        axis.set(
            xlabel=short(result.names[columns[0]]),
            ylabel=short(result.names[columns[1]]),
            xlim=limits(every[:, 0]),
            ylim=limits(every[:, 1]),
        )
        dots = axis.scatter(*frames[0].points.T, s=8, color=palette()[0], linewidth=0)

        def shown(frame: Frame):
            dots.set_offsets(frame.points)
            axis.set_title(f"step {frame.step}: {frame.stage}")
            return [dots]

        # The last frame stays for a second.
        held = [*frames, *[frames[-1]] * frames_per_second]
        moving = animation.FuncAnimation(figure, shown, frames=held, init_func=lambda: [])
        try:
            # A frame with a transparent background would show all frames before it.
            own = {"facecolor": "white"}
            moving.save(path, writer=writer(fps=frames_per_second), savefig_kwargs=own)
        except (subprocess.CalledProcessError, BrokenPipeError) as error:
            raise OSError(f"ffmpeg could not write {path}: {_last_words(error)}") from error
    return axis


def _last_words(error: Exception) -> str:
    """The last line that a program wrote to standard error before it failed."""
    written = getattr(error, "stderr", None) or b""
    text = written.decode(errors="replace") if isinstance(written, bytes) else written
    lines = text.strip().splitlines()
    return lines[-1] if lines else str(error)


def followed(result: Any, columns: Sequence[int], num_frames: int) -> list[Frame]:
    """The particles of some columns, in at most ``num_frames`` frames with all early steps."""
    settings = result.settings
    if settings is None or result.target is None:
        raise ValueError("A loaded result cannot be run again: give one that parvi.sample made.")
    if not isinstance(num_frames, int) or num_frames < 2:
        raise ValueError(f"num_frames must be an int of at least 2, got {num_frames!r}.")
    steps = chosen_steps(result.num_steps, num_frames)
    num = min(result.num_particles, _MOST_PARTICLES)
    rows = np.linspace(0, result.num_particles - 1, num).astype(int)
    dtype = result.matrix().dtype
    with contextlib.ExitStack() as stack:
        stack.enter_context(surrounded(dtype))
        keys = keys_of(as_key(settings.key))
        values = initial_values(keys.init, settings.init, settings.num_particles, result.target)
        sampler = settings.sampler
        with warnings.catch_warnings():
            # They were given when the result was made.
            warnings.simplefilter("ignore", UserWarning)
            target, place, _ = started(
                result.target, values, settings.num_particles, sampler, dtype, keys, stack
            )
        run = Run(target, sampler, keys.steps, place)
        assert target.layout is not None
        frames = []
        for step in steps:
            if step > run.num_steps:
                run.advance(step - run.num_steps)
            leaves = jax.tree_util.tree_leaves(jax.vmap(target.layout.constrain)(run.particles))
            matrix = np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in leaves], axis=1)
            frames.append(Frame(matrix[rows][:, list(columns)], run.num_steps, run.stage.name))
    return frames


def chosen_steps(num_steps: int, num_frames: int) -> list[int]:
    """Steps from 0 to the last, dense at first, where particles move most."""
    if num_steps < num_frames:
        return list(range(num_steps + 1))
    early = num_frames // 2
    late = np.geomspace(early, num_steps, num_frames - early).round().astype(int)
    return sorted({*range(early), *late.tolist()})
