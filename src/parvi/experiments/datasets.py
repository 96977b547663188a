"""Finds, fetches, checks and reads the data sets of the paper.

Files are looked up in the folder that the environment variable ``PARVI_DATA`` names (or its
subfolder ``data``), else in the user's cache. Nothing is downloaded unless ``fetch`` is called.
"""

import gzip
import hashlib
import os
import pathlib
import zipfile

import numpy as np
import platformdirs

from parvi.experiments.data_sources import DATASETS, Dataset, File, Table

ENVIRONMENT = "PARVI_DATA"


class DataError(Exception):
    """A data file is missing, truncated or altered; the message says how to get it."""


def folder() -> pathlib.Path:
    """The folder in which data files are looked up and to which they are fetched."""
    chosen = os.environ.get(ENVIRONMENT)
    return pathlib.Path(chosen) if chosen else platformdirs.user_cache_path("parvi")


def load(name: str) -> Table:
    """Read a data set; raises ``DataError`` if it is missing or differs from the published one."""
    dataset = find(name)
    paths = [_verified(dataset, file) for file in dataset.files]
    where, remedy = ", ".join(map(str, paths)), _remedy(dataset)
    try:
        table = dataset.parse(paths)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, IndexError, KeyError) as error:
        raise DataError(f"{where} cannot be read as {name}: {error}. {remedy}") from error
    shape = (dataset.rows, dataset.columns)
    if table.features.shape != shape or table.targets.shape != shape[:1]:
        rows, columns = table.features.shape
        raise DataError(
            f"{where} has {rows} rows of {columns} features, and {name} has {shape[0]} of "
            f"{shape[1]}. {remedy}"
        )
    if not (np.isfinite(table.features).all() and np.isfinite(table.targets).all()):
        raise DataError(f"{name} has values that are not finite. {remedy}")
    return table


def fetch(name: str, progress: bool = False) -> list[pathlib.Path]:
    """Download the missing files of a data set, check them, and return all paths."""
    return [_place(file) or _download(name, file, progress) for file in find(name).files]


def is_there(name: str) -> bool:
    """Whether all files of a data set are there; their content is not checked."""
    return all(_place(file) is not None for file in find(name).files)


def find(name: str) -> Dataset:
    """The entry of a data set; raises ``ValueError`` with all names if there is none."""
    if name not in DATASETS:
        raise ValueError(f"There is no data set {name!r}; choose one of {', '.join(DATASETS)}.")
    return DATASETS[name]


def standard_splits(num_rows: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The train and test rows of the UCI benchmark (Hernandez-Lobato and Adams 2015).

    One seed serves the data set; each split is a permutation, with nine tenths for training.
    """
    # The published splits come from NumPy's old generator.
    rng = np.random.RandomState(1)
    orders = [rng.choice(range(num_rows), num_rows, replace=False) for _ in range(count)]
    cut = round(0.9 * num_rows)
    return [(order[:cut], order[cut:]) for order in orders]


def _place(file: File) -> pathlib.Path | None:
    places = (folder() / file.name, folder() / "data" / file.name)
    return next((place for place in places if place.is_file()), None)


def _remedy(dataset: Dataset) -> str:
    names = ", ".join(file.name for file in dataset.files)
    return (
        f"`parvi data {dataset.name}` fetches it; or put {names} into {folder()}, or point "
        f"{ENVIRONMENT} at a folder that has it."
    )


def _verified(dataset: Dataset, file: File) -> pathlib.Path:
    place = _place(file)
    if place is None:
        raise DataError(
            f"{file.name} is not in {folder()}: {dataset.name} needs it, from {file.url}. "
            f"{_remedy(dataset)}"
        )
    problem = _difference(file, place)
    if problem:
        raise DataError(f"{place} {problem}: truncated or altered. {_remedy(dataset)}")
    return place


def _difference(file: File, place: pathlib.Path) -> str | None:
    """The difference between a file and the published one, or None."""
    if file.sha256 is None and file.content is None:
        return None
    with place.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found == file.sha256:
        return None
    if file.content is None:
        return f"has sha256 {found}, expected {file.sha256}"
    try:
        with gzip.open(place, "rb") as handle:
            found = hashlib.file_digest(handle, "sha256").hexdigest()
    except (OSError, EOFError) as error:
        return f"is not a complete gzip file ({error})"
    if found == file.content:
        return None
    return f"holds data of sha256 {found}, expected {file.content}"


def _download(name: str, file: File, progress: bool) -> pathlib.Path:
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            f"Fetching data needs pooch: pip install 'parvi[data]'; or point {ENVIRONMENT} at a "
            "folder that has the files."
        ) from error
    root = folder()
    pooch.get_logger().setLevel("ERROR")
    known = None if file.sha256 is None else f"sha256:{file.sha256}"
    problems = []
    for url in filter(None, (file.url, file.mirror)):
        try:
            root.mkdir(parents=True, exist_ok=True)
            path = pooch.retrieve(url, known, fname=file.name, path=root, progressbar=progress)
            return pathlib.Path(path)
        except (ValueError, OSError) as error:
            problems.append(f"{url}: {error}")
    raise DataError(
        f"{file.name} of {name} could not be fetched, and nothing was kept. {' '.join(problems)} "
        f"Get it elsewhere and put it into {root}, or point {ENVIRONMENT} at a folder that has it."
    )
