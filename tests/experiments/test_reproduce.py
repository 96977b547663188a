"""Cells are run once and kept; pages are made of nothing else."""

import json
import os

import pytest
from typer.testing import CliRunner

from parvi.cli import app
from parvi.experiments import cells, reproduce
from parvi.experiments.cells import Cell, Experiment
from parvi.experiments.tables import footnote, markdown, mean, ordering, published


def toy(run=lambda setting: {"square": setting["x"] ** 2}):
    return Experiment(
        "toy",
        "A toy",
        lambda quick: [{"x": x, "name": "a / b"} for x in range(2 if quick else 4)],
        run,
        lambda found, folder: ", ".join(str(cell.result["square"]) for cell in found),
    )


def test_a_cell_is_made_once_and_found_again(tmp_path):
    experiment = toy()
    assert cells.progress(experiment, tmp_path) == (0, 4, ())
    first, *rest = cells.pending(experiment, tmp_path)
    made = cells.make(experiment, tmp_path, first)
    assert made.result == {"square": 0}
    assert cells.pending(experiment, tmp_path) == rest
    assert list(cells.finished(experiment, tmp_path)) == [made]
    (path,) = (tmp_path / "toy").iterdir()
    assert json.loads(path.read_text())["setting"] == first


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_shares_are_all_the_work_and_none_of_it_twice(tmp_path, parts):
    experiment = toy()
    shares = [
        setting
        for number in range(parts)
        for setting in cells.pending(experiment, tmp_path, part=(number + 1, parts))
    ]
    assert shares == experiment.settings(False)


def test_a_cell_that_is_cut_off_leaves_nothing(tmp_path):
    def run(setting):
        raise KeyboardInterrupt

    experiment = toy(run)
    with pytest.raises(KeyboardInterrupt):
        cells.make(experiment, tmp_path, {"x": 1, "name": "a / b"})
    assert cells.progress(experiment, tmp_path).done == 0
    # Nor one whose result cannot be written.
    with pytest.raises(TypeError):
        cells.make(toy(lambda setting: {"x": object()}), tmp_path, {"x": 1, "name": "a / b"})
    assert list((tmp_path / "toy").iterdir()) == []


def test_the_page_says_what_was_not_run(tmp_path, monkeypatch):
    experiment = toy()
    monkeypatch.setattr(reproduce, "EXPERIMENTS", {"toy": experiment})
    for setting in cells.pending(experiment, tmp_path)[1:]:
        cells.make(experiment, tmp_path, setting)
    reproduce.report(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "1, 4, 9" in text
    assert "Not run here: 1 of 4 cells" in text


def test_means_have_standard_errors():
    assert mean([1.0, 2.0, 3.0], 2) == "2.00 ± 0.58"
    assert mean([1.234], 2) == "1.23"
    assert mean([]) == "not run"
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert "seeds 0 to 2; 3 s" in footnote([Cell({"seed": s}, {}, 1.0) for s in range(3)])


def test_an_ordering_holds_or_says_what_is_above():
    def cells_of(place, leads):
        rows = [
            Cell({"dataset": place, "method": "PFG", "seed": s}, {"nll": 1.0 * s}, 1.0)
            for s in range(len(leads))
        ]
        return rows + [
            Cell({"dataset": place, "method": "rival", "seed": s}, {"nll": s - lead}, 1.0)
            for s, lead in enumerate(leads)
        ]

    # Leads of 0.1 with a standard error of 0.01, and of 0.1 with one of 0.1.
    spread = [0.09, 0.1, 0.11]
    cells_here = cells_of("a", spread) + cells_of("b", [0.0, 0.0, 0.3]) + cells_of("c", [-0.1] * 3)
    text = ordering(cells_here, "PFG", "nll", larger=False)
    assert "every other method in nll: b, c." in text
    assert "what is above it: a (rival)" in text
    # Where larger is better the same leads are lags.
    assert "in nll: a, b." in ordering(cells_here, "PFG", "nll", larger=True)
    # Nothing is said of a place where the method has not run.
    others = [cell for cell in cells_of("d", spread) if cell.setting["method"] == "rival"]
    assert ordering(cells_here + others, "PFG", "nll", larger=False) == text
    assert ordering(others, "PFG", "nll", larger=False) == "PFG has not been run.\n"


def test_published_figures_are_the_papers():
    assert published("time")["SVGD"]["2000"] == 81.50
    assert published("hierarchical")["covertype"]["PFG"] == [75.7, 0.51]


def test_settings_are_all_different(tmp_path):
    for experiment in reproduce.EXPERIMENTS.values():
        for quick in (True, False):
            names = [
                cells._path(experiment, tmp_path, s) for s in map(dict, experiment.settings(quick))
            ]
            assert len(names) == len(set(names))


# The experiments that take a few seconds; the others differ in what they run, not in how.
SHORT = {"time"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.slow)
        for name in sorted(reproduce.EXPERIMENTS)
    ],
)
def test_quick(name, tmp_path):
    missing = cells.progress(reproduce.EXPERIMENTS[name], tmp_path, quick=True).missing
    if missing or (reproduce.EXPERIMENTS[name].datasets and not os.environ.get("PARVI_DATA")):
        pytest.skip(f"PARVI_DATA does not name a folder with {missing}")
    arguments = ["reproduce", name, "--quick", "--results", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "quick" / "reproduction.md").read_text()
    title = reproduce.EXPERIMENTS[name].title
    section = page.split(f"## {title}")[1].split("\n## ")[0]
    assert "|" in section
    assert "Not run here" not in section
    for line in section.splitlines():
        if line.startswith("!["):
            assert (tmp_path / "quick" / line.split("(")[1].rstrip(")")).is_file()
    # The second time there is nothing left to do.
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "quick" / name).iterdir()}
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_the_command_lists(tmp_path):
    listed = CliRunner().invoke(app, ["reproduce", "--results", str(tmp_path)])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in reproduce.EXPERIMENTS)
    assert list(tmp_path.iterdir()) == []


def test_missing_data_and_unknown_names_are_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PARVI_DATA", str(tmp_path / "nothing"))
    page = ["--results", str(tmp_path / "r"), "--page", str(tmp_path / "page.md")]
    done = CliRunner().invoke(app, ["reproduce", "time", *page])
    assert done.exit_code == 1
    assert "parvi data sonar" in done.output
    assert CliRunner().invoke(app, ["reproduce", "nonsense", *page]).exit_code == 2
