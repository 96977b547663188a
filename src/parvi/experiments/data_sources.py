"""The paper's data sets: publishers' addresses, checksums, licences, and parsers."""

import gzip
import pathlib
import zipfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_MNIST = "http://yann.lecun.com/exdb/mnist/"
# The publisher's address is often unavailable.
_MNIST_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


class Table(NamedTuple):
    """Features and targets; the first ``num_train`` rows are the publisher's training set."""

    features: Float[np.ndarray, "rows d"]
    targets: Float[np.ndarray, " rows"]
    num_train: int | None = None


class File(NamedTuple):
    """A file as published: its name, address and sha256.

    ``content`` is the sha256 of a gzip file's content, for files whose headers differ between
    copies. If nobody has recorded a checksum, both are None and only the rows are counted.
    """

    name: str
    url: str
    sha256: str | None
    content: str | None = None
    mirror: str | None = None


class Dataset(NamedTuple):
    """The files, licence, size and parser of one data set."""

    name: str
    files: tuple[File, ...]
    licence: str
    rows: int
    columns: int
    parse: Callable[[list[pathlib.Path]], Table]


def _numbers(path, separator, header=None) -> np.ndarray:
    return pd.read_csv(path, sep=separator, header=header).to_numpy(np.float64)


def _sonar(paths):
    frame = pd.read_csv(paths[0], header=None)
    labels = frame.iloc[:, 60]
    if set(labels) != {"R", "M"}:
        raise ValueError(f"its labels are {sorted(set(labels))}, expected R and M")
    return Table(frame.iloc[:, :60].to_numpy(np.float64), (labels == "R").to_numpy(np.float64))


def _last(separator, header=None, label=None):
    """Rows whose last column is the target; with ``label``, the target is whether it equals it."""

    def parse(paths):
        values = _numbers(paths[0], separator, header)
        target = values[:, -1] if label is None else (values[:, -1] == label).astype(np.float64)
        return Table(values[:, :-1], target)

    return parse


def _excel(columns, target):
    """The first sheet without its header, empty rows and extra columns."""

    def parse(paths):
        frame = pd.read_excel(paths[0], sheet_name=0, header=0, engine="calamine")
        frame = frame.iloc[:, : max(columns, target + 1)].dropna(how="all")
        values = frame.to_numpy(np.float64)
        return Table(values[:, :columns], values[:, target])

    return parse


def _protein(paths):
    values = _numbers(paths[0], ",", header=0)
    return Table(values[:, 1:], values[:, 0])


def _year(paths):
    with zipfile.ZipFile(paths[0]) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(".txt")]
        with archive.open(member) as handle:
            values = _numbers(handle, ",")
    return Table(values[:, 1:], values[:, 0], num_train=463_715)


def _mnist(paths):
    images = np.concatenate([_idx(paths[i], 2051) for i in (0, 2)])
    labels = np.concatenate([_idx(paths[i], 2049) for i in (1, 3)])
    return Table(images.reshape(len(images), -1) / 255.0, labels.astype(np.float64), 60_000)


def _idx(path, magic) -> np.ndarray:
    """The array in a gzipped IDX file of bytes."""
    with gzip.open(path, "rb") as handle:
        content = handle.read()
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise ValueError(f"{path} begins with {found}, expected {magic}")
    num_axes = magic % 256
    shape = np.frombuffer(content, ">i4", num_axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * num_axes).reshape(shape)


# Public projects have recorded these checksums of the publishers' files, and of the content of one.
# No record was found for Year, so its rows are counted instead.
_SHA256 = {
    "sonar.all-data": "e90434cdbf00fcf93ffa911fe447ae25606979658e60f1d32e155c3b5240234d",
    "australian.dat": "3abe5af151afa50b999a9ba21cbc884e80d80a4050b716cf88b34a2e6ecb731c",
    "german.data-numeric": "2752b044394958ab6dd193a0b56ca0f0b3a2d8bc7cb8c008e35a5e84bbec02f8",
    "covtype.data.gz": "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
    "in covtype.data.gz": "0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
    "housing.data": "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
    "Concrete_Data.xls": "710076c66b9ca3f8050e7942f3dcbdbe04013534daeb0077ffd3079a52d8e0c4",
    "ENB2012_data.xlsx": "0089fcffc1415e41e2ff63730cca5280efe54fc43d722dfde1b0aaa808e35dc4",
    "CASP.csv": "4277cfcb4e91a181746cbc654f001b57951c9e6a80f4f795fdb5c807e0848f40",
    "winequality-red.csv": "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
    "winequality-white.csv": "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
}
_MNIST_SHA256 = {
    "train-images-idx3": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


def _uci(name, path, rows, columns, parse, licence="CC BY 4.0"):
    file = path.rsplit("/", 1)[-1]
    entry = File(file, _UCI + path, _SHA256.get(file), _SHA256.get(f"in {file}"))
    return Dataset(name, (entry,), licence, rows, columns, parse)


def _mnist_file(stem, sha256):
    name = f"{stem}-ubyte.gz"
    return File(name, _MNIST + name, sha256, mirror=_MNIST_MIRROR + name)


_STATLIB = "none stated (StatLib)"
_ENTRIES = (
    _uci("sonar", "undocumented/connectionist-bench/sonar/sonar.all-data", 208, 60, _sonar),
    _uci("australian", "statlog/australian/australian.dat", 690, 14, _last(" ", label=1)),
    _uci("german", "statlog/german/german.data-numeric", 1000, 24, _last(r"\s+", label=1)),
    _uci("covertype", "covtype/covtype.data.gz", 581_012, 54, _last(",", label=2)),
    _uci("boston", "housing/housing.data", 506, 13, _last(r"\s+"), licence=_STATLIB),
    _uci("concrete", "concrete/compressive/Concrete_Data.xls", 1030, 8, _excel(8, 8)),
    _uci("energy", "00242/ENB2012_data.xlsx", 768, 8, _excel(8, 8)),
    _uci("protein", "00265/CASP.csv", 45_730, 9, _protein),
    _uci("wine-red", "wine-quality/winequality-red.csv", 1599, 11, _last(";", header=0)),
    _uci("wine-white", "wine-quality/winequality-white.csv", 4898, 11, _last(";", header=0)),
    _uci("year", "00203/YearPredictionMSD.txt.zip", 515_345, 90, _year),
    Dataset(
        "mnist",
        tuple(_mnist_file(*known) for known in _MNIST_SHA256.items()),
        "CC BY-SA 3.0 (as usually given)",
        70_000,
        784,
        _mnist,
    ),
)
DATASETS: dict[str, Dataset] = {entry.name: entry for entry in _ENTRIES}
