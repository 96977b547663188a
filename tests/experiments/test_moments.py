"""Moments along a run: every record is there, and none is claimed after a failure."""

import numpy as np

from parvi.experiments.moments import exact_normal, moments_along
from parvi.fields.pfg.closed_form import Ridge
from parvi.fields.pfg.field import PFG
from parvi.fields.pfg.functions import Linear
from parvi.fields.pfg.preconditioners import Identity
from parvi.samplers.flow import Flow
from parvi.steppers import Constant
from parvi.targets.gaussian import gaussian


def flow(step_size):
    return Flow(PFG(Linear(), Identity(), Ridge(0.0)), Constant(step_size))


def test_the_mean_of_a_gaussian_falls_by_its_step_at_every_one():
    mean, step_size, every = np.array([3.0, -1.0]), 0.1, 4
    start = exact_normal(50, 2)
    path = moments_along(flow(step_size), gaussian(mean, np.eye(2)), start, 20, every)
    times = every * np.arange(21)
    # m* - m_t shrinks by 1 - eta at each step: linear PFG with H = I, in closed form. 80 steps in
    # float64; the flow's own stopping rule would have ended the run after about 55 of them.
    expected = mean * (1 - (1 - step_size) ** times)[:, None]
    np.testing.assert_allclose(path.means, expected, atol=1e-10)
    np.testing.assert_allclose(path.covariances[0], np.eye(2), atol=1e-12)
    np.testing.assert_allclose(path.particles.mean(axis=0), path.means[-1], atol=1e-12)


def test_after_a_failure_there_are_no_moments():
    start = exact_normal(50, 2)
    # Steps of 1e3 in units of the curvature multiply the mean's error by 999 each.
    path = moments_along(flow(1e3), gaussian(np.array([3.0, -1.0]), np.eye(2)), start, 5, 10)
    assert np.isfinite(path.means[0]).all()
    assert np.isnan(path.means[-1]).all()
    assert np.isnan(path.covariances[-1]).all()
    assert np.isfinite(path.particles).all()
