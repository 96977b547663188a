"""Plots show what they say they show: the data on the axes is compared, not the pixels."""

import dataclasses
import itertools
import shutil
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import parvi
from parvi.results.plots.animation import chosen_steps
from parvi.results.plots.style import columns_of

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def result():
    init = np.random.default_rng(0).normal(size=(64, 2))
    density = lambda x: -0.5 * jnp.sum((x - jnp.array([1.0, -2.0])) ** 2)  # noqa: E731
    return parvi.sample(density, init)


def test_marginals_have_the_median_and_the_mass(result):
    axes = parvi.plots.marginals(result)
    assert axes.shape == (1, 2)
    for axis, column, name in zip(axes.ravel(), result.matrix().T, result.names, strict=True):
        curve, median = axis.get_lines()
        assert axis.get_title() == name
        np.testing.assert_allclose(median.get_xdata()[0], np.median(column), rtol=1e-6)
        x, y = curve.get_data()
        # The axis leaves out the last half percent on either side.
        assert 0.95 < np.trapezoid(y, x) < 1.01


@pytest.mark.parametrize(("scale", "shift"), [(1.2345e5, 0), (1, 1000), (1e-3, 3)])
def test_long_numbers_do_not_run_into_each_other(result, scale, shift):
    far = dataclasses.replace(result, particles=result.particles * scale + shift)
    axes = parvi.plots.pairs(far, modes=False)
    axes[0, 0].figure.draw_without_rendering()
    for axis in axes[-1]:
        low, high = axis.get_xlim()
        inside = [tick for tick in axis.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes = [tick.label1.get_window_extent() for tick in inside]
        assert len(boxes) >= 1
        assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_long_names_do_not_run_into_each_other(result):
    names = [f"the_effect_of_a_very_long_experiment_in_a_distant_country[{i}]" for i in range(2)]
    long = dataclasses.replace(result, names=names)
    axes = parvi.plots.marginals(long).ravel()
    axes[0].figure.draw_without_rendering()
    boxes = [axis.title.get_window_extent() for axis in axes]
    assert boxes[0].x1 < boxes[1].x0
    assert axes[1].get_title().endswith("[1]")
    axes = parvi.plots.pairs(long, modes=False)
    axes[0, 0].figure.draw_without_rendering()
    boxes = [axis.xaxis.label.get_window_extent() for axis in axes[-1]]
    assert boxes[0].x1 < boxes[1].x0


def test_the_name_of_a_part_stands_for_its_arrays():
    named = SimpleNamespace(names=["a.b[0]", "a.b[1]", "a.c", "ab", "b"])
    assert columns_of(named, ["a"]) == [0, 1, 2]
    assert columns_of(named, ["a.b", "b"]) == [0, 1, 4]


def test_marginals_do_not_fill_the_valley_between_modes():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [190, 66])
    values = np.where(labels == 0, -6.0, 6.0) + rng.normal(size=256)
    modes = SimpleNamespace(labels=labels)
    two = SimpleNamespace(names=["x"], matrix=lambda: values[:, None], known_modes=lambda: modes)
    x, y = parvi.plots.marginals(two)[0, 0].get_lines()[0].get_data()
    # The true height of the higher mode is 0.3; one width for both gives 0.15 there.
    assert 0.24 < y.max() < 0.36
    assert np.interp(0, x, y) < 0.001


def test_pairs_have_all_particles_and_hide_the_upper_half(result):
    axes = parvi.plots.pairs(result)
    np.testing.assert_allclose(axes[1, 0].collections[0].get_offsets(), result.matrix())
    assert not axes[0, 1].get_visible()
    assert axes[1, 0].get_xlabel() == "x[0]" or axes[1, 0].get_xlabel() == result.names[0]


def test_history_has_every_stage_once(result):
    axes = parvi.plots.history(result)
    labels = [text.get_text() for text in axes[0, 0].get_legend().get_texts()]
    assert labels == list(dict.fromkeys(result.history["stage"].tolist()))
    drawn = axes[1, 0].get_lines()[0].get_ydata()
    np.testing.assert_array_equal(drawn, result.history["stein_ratio"])


def test_bands_hold_what_they_say():
    rng = np.random.default_rng(0)
    x = np.array([2.0, 0.0, 1.0])
    predictions = x + rng.normal(size=(20_000, 3))
    axis = parvi.plots.bands(x, predictions, levels=(0.9,))
    drawn, middle = axis.get_lines()[0].get_data()
    np.testing.assert_array_equal(drawn, [0, 1, 2])
    np.testing.assert_allclose(middle, [0, 1, 2], atol=0.05)
    edges = axis.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([edges.min(), edges.max()], [-1.645, 3.645], atol=0.05)


def test_particles_over_the_density(result):
    axis = parvi.plots.over_density(result)
    np.testing.assert_allclose(axis.collections[-1].get_offsets(), result.matrix())


@pytest.mark.slow
def test_a_map_of_a_gaussian_keeps_a_grid_straight(result):
    axis = parvi.plots.transported_grid(result, num_lines=3)
    lines = axis.get_lines()
    assert len(lines) == 6
    for line in lines:
        steps = np.diff(np.column_stack(line.get_data()), axis=0)
        np.testing.assert_allclose(steps, steps[:1].repeat(len(steps), axis=0), atol=5e-3)


def test_animation_ends_where_the_run_does(result, tmp_path):
    axis = parvi.plots.animate(result, tmp_path / "flow.gif", num_frames=5)
    np.testing.assert_array_equal(axis.collections[0].get_offsets(), result.matrix())
    assert (tmp_path / "flow.gif").read_bytes()[:6] == b"GIF89a"


def test_a_frame_does_not_show_those_before_it(tmp_path):
    image = pytest.importorskip("PIL.Image")
    start = np.random.default_rng(0).normal(size=(64, 2))
    far = parvi.sample(
        lambda x: -0.5 * jnp.sum((x - 50) ** 2), start, sampler=parvi.pfg(num_features=0)
    )
    parvi.plots.animate(far, tmp_path / "flow.gif", num_frames=3, frames_per_second=1)
    dots = []
    with image.open(tmp_path / "flow.gif") as file:
        for number in (0, file.n_frames - 1):
            file.seek(number)
            pixels = np.asarray(file.convert("RGB"), int)
            # The ground is white and the words are grey: only particles are blue.
            dots.append(pixels[:, :, 2] - pixels[:, :, 0] > 80)
    assert dots[0].any()
    assert dots[1].any()
    assert not (dots[0] & dots[1]).any()


def test_a_film_is_an_mp4(result, tmp_path):
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs ffmpeg")
    axis = parvi.plots.animate(result, tmp_path / "flow.mp4", num_frames=3)
    np.testing.assert_array_equal(axis.collections[0].get_offsets(), result.matrix())
    assert (tmp_path / "flow.mp4").read_bytes()[4:8] == b"ftyp"


def with_ffmpeg(folder, monkeypatch, script):
    """A folder that is the whole path, with a program called ffmpeg if there is a script."""
    folder = folder / "bin"
    folder.mkdir()
    if script is not None:
        (folder / "ffmpeg").write_text(f"#!{sys.executable} -S\n{script}")
        (folder / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_ffmpeg_gets_every_frame(result, tmp_path, monkeypatch):
    script = "import sys; open(sys.argv[-1], 'wb').write(sys.stdin.buffer.read())"
    with_ffmpeg(tmp_path, monkeypatch, script)
    axis = parvi.plots.animate(result, tmp_path / "flow.mp4", num_frames=3, frames_per_second=2)
    width, height = axis.figure.canvas.get_width_height(physical=True)
    num_frames = len(chosen_steps(result.num_steps, 3)) + 2
    # H.264 takes even sizes only, and a frame has four bytes a pixel.
    even = 4 * (width // 2 * 2) * (height // 2 * 2)
    assert (tmp_path / "flow.mp4").stat().st_size == num_frames * even


def test_no_ffmpeg_and_a_broken_one_are_said(result, tmp_path, monkeypatch):
    with_ffmpeg(tmp_path, monkeypatch, None)
    with pytest.raises(ValueError, match=r"install it .* or write a \.gif"):
        parvi.plots.animate(result, tmp_path / "flow.mp4")
    script = "import sys; sys.stdin.buffer.read(); sys.exit('Unknown encoder')"
    (tmp_path / "second").mkdir()
    with_ffmpeg(tmp_path / "second", monkeypatch, script)
    with pytest.raises(OSError, match=r"could not write .*flow.mp4: Unknown encoder"):
        parvi.plots.animate(result, tmp_path / "flow.mp4", num_frames=2, frames_per_second=1)


@pytest.mark.parametrize(("num_steps", "num_frames"), [(3, 10), (500, 20), (20, 20)])
def test_frames_begin_and_end_with_the_run(num_steps, num_frames):
    steps = chosen_steps(num_steps, num_frames)
    assert steps[0] == 0
    assert steps[-1] == num_steps
    assert len(steps) <= num_frames + 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: parvi.plots.marginals(r, ["y"]), "No parameter is called 'y'"),
        (lambda r: parvi.plots.history(r, ("energy",)), "no column 'energy'"),
        (lambda r: parvi.plots.bands(np.zeros(2), np.zeros((3, 3))), "a row for every particle"),
        (lambda r: parvi.plots.animate(r, "flow.avi"), "gif or .mp4"),
        (lambda r: parvi.plots.animate(r, "nowhere/flow.gif"), "folder of nowhere/flow.gif"),
    ],
)
def test_bad_requests(result, call, words):
    with pytest.raises(ValueError, match=words):
        call(result)
