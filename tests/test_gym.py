"""The benchmark of Inference Gym's models: its errors, its page, and the models where they are."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

gym = pytest.importorskip("benchmarks.gym", reason="needs a clone of the repository")
errors = pytest.importorskip("benchmarks.errors", reason="needs a clone of the repository")


def test_independent_draws_have_an_error_of_one():
    mean, sd = np.array([1.0, -2.0, 0.0] * 100), np.array([0.1, 1.0, 10.0] * 100)
    draws = mean + sd * np.random.default_rng(0).normal(size=(512, 300))
    found = errors.moment_errors(draws, mean, sd)
    # Four standard errors of a root mean square over 300 columns are 16 %.
    assert 0.84 < found["mean_error"] < 1.16
    assert 0.84 < found["square_error"] < 1.16
    shifted = errors.moment_errors(draws + 0.5 * sd, mean, sd)
    # Half a standard deviation is 11.3 times the error of 512 draws.
    np.testing.assert_allclose(shifted["mean_error"], 11.3, rtol=0.05)
    narrow = errors.moment_errors(mean + 0.5 * (draws - mean), mean, sd)
    # The variance is a quarter: an error of 3 / 4, times sqrt(512 / 2).
    np.testing.assert_allclose(narrow["square_error"], 12.0, rtol=0.05)
    assert narrow["sds"][1] < 0.6


def test_the_page_has_the_cells_that_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(gym, "STORE", tmp_path)
    row = {"mean_error": 0.5, "worst": 1.5, "square_error": 0.25, "sds": [0.9, 1.1]}
    row |= {"gradients": 100.0, "cold": 3.0, "warm": 1.0}
    ours = row | {"status": "CONVERGED", "ok": True}
    for seed, error in enumerate((0.5, 0.7, 0.6)):
        path = tmp_path / f"EightSchools.pfg.{seed}.json"
        path.write_text(json.dumps(ours | {"mean_error": error}))
    peer = row | {"mean_error_all": 0.2, "gradients": None}
    (tmp_path / "EightSchools.nuts-numpyro.0.json").write_text(json.dumps(peer))
    lines = [line for line in gym.page().splitlines() if line.startswith("| Eight")]
    assert len(lines) == 2
    verdict = ", ".join(["CONVERGED (yes)"] * 3)
    assert (
        f"| pfg | 3 | {verdict} | 0.60 | 1.50 | 0.25 | 0.90 to 1.10 | 100 | 3.0 | 1.0 |" in lines[0]
    )
    assert "| nuts-numpyro | 1 | - | 0.50 (0.20) |" in lines[1]
    assert "| - | 3.0 | 1.0 |" in lines[1]


def test_unknown_names_are_refused():
    with pytest.raises(SystemExit, match="NoSuchModel"):
        gym.main(None, ["NoSuchModel"])


def test_every_model_has_a_density_and_a_truth():
    pytest.importorskip("inference_gym")
    from benchmarks.gym_models import load

    problem = load("EightSchools")
    assert problem.dim == 10
    x = jax.random.normal(jax.random.key(0), (4, problem.dim))
    value, slope = jax.vmap(jax.value_and_grad(problem.log_density))(x)
    assert bool(jnp.all(jnp.isfinite(value)))
    assert bool(jnp.all(jnp.isfinite(slope)))
    assert problem.columns(np.asarray(x)).shape == (4, len(problem.mean))
    assert (problem.sd > 0).all()
