"""The wheel alone, in an empty environment, runs the README's example."""

import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_alone_runs_the_readme(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("parvi-*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    # What is not Python: the report's style and script, and the paper's figures.
    wanted = ("report/page.css", "report/page.js", "experiments/published.toml")
    assert all(any(name.endswith(end) for name in files) for end in wanted)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    # Isolated from the checkout and from PYTHONPATH.
    done = subprocess.run(
        [python, "-I", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "CONVERGED" in done.stdout
    shown = subprocess.run(
        [tmp_path / "venv" / "bin" / "parvi", "--version"], capture_output=True, text=True
    )
    assert shown.stdout.startswith("parvi ")
