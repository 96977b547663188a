"""The README's example runs as it stands."""

import importlib.util
import os
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest

import parvi

ROOT = pathlib.Path(__file__).parents[1]


def test_example_runs(capsys):
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    exec(code, names)
    assert names["result"].status == parvi.Status.CONVERGED
    printed = capsys.readouterr().out
    assert "CONVERGED" in printed
    assert "95%" in printed
    # Flat priors: the marginal of mu is centred at the mean of the data, by symmetry.
    assert abs(names["result"].particles["mu"].mean() - 2.5) < 0.05


@pytest.mark.slow
def test_the_page_on_maps_runs(capsys):
    """All its examples, one after another; the Bayes factor is that of the closed form."""
    pytest.importorskip("numpyro")
    text = (ROOT / "docs" / "transport.md").read_text()
    names = {}
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(code, names)
    found, exact = (names[name][0] - names[name][1] for name in ("evidences", "exact"))
    assert abs(found - exact) < 0.01
    transport = names["transport"]
    np.testing.assert_allclose(
        names["posterior"].log_prob(np.asarray(transport.draw(0, 4))),
        transport.log_prob(transport.draw(0, 4)),
        rtol=1e-3,
    )
    state = names["sampler"].init(transport.draw(3, 1)[0].astype(np.float32))
    for key in jax.random.split(jax.random.key(0), 5):
        state, info = names["sampler"].step(key, state)
    assert info.acceptance_rate > 0.2


@pytest.mark.slow
def test_the_pages_on_estimators_and_calibration_run(capsys):
    pytest.importorskip("sklearn")
    for page in ("estimators", "calibration"):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        names = {}
        for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
            exec(code, names)
        if page == "estimators":
            assert names["model"].score(names["X_test"], names["y_test"]) > 0.9
        else:
            assert names["right"]
            assert not names["wrong"]


def test_commands_exist():
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"make ([a-z-]+)", text))
    assert {"demo", "test"} <= commands
    for command in commands:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)
    for link in re.findall(r"\]\(([^)h][^)]*)\)", text):
        assert (ROOT / link).exists(), link


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_on_models_runs(capsys, monkeypatch, tmp_path):
    """All its examples whose libraries are there, one after another."""
    shutil.copy(ROOT / "tests" / "models" / "stan" / "eight_schools.stan", tmp_path)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "models.md").read_text()
    names, means = {}, []
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        needed = re.findall(r"# needs: (.*)", code)
        if any(not _found(name) for name in needed):
            continue
        exec(code, names)
        assert names["result"].status == parvi.Status.CONVERGED
        means.append(names["result"].particles["mu"].mean())
    assert len(means) >= 2
    # The same posterior in every library, whose standard deviation is 3.3.
    np.testing.assert_allclose(means, 4.42, atol=0.2)
    assert "(512, 8)" in capsys.readouterr().out


def _found(name):
    if name == "bridgestan" and "BRIDGESTAN" not in os.environ:
        return False
    return importlib.util.find_spec(name.split(".")[0]) is not None
