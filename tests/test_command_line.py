"""``parvi sample``, ``check``, ``report`` and ``resume``, as a shell calls them."""

import json
import sys
import types

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import parvi
from parvi.cli import app, runs
from parvi.cli.files import target_of
from parvi.cli.reporting import with_report

MODEL = """
import jax.numpy as jnp, numpy as np, parvi
like = {"slope": np.zeros(()), "scale": np.ones(())}
constraints = {"scale": parvi.Positive()}
def log_density(p, data):
    error = (data["y"] - p["slope"] * data["x"]) / p["scale"]
    return -0.5 * jnp.sum(error**2) - len(data["y"]) * jnp.log(p["scale"]) - p["scale"]
plain = lambda x: -0.5 * jnp.sum(x**2)
def wrong(p, data):
    return p["nothing"]
"""
NUMPYRO = """
import numpyro, numpyro.distributions as dist
def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    numpyro.sample("y", dist.Normal(slope * x, 0.5), obs=y)
def broken(x, y):
    numpyro.sample("y", dist.Normal(x, z), obs=y)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = 2 * x + 0.5 * rng.normal(size=40)
    lines = ["x,y", *(f"{a},{b}" for a, b in zip(x, y, strict=True))]
    (folder / "data.csv").write_text("\n".join(lines))
    np.savez(folder / "data.npz", x=x, y=y)
    (folder / "data.json").write_text(json.dumps({"x": x.tolist(), "y": y.tolist()}))
    return folder


def called(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def sampled(folder):
    out, report = folder / "run.npz", folder / "run.html"
    done = called(
        "sample", f"{folder}/model.py", "--data", folder / "data.csv", "--particles", 64,
        "--out", out, "--report", report, "--json", "--checkpoint", folder / "checkpoint",
    )  # fmt: skip
    return done, out, report


def test_from_a_csv_to_a_report(sampled):
    done, out, report = sampled
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["believable"] is True
    assert any("Modes were looked for" in sentence for sentence in facts["advice"])
    assert abs(facts["summary"]["slope"]["mean"] - 2) < 0.4
    assert facts["summary"]["scale"]["verdict"] == "ok"
    assert parvi.load(out).num_particles == 64
    assert "can be taken for a sample" in report.read_text()


def test_check_and_report_of_the_file_alone(sampled, tmp_path):
    out = sampled[1]
    done = called("check", out)
    assert done.exit_code == 0
    assert "can be taken for a sample" in done.stdout
    again = called("report", out, "--out", tmp_path / "again.html")
    assert again.exit_code == 0
    assert "can be taken for a sample" in (tmp_path / "again.html").read_text()


def test_resume_finds_the_end(sampled, folder):
    done = called("resume", folder / "checkpoint", f"{folder}/model.py", "--data",
                  folder / "data.npz", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["status"] == "CONVERGED"


@pytest.mark.slow
def test_what_is_not_believed_has_another_code(folder):
    done = called("sample", f"{folder}/model.py:log_density", "--data", folder / "data.json",
                  "--particles", 32, "--sampler", "svgd", "--steps", 2)  # fmt: skip
    assert done.exit_code == 3, done.output
    assert done.stdout.startswith("Do not take these particles for a sample")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sample", "nothing.py"], "There is no file nothing.py"),
        (["sample", "{}/model.py:nothing"], "has no nothing"),
        (["sample", "{}/model.py"], "give --data"),
        (["sample", "{}/model.py", "--data", "{}/model.py"], ".csv, .npz or .json"),
        (["sample", "{}/model.py", "--data", "{}/words.csv"], "'red' in column 'x' of row 3"),
        (["sample", "{}/model.py", "--data", "{}/ragged.csv"], "1 values in row 3"),
        (["sample", "{}/model.py", "--data", "{}/data.csv", "--sampler", "no"], "is unknown"),
        (["sample", "{}/model.py:wrong", "--data", "{}/data.csv"], "model.py, line 10"),
        (["check", "{}/data.npz"], "is not a result of parvi"),
        (["report", "{}/none.npz"], "none.npz"),
        (["resume", "{}/none", "{}/model.py", "--data", "{}/data.csv"], "none"),
        (["sample", "{}/model.py", "--data", "{}/none.csv"], "No such file or directory: "),
        (["sample", "{}/model.py", "--data", "{}/semicolons.csv"], "separate columns by commas"),
        (["sample", "{}/model.py", "--data", "{}/names.csv"], "no column of numbers"),
        (["sample", "{}/model.py", "--out", "{}/none/run.npz"], "cannot be written"),
        (["sample", "{}/model.py", "--report", "{}"], "is a folder"),
        (["sample", "{}/density.py"], "define like ="),
        (["sample", "{}/no_module.py"], "no_module.py, line 2"),
        (["sample", "{}/model.py", "--data", "{}/null.json"], "has a value in y that is no number"),
        (["sample", "{}/model.py", "--data", "{}/uneven.json"], "has lists of different lengths"),
        (["sample", "{}/model.py:plain", "--data", "{}/data.csv"], "takes no data: leave --data"),
        (["sample", "{}/fixed.py", "--data", "{}/data.csv"], "takes no data: leave --data"),
    ],
)
def test_bad_requests_are_one_line(folder, words, said):
    (folder / "words.csv").write_text("x,y\n1,2\nred,3\n")
    (folder / "ragged.csv").write_text("x,y\n1,2\n3\n")
    (folder / "semicolons.csv").write_text("x;y\n1,5;2\n")
    (folder / "names.csv").write_text("name\nAda\n")
    (folder / "density.py").write_text("def log_density(x):\n    return -x @ x\n")
    (folder / "no_module.py").write_text("\nimport no_such_module\n")
    (folder / "null.json").write_text('{"x": [1, 2], "y": [null, 2]}')
    (folder / "uneven.json").write_text('{"x": [1, 2], "y": [[1], [2, 3]]}')
    (folder / "fixed.py").write_text("model = object()")
    done = called(*(word.format(folder) for word in words))
    assert done.exit_code == 1, done.output
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_what_no_model_needs_is_left_out_and_said(folder, capsys):
    pytest.importorskip("numpyro")
    (folder / "numpyro_model.py").write_text(NUMPYRO)
    (folder / "more.csv").write_text("x,name,y,year\n1,Ada,2,2007\n2,Bob,4,2007\n")
    target = target_of(f"{folder}/numpyro_model.py", folder / "more.csv")
    assert target.layout.flat_names() == ["slope"]
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[-1] for line in said] == ["name.", "year."]


@pytest.mark.parametrize(
    ("file", "text"),
    [("nan.csv", "x,y,z\n1,nan,1\n2,3,inf\n"), ("nan.json", '{"x": 1, "y": [NaN], "z": Infinity}')],
)
def test_missing_numbers_are_said(folder, capsys, file, text):
    (folder / file).write_text(text)
    target_of(f"{folder}/model.py", folder / file)
    assert f"{file} has NaN or infinite values in y, z" in capsys.readouterr().err


def test_a_name_that_the_data_lack_is_said_with_those_they_have(folder):
    (folder / "other.json").write_text('{"x": [1.0, 2.0], "z": [1.0, 2.0]}')
    done = called("sample", f"{folder}/model.py", "--data", folder / "other.json")
    assert done.exit_code == 1
    assert "raised KeyError: 'y'" in done.stderr
    assert "the data have x, z" in done.stderr


def test_a_numpyro_model_without_its_data_is_one_line(folder):
    pytest.importorskip("numpyro")
    (folder / "numpyro_model.py").write_text(NUMPYRO)
    (folder / "half.json").write_text('{"x": [1.0]}')
    for words, said in (
        ([], "takes x, y, and there are no data: give --data"),
        (["--data", folder / "half.json"], "takes x, y, and the data have x"),
    ):
        done = called("sample", f"{folder}/numpyro_model.py", *words)
        assert done.exit_code == 1
        assert said in done.stderr
    done = called("sample", f"{folder}/numpyro_model.py:broken", "--data", folder / "data.csv")
    assert done.exit_code == 1
    assert "raised NameError: name 'z' is not defined" in done.stderr
    assert "numpyro_model.py, line 7" in done.stderr


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("Exception: variable name=J", "Stan refuses line.stan with these data. Exception: var"),
        (
            "Command make failed.\nstdout:\ng++\n\nstderr:\n';' expected.\nmake: *** Error 1",
            "line.stan does not compile.\n';' expected.\n",
        ),
    ],
)
def test_what_stan_says_is_passed_on(tmp_path, monkeypatch, raised, said):
    class StanModel:
        def __init__(self, *_):
            raise RuntimeError(raised)

    monkeypatch.setitem(sys.modules, "bridgestan", types.SimpleNamespace(StanModel=StanModel))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line.stan").write_text("")
    done = called("sample", "line.stan")
    assert done.exit_code == 1
    assert said in done.stderr


def test_completion_is_there():
    words = {"_PARVI_COMPLETE": "complete_bash", "COMP_WORDS": "parvi sam", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], prog_name="parvi", env=words)
    assert done.stdout.split() == ["sample"]


@pytest.mark.parametrize(
    ("checkpoint", "said"), [("ck", "It is saved in ck"), (None, "--checkpoint")]
)
def test_an_interrupt_says_how_to_go_on(capsys, checkpoint, said):
    def interrupted():
        raise parvi.SamplingInterrupted("", types.SimpleNamespace(num_steps=7))

    with pytest.raises(typer.Exit) as ended:
        runs._ran(interrupted, checkpoint)
    assert ended.value.exit_code == runs.INTERRUPTED
    words = capsys.readouterr().err
    assert "after 7 steps" in words
    assert said in words


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["m.py", "--report"], ["m.py", "--report", "report.html"]),
        (["m.py", "--report", "--json"], ["m.py", "--report", "report.html", "--json"]),
        (
            ["--report", "--out", "a/run.npz", "m.py"],
            ["--report", "a/run.html", "--out", "a/run.npz", "m.py"],
        ),
        (["m.py", "--report", "own.html"], ["m.py", "--report", "own.html"]),
        (["m.py", "--out"], ["m.py", "--out"]),
    ],
)
def test_a_report_without_a_file(args, expected):
    assert with_report(args) == expected
