"""Models that ``parvi.sample`` takes as they are, and functions that are not models."""

import functools
import subprocess
import sys

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import numpyro.handlers
import pytest

import parvi
from models.fronts import EFFECTS, ERRORS, pymc_schools, schools
from parvi.run.initial import as_target


def free():
    numpyro.sample("x", dist.Normal())


@pytest.mark.parametrize(
    "model",
    [
        pymc_schools,
        lambda: free,
        lambda: functools.partial(schools, EFFECTS, ERRORS),
        lambda: numpyro.handlers.condition(free, {}),
    ],
    ids=["pymc", "numpyro", "partial", "handler"],
)
def test_models_are_recognised(model):
    assert as_target(model()).layout.model.front in ("PyMC", "NumPyro")


@pytest.mark.parametrize(
    "density",
    [lambda x: -jnp.sum(x**2), lambda x=None: -jnp.sum(x**2), lambda *x: -jnp.sum(x[0] ** 2)],
    ids=["one", "default", "any"],
)
def test_a_log_density_is_none(density):
    assert as_target(density).log_density is density


def test_no_library_is_imported_before_it_is_used():
    code = (
        "import sys, parvi; heavy = {'numpyro', 'pymc', 'pytensor', 'bridgestan', 'bambi', "
        "'tensorflow_probability', 'scipy.stats', 'scipy.spatial'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_missing_library_is_said_in_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "bridgestan", None)
    with pytest.raises(ImportError, match=r"pip install 'parvi\[stan\]'"):
        parvi.from_stan("model.stan")
