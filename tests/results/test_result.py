"""Results: tables, ArviZ, and files."""

import errno
import io
import os
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import parvi

# One process: its tests share compiled programs.
pytestmark = pytest.mark.xdist_group("result")


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


@pytest.fixture(scope="module")
def result():
    target = parvi.Target(
        lambda p: -0.5 * jnp.sum(p["x"] ** 2) - p["s"], constraints={"s": parvi.Positive()}
    )
    rng = np.random.default_rng(0)
    init = {"x": rng.normal(size=(50, 2, 2)), "s": np.exp(rng.normal(size=50))}
    return parvi.sample(target, init, num_steps=12)


def test_summary_is_that_of_the_particles_without_diagnostics_of_chains(result):
    table = result.summary()
    assert list(table.index) == ["s", "x[0,0]", "x[0,1]", "x[1,0]", "x[1,1]"]
    np.testing.assert_allclose(table.loc["s", "mean"], result.particles["s"].mean())
    np.testing.assert_allclose(table.loc["x[1,0]", "sd"], result.particles["x"][:, 1, 0].std())
    np.testing.assert_allclose(table.loc["s", "50%"], np.median(result.particles["s"]))
    assert not {"r_hat", "ess_bulk", "ess_tail"} & set(table.columns)
    assert "12 steps" in repr(result)


def test_history_has_one_entry_a_step(result):
    known = {"stage", "kl_rate", "stein_ratio", "step_size", "gradients", "accepted"}
    assert known <= set(result.history)
    assert {len(column) for column in result.history.values()} == {12}
    assert result.num_gradients == 50 + result.history["gradients"].sum()


def test_a_result_can_be_run_again(result):
    again = parvi.sample(result.target, **result.settings._asdict())
    for name in ("x", "s"):
        np.testing.assert_array_equal(again.particles[name], result.particles[name])


def test_results_compare_hash_and_print_without_raising(result):
    assert result == result
    assert result != 3
    assert {result: 1}[result] == 1
    assert str(result.status) == f"{result.status}" == "MAX_STEPS"
    assert bool(result.check()) == result.check().ok


def test_arviz(result):
    data = result.to_arviz()
    assert dict(data.posterior.sizes) == {"chain": 1, "draw": 50, "x_dim_0": 2, "x_dim_1": 2}
    np.testing.assert_array_equal(data.posterior["s"].values[0], result.particles["s"])
    np.testing.assert_array_equal(data.sample_stats["lp"].values[0], result.log_density)
    assert data.posterior.attrs["inference_library"] == "parvi"


def test_saved_and_loaded_is_the_same(result, tmp_path):
    path = tmp_path / "run.parvi"
    result.save(path)
    again = parvi.load(path)
    assert again.status == result.status
    assert again.names == result.names
    assert again.timing == result.timing
    assert (again.sampler, again.key) == (result.sampler, result.key)
    for name in ("x", "s"):
        np.testing.assert_array_equal(again.particles[name], result.particles[name])
        assert again.particles[name].dtype == result.particles[name].dtype
    assert set(again.history) == set(result.history)
    for name, column in result.history.items():
        np.testing.assert_array_equal(again.history[name], column)
    assert os.listdir(tmp_path) == ["run.parvi"]


@pytest.mark.parametrize("shape", ["tuple", "list", "custom"])
def test_structures_survive(shape, tmp_path):
    rng = np.random.default_rng(0)
    parts = (rng.normal(size=(8, 2)), {"b": rng.normal(size=8)})
    init = {"tuple": parts, "list": list(parts), "custom": Pair(parts[0], parts[1]["b"])}[shape]

    def log_density(p):
        right = p[1]["b"] if shape != "custom" else p.right
        return -0.5 * jnp.sum(p[0] ** 2) - 0.5 * right**2

    result = parvi.sample(log_density, init, num_steps=2)
    assert type(result.particles) is type(init)
    result.save(tmp_path / "file")
    again = parvi.load(tmp_path / "file")
    if shape == "custom":
        assert set(again.particles) == {"left", "right"}
        again = parvi.load(tmp_path / "file", like=init)
        assert isinstance(again.particles, Pair)
    else:
        assert type(again.particles) is type(init)
    np.testing.assert_array_equal(again.particles[0], result.particles[0])


def test_unknown_files_are_refused(result, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"not a result")
    with pytest.raises(ValueError, match="not a result of parvi"):
        parvi.load(path)
    with open(path, "wb") as file:
        np.savez(file, numbers=np.arange(3))
    with pytest.raises(ValueError, match="not a result of parvi"):
        parvi.load(path)
    result.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cut short"):
        parvi.load(path)
    for old, new, words in (
        (b'"status": "MAX_STEPS"', b'"status": "SPLENDID!"', "unknown status 'SPLENDID!'"),
        (b"parvi-result-1", b"parvi-result-9", "format 'parvi-result-9'"),
    ):
        path.write_bytes(_edited(whole, old, new))
        with pytest.raises(ValueError, match=words):
            parvi.load(path)
    with pytest.raises(FileNotFoundError):
        parvi.load(tmp_path / "missing")


def _edited(whole, old, new):
    """The same file with another record."""
    with np.load(io.BytesIO(whole)) as file:
        arrays = {name: file[name] for name in file.files}
    text = arrays["record"].tobytes()
    assert old in text
    arrays["record"] = np.frombuffer(text.replace(old, new), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_pickles_are_never_loaded(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        np.savez(file, record=np.array([{"an": "object"}], dtype=object))
    with pytest.raises(ValueError, match="not a result of parvi"):
        parvi.load(tmp_path / "file")


def test_full_disk_leaves_the_old_file(result, tmp_path, monkeypatch):
    path = tmp_path / "file"
    result.save(path)
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        result.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["file"]
