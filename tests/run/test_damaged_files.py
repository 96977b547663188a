"""Files that were damaged, and paths that hold something else."""

import contextlib
import json
import os
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import parvi
from parvi.run.files import replaced
from run.small import normal, quick, start


class TestFiles:
    """What stands at a path stays what it is."""

    def test_links_are_followed_and_modes_kept(self, tmp_path):
        result = quick()
        real, link = tmp_path / "real.npz", tmp_path / "link.npz"
        real.write_bytes(b"old")
        real.chmod(0o640)
        link.symlink_to(real)
        result.save(link)
        assert link.is_symlink()
        assert stat.S_IMODE(real.stat().st_mode) == 0o640
        np.testing.assert_array_equal(parvi.load(real).particles, result.particles)
        old = os.umask(0o027)
        try:
            result.save(tmp_path / "new.npz")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "new.npz").stat().st_mode) == 0o640

    def test_pipes_and_folders_are_refused(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path / "pipe", tmp_path):
            with pytest.raises(ValueError, match="not a file that can be replaced"):
                quick().save(path)
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)

    def test_what_a_killed_process_left_is_removed(self, tmp_path):
        path = tmp_path / ("x" * 240 + ".npz")
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        left = tmp_path / f".{path.name[:100]}.parvi-{gone.pid}-abc"
        left.write_bytes(b"half")
        others = tmp_path / f".{path.name[:100]}.parvi-{os.getpid()}-abc"
        others.write_bytes(b"another thread's")
        with replaced(path) as file:
            file.write(b"whole")
        assert not left.exists()
        assert others.exists()
        assert path.read_bytes() == b"whole"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run.npz"
    quick(init={"a": start(), "b": start(32, 1)}, log_density=lambda p: normal(p["a"])).save(path)
    return path


def changed(saved, tmp_path, change):
    """The file with its arrays changed, and a record that may be."""
    with np.load(saved) as file:
        arrays = {name: file[name] for name in file.files}
    record = json.loads(arrays["record"].tobytes())
    change(arrays, record)
    arrays["record"] = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    np.savez(tmp_path / "changed.npz", **arrays)
    return tmp_path / "changed.npz"


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, record: arrays.pop("log_density"),
        lambda arrays, record: arrays.update(log_density=np.zeros(3)),
        lambda arrays, record: arrays.pop("particles/0"),
        lambda arrays, record: arrays.update({"particles/0": np.arange(32)}),
        lambda arrays, record: arrays.update({"history/kl_rate": np.zeros(1)}),
        lambda arrays, record: record.update(structure={"set": ["leaf", "leaf"]}),
        lambda arrays, record: record.update(structure={"dict": [["a", "leaf"]]}),
        lambda arrays, record: record.update(structure=7),
        lambda arrays, record: record.pop("sampler"),
        lambda arrays, record: record.update(seconds="long"),
    ],
)
def test_damaged_results_are_one_error(saved, tmp_path, change):
    with pytest.raises(ValueError, match="is not a result of parvi"):
        parvi.load(changed(saved, tmp_path, change))


def test_damaged_files_are_one_error(saved, tmp_path):
    whole = saved.read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "bad.npz"
    for _ in range(60):
        bits = bytearray(whole)
        for place in rng.integers(0, len(bits), size=8):
            bits[place] ^= 1 << rng.integers(8)
        path.write_bytes(bits)
        # Bits of an array's numbers may change and still be numbers.
        with contextlib.suppress(ValueError):
            parvi.load(path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ValueError, match="no npz file"):
        parvi.load(tmp_path / "array.npy")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("record.npy", b"0" * (1 << 26))
    with pytest.raises(ValueError, match="would unpack to"):
        parvi.load(path)
    with pytest.raises(ValueError, match="like has 1 arrays"):
        parvi.load(saved, like=np.zeros(2))
