"""The data sets: every file known again, read as its publisher describes it, or a clear error."""

import functools
import gzip
import hashlib
import http.server
import os
import shutil
import threading
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from parvi.cli import app
from parvi.experiments import datasets
from parvi.experiments.datasets import DataError

# Facts that the publishers state, or that anyone can count: positives or the targets' mean.
FACTS = {
    "sonar": 97,
    "australian": 307,
    "german": 700,
    "covertype": 283_301,
    "boston": 22.5328,
    "concrete": 35.8178,
    "energy": 22.3072,
    "protein": 7.7485,
    "wine-red": 5.6360,
    "wine-white": 5.8779,
}


def there(name):
    if not (os.environ.get("PARVI_DATA") and datasets.is_there(name)):
        pytest.skip(f"PARVI_DATA does not name a folder with {name}")
    return datasets.load(name)


@pytest.mark.parametrize("name", FACTS)
def test_each_is_read_as_its_publisher_describes_it(name):
    table = there(name)
    if FACTS[name] == int(FACTS[name]):
        assert set(np.unique(table.targets)) == {0, 1}
        assert table.targets.sum() == FACTS[name]
    else:
        assert table.targets.mean() == pytest.approx(FACTS[name], abs=5e-5)


def test_mnist():
    table = there("mnist")
    assert table.num_train == 60_000
    assert table.features.max() == 1
    # The first five labels of the training set, and the count of each digit in the test set.
    assert table.targets[:5].tolist() == [5, 0, 4, 1, 9]
    counts = np.bincount(table.targets[60_000:].astype(int))
    assert counts.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A data folder of our own, with a copy of one file; another data folder is hidden."""
    source = os.environ.get("PARVI_DATA")

    def make(name):
        if not source:
            pytest.skip("PARVI_DATA is not set")
        monkeypatch.setenv("PARVI_DATA", source)
        file = datasets.find(name).files[0]
        place = datasets._place(file)
        if place is None:
            pytest.skip(f"no {file.name} in PARVI_DATA")
        target = tmp_path / file.name
        shutil.copyfile(place, target)
        monkeypatch.setenv("PARVI_DATA", str(tmp_path))
        return target

    return make


def test_a_missing_file_says_what_and_how(tmp_path, monkeypatch):
    monkeypatch.setenv("PARVI_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"sonar\.all-data is not in .*parvi data sonar"):
        datasets.load("sonar")


@pytest.mark.parametrize("name", ["boston", "covertype"])
def test_a_truncated_file_is_refused(copy, name):
    path = copy(name)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="truncated or altered"):
        datasets.load(name)


def test_an_altered_file_is_refused(copy):
    path = copy("german")
    expected = datasets.find("german").files[0].sha256
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(DataError, match=expected):
        datasets.load("german")


@pytest.mark.slow
def test_another_gzip_header_is_no_alteration(copy):
    path = copy("covertype")
    with gzip.open(path) as handle:
        content = handle.read()
    path.write_bytes(gzip.compress(content, compresslevel=1, mtime=12345))
    assert datasets.load("covertype").targets.sum() == FACTS["covertype"]


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match=r"no data set 'iris'.*sonar.*mnist"):
        datasets.load("iris")


@pytest.fixture
def served(tmp_path):
    """A folder and the address under which it is served."""
    root = tmp_path / "served"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield root, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def small_year(root, url, monkeypatch, sha256=None):
    """A file of Year's format with six rows, put in its stead."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(6, 90)).round(5)
    years = [2001, 1999, 1985, 2010, 1970, 2003]
    lines = [",".join([str(y), *map(str, row)]) for y, row in zip(years, values, strict=True)]
    with zipfile.ZipFile(root / "YearPredictionMSD.txt.zip", "w") as archive:
        archive.writestr("YearPredictionMSD.txt", "\n".join(lines) + "\n")
    file = datasets.File("YearPredictionMSD.txt.zip", url + "YearPredictionMSD.txt.zip", sha256)
    entry = datasets.find("year")._replace(files=(file,), rows=6)
    monkeypatch.setitem(datasets.DATASETS, "year", entry)
    return np.array(years), values


def test_year_over_http(served, tmp_path, monkeypatch):
    root, url = served
    monkeypatch.setenv("PARVI_DATA", str(tmp_path / "cache"))
    years, values = small_year(root, url, monkeypatch)
    with pytest.raises(DataError, match="is not in"):
        datasets.load("year")
    (path,) = datasets.fetch("year")
    assert path.parent == tmp_path / "cache"
    table = datasets.load("year")
    np.testing.assert_array_equal(table.targets, years)
    np.testing.assert_array_equal(table.features, values)
    # Fetched once: the second time nothing is asked of the server.
    (root / path.name).unlink()
    assert datasets.fetch("year") == [path]


def test_what_is_not_the_published_file_is_not_kept(served, tmp_path, monkeypatch):
    root, url = served
    monkeypatch.setenv("PARVI_DATA", str(tmp_path / "cache"))
    small_year(root, url, monkeypatch, sha256=hashlib.sha256(b"another").hexdigest())
    with pytest.raises(DataError, match="nothing was kept"):
        datasets.fetch("year")
    assert list((tmp_path / "cache").iterdir()) == []


def test_too_few_rows_are_refused(served, tmp_path, monkeypatch):
    root, url = served
    monkeypatch.setenv("PARVI_DATA", str(tmp_path / "cache"))
    small_year(root, url, monkeypatch)
    monkeypatch.setitem(datasets.DATASETS, "year", datasets.find("year")._replace(rows=7))
    datasets.fetch("year")
    with pytest.raises(DataError, match="6 rows of 90 features, and year has 7"):
        datasets.load("year")


def test_a_dead_server_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PARVI_DATA", str(tmp_path))
    file = datasets.File("x.txt", "http://127.0.0.1:9/x.txt", None)
    monkeypatch.setitem(datasets.DATASETS, "year", datasets.find("year")._replace(files=(file,)))
    with pytest.raises(DataError, match=r"could not be fetched.*127\.0\.0\.1:9"):
        datasets.fetch("year")


def test_standard_splits():
    splits = datasets.standard_splits(506, 3)
    for train, test in splits:
        assert len(train) == 455
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(506))
    # The first split is the first permutation after np.random.seed(1).
    np.random.seed(1)  # noqa: NPY002
    order = np.random.choice(range(506), 506, replace=False)  # noqa: NPY002
    np.testing.assert_array_equal(splits[0][1], order[455:])
    assert not np.array_equal(splits[0][0], splits[1][0])


def test_the_command_lists_and_fetches(served, tmp_path, monkeypatch):
    root, url = served
    monkeypatch.setenv("PARVI_DATA", str(tmp_path / "cache"))
    small_year(root, url, monkeypatch)
    runner = CliRunner()
    listed = runner.invoke(app, ["data"])
    assert listed.exit_code == 0
    assert "wine-white" in listed.output
    fetched = runner.invoke(app, ["data", "year"])
    assert fetched.exit_code == 0, fetched.output
    assert (tmp_path / "cache" / "YearPredictionMSD.txt.zip").is_file()
    unknown = runner.invoke(app, ["data", "iris"])
    assert unknown.exit_code == 1
    assert "no data set 'iris'" in unknown.output
