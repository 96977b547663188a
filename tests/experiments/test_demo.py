"""The front door: what the demonstration measures and draws."""

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import parvi
from parvi.cli import app
from parvi.experiments import demo
from parvi.models.logistic import logistic_regression


@pytest.mark.slow
def test_quality_of_independent_draws_is_one_on_average():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(4000, 5)) * 3 + 1
    qualities = [demo.quality(rng.normal(size=(64, 5)) * 3 + 1, truth) for _ in range(50)]
    # 50 sets of energy ratios with a spread of about 0.3: five standard errors are 0.2.
    assert abs(np.mean([q.energy_ratio for q in qualities]) - 1) < 0.2
    # The root mean square of five means of 64 draws is 1/8; its spread over sets is 0.04.
    assert abs(np.mean([q.mean_error for q in qualities]) - 0.125) < 0.03
    shifted = demo.quality(rng.normal(size=(64, 5)) * 1.5 + 4, truth)
    assert shifted.mean_error > 0.9
    assert shifted.worst_sd_ratio < 0.7
    assert shifted.energy_ratio > 10


@pytest.mark.slow
def test_pfg_beats_independent_draws_and_svgd_collapses(tmp_path):
    """A small version of ``parvi demo``; 600 NUTS draws are enough to tell factors of two."""
    done = demo.demonstrate(num_particles=256, num_truth=1200)
    independent = done.qualities["256 i.i.d. draws"]
    pfg, svgd = done.qualities["PFG"], done.qualities["SVGD"]
    assert pfg.mean_error < independent.mean_error
    assert pfg.energy_ratio < 0.8 < independent.energy_ratio
    assert svgd.worst_sd_ratio < 0.7
    assert done.runs["PFG"].status == parvi.Status.CONVERGED
    demo.draw(done, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_logistic_regression_against_plain_numpy():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(20, 3)), rng.integers(0, 2, size=20)
    weights = rng.normal(size=3)
    probability = 1 / (1 + np.exp(-features @ weights))
    likelihood = np.sum(np.log(np.where(labels == 1, probability, 1 - probability)))
    expected = likelihood - 0.5 * np.sum((weights / 2) ** 2)
    with jax.enable_x64(True):
        for signs in (labels, 2 * labels - 1, labels > 0):
            value = logistic_regression(features, signs, prior_sd=2.0).full()(weights)
            np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_command_line_refuses_a_bad_path_before_working():
    result = CliRunner().invoke(app, ["demo", "--output", "nowhere/at/all.png"])
    assert result.exit_code == 2
    assert "does not exist" in result.output
    assert CliRunner().invoke(app, ["demo", "--output", "demo.txt"]).exit_code == 2
    assert parvi.__version__ in CliRunner().invoke(app, ["--version"]).output
