"""The README's example runs as it stands."""

import pathlib
import re

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


def test_commands_exist():
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"make ([a-z-]+)", text))
    assert {"demo", "test"} <= commands
    for command in commands:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)
    for link in re.findall(r"\]\(([^)h][^)]*)\)", text):
        assert (ROOT / link).exists(), link
