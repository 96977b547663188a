"""Models that ``parvi.sample`` takes as they are."""

import inspect
import sys
from typing import Any

from parvi.models.from_numpyro import from_numpyro
from parvi.models.from_pymc import from_bambi, from_pymc
from parvi.models.from_stan import from_stan
from parvi.models.from_tfp import from_tfp
from parvi.targets.recognise import recognises


@recognises
def _pymc(thing: Any):
    pymc = sys.modules.get("pymc")
    # A module that is still being imported does not have its classes yet.
    kind = getattr(pymc, "Model", None)
    return from_pymc(thing) if kind is not None and isinstance(thing, kind) else None


@recognises
def _bambi(thing: Any):
    kind = getattr(sys.modules.get("bambi"), "Model", None)
    return from_bambi(thing) if kind is not None and isinstance(thing, kind) else None


@recognises
def _stan(thing: Any):
    kind = getattr(sys.modules.get("bridgestan"), "StanModel", None)
    return from_stan(thing) if kind is not None and isinstance(thing, kind) else None


@recognises
def _tfp(thing: Any):
    substrate = sys.modules.get("tensorflow_probability.substrates.jax")
    if substrate is None:
        return None
    pinned = substrate.experimental.distributions.JointDistributionPinned
    kinds = (substrate.distributions.JointDistribution, pinned)
    return from_tfp(thing) if isinstance(thing, kinds) else None


@recognises
def _numpyro(thing: Any):
    """A function that takes no arguments: a log density takes one."""
    if "numpyro" not in sys.modules or not callable(thing):
        return None
    return from_numpyro(thing) if _takes_nothing(thing) else None


def _takes_nothing(function: Any) -> bool:
    # NumPyro's handlers take any arguments, and pass them on to the model inside.
    inner = getattr(sys.modules.get("numpyro.primitives"), "Messenger", ())
    while isinstance(function, inner) and getattr(function, "fn", None) is not None:
        function = function.fn
    try:
        signature = inspect.signature(function)
        signature.bind()
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None)
    except TypeError:
        return True
    return False
