"""The site: its pages run as they stand, its links lead somewhere, no public name is missing."""

import importlib.util
import pathlib
import re

import pytest

import parvi

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
PAGES = sorted(page for page in DOCS.rglob("*.md"))


def pages():
    spec = importlib.util.spec_from_file_location("run_pages", DOCS / "run_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _no_screen():
    pytest.importorskip("matplotlib").use("Agg")


@pytest.mark.slow
def test_the_first_page_runs(tmp_path):
    names = pages().run(DOCS / "index.md", tmp_path)
    assert names["result"].status == parvi.Status.CONVERGED
    assert (tmp_path / "heights.npz").exists()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["verdicts", "plots"])
def test_a_page_runs(page, tmp_path):
    assert pages().run(DOCS / f"{page}.md", tmp_path)["result"].status == parvi.Status.CONVERGED


NEEDED = {"from-numpyro": "numpyro", "from-pymc": "pymc", "from-stan": "bridgestan"}


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(page, tmp_path, monkeypatch):
    if page.stem in NEEDED:
        pytest.importorskip(NEEDED[page.stem])
    names = pages().run(page, tmp_path)
    for figure in re.findall(r"\]\(figures/([a-z-]+\.png)\)", page.read_text()):
        assert (tmp_path / figure).stat().st_size > 5000
        assert (DOCS / "tutorials" / "figures" / figure).exists()
    expected = parvi.Status.NOT_AT_REST if page.stem == "network" else parvi.Status.CONVERGED
    assert names["result"].status == expected
    if page.stem == "comparison":
        for found, exact in names["evidences"].values():
            assert abs(found - exact) < 0.01
    if page.stem == "mixture":
        assert names["result"].modes().copies == ((0, 1),)


def test_every_page_is_in_the_site_and_every_link_leads_somewhere():
    listed = set(re.findall(r": ([a-z0-9/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert all((DOCS / page).exists() for page in listed)
    assert {f"tutorials/{page.name}" for page in TUTORIALS} <= listed
    for page in [
        *PAGES,
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]:
        for link, _, anchor in links_of(page):
            found = page if not link else page.parent / link
            assert found.exists(), f"{page.name} links to {link}"
            assert not anchor or anchor in anchors_of(found), f"{page.name}: {link}#{anchor}"


def links_of(page):
    """The relative links of a page, each as its file, "#" and its anchor."""
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [link.partition("#") for link in links if not re.match(r"[a-z]+:", link)]


def anchors_of(page):
    """The anchors of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_a_dead_link_would_be_found(tmp_path):
    (tmp_path / "page.md").write_text(
        "# One, two\n[a](none.md#x) [b](https://host/c) [d](#one-two)\n"
    )
    assert links_of(tmp_path / "page.md") == [("none.md", "#", "x"), ("", "#", "one-two")]
    assert anchors_of(tmp_path / "page.md") == {"one-two"}


def test_every_public_name_is_in_the_reference():
    text = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    whole = {
        "parvi.samplers.ready",
        "parvi.targets.constraints",
        "parvi.targets.further_constraints",
    }
    whole |= {"parvi.kernels", "parvi.steppers", "parvi.stopping"}
    assert all(f"::: {module}\n" in text for module in whole)
    places = [parvi, parvi.fields, parvi.functions, parvi.preconditioners, parvi.constraints]
    for place in [*places, parvi.metrics, parvi.plots, parvi.estimators]:
        for name in dir(place):
            found = getattr(place, name)
            home = getattr(found, "__module__", "") or ""
            if not name.startswith("_") and home.startswith("parvi.") and home not in whole:
                assert f"::: {home}.{name}\n" in f"{text}\n", f"{place.__name__}.{name}"
