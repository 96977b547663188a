"""parvi: particle-based variational inference.

Give it a density known up to a constant; get back a set of particles that is a sample of it.
Parts to build samplers from are in ``parvi.fields``, ``parvi.kernels``, ``parvi.preconditioners``,
``parvi.functions``, ``parvi.steppers`` and ``parvi.stopping``; estimators with scikit-learn's
conventions are in ``parvi.estimators``.
"""

import importlib

from parvi import constraints as constraints
from parvi import fields as fields
from parvi import functions as functions
from parvi import kernels as kernels
from parvi import preconditioners as preconditioners
from parvi import steppers as steppers
from parvi import stopping as stopping
from parvi.calibration.calibrate import calibrate as calibrate
from parvi.calibration.model import Model as Model
from parvi.models.from_numpyro import from_numpyro as from_numpyro
from parvi.models.from_pymc import from_bambi as from_bambi
from parvi.models.from_pymc import from_pymc as from_pymc
from parvi.models.from_stan import from_stan as from_stan
from parvi.models.from_tfp import from_tfp as from_tfp
from parvi.results import metrics as metrics
from parvi.results import plots as plots
from parvi.results.loading import load as load
from parvi.results.result import Result as Result
from parvi.samplers.default import pfg as pfg
from parvi.samplers.flow import Flow as Flow
from parvi.samplers.langevin import langevin as langevin
from parvi.samplers.langevin import mala as mala
from parvi.samplers.nuts import nuts as nuts
from parvi.samplers.psgld import psgld as psgld
from parvi.samplers.ready import grassmann_svgd as grassmann_svgd
from parvi.samplers.ready import jko_icnn as jko_icnn
from parvi.samplers.ready import jko_variational as jko_variational
from parvi.samplers.ready import matrix_svgd as matrix_svgd
from parvi.samplers.ready import neural_svgd as neural_svgd
from parvi.samplers.ready import pfg_algorithm_1 as pfg_algorithm_1
from parvi.samplers.ready import projected_svn as projected_svn
from parvi.samplers.ready import sliced_svgd as sliced_svgd
from parvi.samplers.ready import stein_neural_sampler as stein_neural_sampler
from parvi.samplers.ready import svgd as svgd
from parvi.samplers.ready import svn as svn
from parvi.samplers.sequence import Sequence as Sequence
from parvi.samplers.sequence import Stage as Stage
from parvi.samplers.sgld import sgld as sgld
from parvi.sampling import resume as resume
from parvi.sampling import sample as sample
from parvi.status import NotAtRestWarning as NotAtRestWarning
from parvi.status import SamplingError as SamplingError
from parvi.status import SamplingInterrupted as SamplingInterrupted
from parvi.status import Status as Status
from parvi.targets.constraints import Interval as Interval
from parvi.targets.constraints import Ordered as Ordered
from parvi.targets.constraints import Positive as Positive
from parvi.targets.constraints import Simplex as Simplex
from parvi.targets.minibatch import MiniBatch as MiniBatch
from parvi.targets.target import Target as Target

__version__ = "0.1.0"

# Internal modules. Importing them puts their names here too.
_INNER = frozenset(
    {
        "cloud",
        "counted",
        "counting",
        "evaluation",
        "geometry",
        "interface",
        "kept",
        "results",
        "run",
    }
)
_INNER |= {
    "importlib",
    "samplers",
    "sampling",
    "status",
    "targets",
    "models",
    "calibration",
    "experiments",
    "cli",
}


def __getattr__(name: str) -> object:
    # scikit-learn is an extra, and is imported when it is used.
    if name == "estimators":
        return importlib.import_module("parvi.estimators")
    raise AttributeError(f"module 'parvi' has no attribute {name!r}")


def __dir__() -> list[str]:
    names = globals().keys() | {"estimators"}
    return sorted(name for name in names if name not in _INNER and name[:1] != "_")
