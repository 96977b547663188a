"""``parvi bench`` and what is made of its figures; the figures themselves are `make bench`."""

import json

import pytest
from typer.testing import CliRunner

from parvi.cli import app

bars = pytest.importorskip("benchmarks.bars", reason="needs a clone of the repository")


def test_elsewhere_it_says_where_to_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bench"])
    assert done.exit_code == 2
    assert "clone" in done.output


def timed(seconds):
    return {"seconds": seconds, "compile": 1.0, "steps": 10}


@pytest.fixture
def figures(tmp_path, monkeypatch):
    def write(name, content):
        (tmp_path / f"{name}.json").write_text(json.dumps({"figures": content}))

    monkeypatch.setattr("benchmarks.record.FOLDER", tmp_path)
    return write


def test_ratios_are_met_or_missed(figures):
    ours = {"5": timed(0.1), "100": timed(0.5), "1000": timed(4.0), "1000000": timed(2000.0)}
    torch = {"5": timed(6.0), "100": timed(5.0)}
    rows = {"PFG Algorithm 1": ours, "PyTorch Algorithm 1": torch}
    figures("scaling", {"particles": rows, "dimensions": {}})
    found = {verdict.bar: verdict for verdict in bars.verdicts()}
    assert found["Algorithm 1 against PyTorch, n = 5"].met
    assert found["Algorithm 1 against PyTorch, n = 100"].measured == "10.0x"
    assert found["Algorithm 1 against PyTorch, n = 100"].met is False
    assert found["Algorithm 1 against PyTorch, n = 2000"].met is None
    exponent = found["exponent of the time in n, PFG Algorithm 1"]
    assert exponent.measured == "0.90"
    assert exponent.met


def test_memory_is_what_grows_with_the_particles(figures):
    rows = {"250000": {"peak": 900, "array": 100}, "1000000": {"peak": 1300, "array": 200}}
    one = {"import": 1.0, "sample": 2.0, "steps": 20}
    figures("cold", {"cold": [one], "cached": [one], "memory": {"PFG (default)": rows}})
    found = {verdict.bar: verdict for verdict in bars.verdicts()}
    memory = found["memory of 1 000 000 particles, PFG (default)"]
    assert memory.measured.startswith("4.0 ")
    assert memory.met
    assert found["first result of a cold parvi.sample, 10-d"].met


def test_sooner_is_not_enough_where_the_particles_are_worse(figures):
    nuts = {"cold": 50.0, "again": 40.0, "energy_ratio": 0.9}
    good = {"cold": 4.0, "again": 0.5, "energy_ratio": 0.5}
    figures(
        "accuracy",
        {
            "166": {"PFG (default)": good, "NumPyro NUTS": nuts},
            "1000": {"PFG (default)": good | {"energy_ratio": 1.2}, "NumPyro NUTS": nuts},
        },
    )
    first, second = bars.verdicts()
    assert first.met
    assert second.met is False
    (text,) = [line for line in bars._reasons([first, second]) if line.startswith("**")]
    assert "166 rows: 80.0x" in text


def test_nothing_measured_is_nothing_claimed(figures):
    assert bars.verdicts() == []
