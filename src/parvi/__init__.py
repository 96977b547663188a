"""parvi: particle-based variational inference.

Give it a density known up to a constant; get back a set of particles that is a sample of it.
"""

from parvi import targets as targets
from parvi.fields.frame import Standardised as Standardised
from parvi.fields.frame import Whitened as Whitened
from parvi.fields.kernels import IMQ as IMQ
from parvi.fields.kernels import RBF as RBF
from parvi.fields.kernels import CallableKernel as CallableKernel
from parvi.fields.kernels import Fixed as Fixed
from parvi.fields.kernels import LinearKernel as LinearKernel
from parvi.fields.kernels import Median as Median
from parvi.fields.pfg.field import PFG as PFG
from parvi.fields.pfg.functions import MLP as MLP
from parvi.fields.pfg.functions import Linear as Linear
from parvi.fields.pfg.functions import Network as Network
from parvi.fields.pfg.functions import RandomFeatures as RandomFeatures
from parvi.fields.pfg.objective import Convex as Convex
from parvi.fields.pfg.objective import Exact as Exact
from parvi.fields.pfg.objective import ForwardMode as ForwardMode
from parvi.fields.pfg.objective import Hutchinson as Hutchinson
from parvi.fields.pfg.objective import Quadratic as Quadratic
from parvi.fields.pfg.preconditioners import Fisher as Fisher
from parvi.fields.pfg.preconditioners import FisherDiagonal as FisherDiagonal
from parvi.fields.pfg.preconditioners import Hessian as Hessian
from parvi.fields.pfg.preconditioners import Identity as Identity
from parvi.fields.pfg.preconditioners import InverseCovariance as InverseCovariance
from parvi.fields.pfg.preconditioners import Kronecker as Kronecker
from parvi.fields.pfg.preconditioners import RegressedHessian as RegressedHessian
from parvi.fields.pfg.solvers import GradientDescent as GradientDescent
from parvi.fields.pfg.solvers import HeldOutRidge as HeldOutRidge
from parvi.fields.pfg.solvers import Ridge as Ridge
from parvi.fields.svgd import SVGD as SVGD
from parvi.results import metrics as metrics
from parvi.results.result import Result as Result
from parvi.results.result import load as load
from parvi.run.sample import sample as sample
from parvi.samplers.flow import Flow as Flow
from parvi.samplers.ready import pfg as pfg
from parvi.samplers.ready import pfg_algorithm_1 as pfg_algorithm_1
from parvi.samplers.ready import svgd as svgd
from parvi.samplers.steppers import Constant as Constant
from parvi.samplers.steppers import Curvature as Curvature
from parvi.samplers.steppers import Decaying as Decaying
from parvi.samplers.steppers import LineSearch as LineSearch
from parvi.samplers.steppers import Optax as Optax
from parvi.samplers.steppers import TrustRegion as TrustRegion
from parvi.samplers.stopping import KLRate as KLRate
from parvi.samplers.stopping import Never as Never
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
