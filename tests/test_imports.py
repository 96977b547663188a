"""Imports follow the way of the data and never turn back (docs/decisions/0002-import-order.md)."""

import ast
import pathlib

import parvi
from parvi.samplers.catalogue import READY

ORDER = [
    ("status", "kept", "counted"),
    ("counting",),
    ("evaluation",),
    ("cloud",),
    ("interface",),
    ("kernels", "stopping", "steppers", "geometry"),
    ("targets",),
    ("fields", "constraints"),
    ("functions", "preconditioners"),
    ("samplers",),
    ("run",),
    ("results",),
    ("sampling",),
    ("calibration",),
    ("models", "estimators", "experiments"),
    ("cli",),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
ROOT = pathlib.Path(parvi.__file__).parent


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("parvi."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "parvi":
            yield from (alias.name for alias in node.names if alias.name in RANK)
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("parvi."))


def test_no_import_turns_back():
    checked = 0
    for path in ROOT.rglob("*.py"):
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        for other in imported(path):
            checked += 1
            assert RANK[other] <= RANK[package], f"{path.name} imports parvi.{other}"
    assert checked > 50


def test_public_names_exist_once_and_have_docstrings():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    names = [a.asname for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names]
    assert len(names) == len(set(names))
    assert [name for name in names if not getattr(parvi, name).__doc__] == []


def test_the_top_level_is_small_and_shows_no_inner_module():
    shown = dir(parvi)
    assert 30 <= len(shown) <= 56
    inner = {"cloud", "counting", "evaluation", "geometry", "interface", "results", "run"}
    assert not (inner | {"samplers", "status", "targets", "sampling"}) & set(shown)


def test_every_ready_sampler_is_public_and_in_the_guide():
    guide = (ROOT.parents[1] / "docs" / "choosing.md").read_text()
    for name, ready in READY.items():
        assert getattr(parvi, name) is ready
        assert f"`parvi.{name}()`" in guide or f"`{name}`" in guide
