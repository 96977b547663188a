"""Fields, which turn particles and scores into a velocity, and the parts of PFG.

A field and a stepper make a sampler, ``parvi.Flow(field, stepper)``. Kernels, preconditioners and
function classes have modules of their own: ``parvi.kernels``, ``parvi.preconditioners`` and
``parvi.functions``.
"""

from parvi.fields.clipped import Clipped as Clipped
from parvi.fields.framed import Standardised as Standardised
from parvi.fields.framed import WhereTold as WhereTold
from parvi.fields.framed import Whitened as Whitened
from parvi.fields.grassmann_svgd import GrassmannSVGD as GrassmannSVGD
from parvi.fields.icnn import ICNN as ICNN
from parvi.fields.jko_icnn import JKOICNN as JKOICNN
from parvi.fields.jko_variational import JKOVariational as JKOVariational
from parvi.fields.matrix_svgd import MatrixSVGD as MatrixSVGD
from parvi.fields.matrix_svgd import PreconditionerMixture as PreconditionerMixture
from parvi.fields.matrix_svgd import SharedPreconditioner as SharedPreconditioner
from parvi.fields.matrix_svgd import UnitMean as UnitMean
from parvi.fields.pfg.closed_form import HeldOutRidge as HeldOutRidge
from parvi.fields.pfg.closed_form import Irrotational as Irrotational
from parvi.fields.pfg.closed_form import Ridge as Ridge
from parvi.fields.pfg.descent import GradientDescent as GradientDescent
from parvi.fields.pfg.descent import LargestEigenvalue as LargestEigenvalue
from parvi.fields.pfg.descent import MeanEigenvalue as MeanEigenvalue
from parvi.fields.pfg.descent import Tamed as Tamed
from parvi.fields.pfg.descent import Unscaled as Unscaled
from parvi.fields.pfg.field import PFG as PFG
from parvi.fields.pfg.objective import Convex as Convex
from parvi.fields.pfg.objective import ExactDivergence as ExactDivergence
from parvi.fields.pfg.objective import ForwardMode as ForwardMode
from parvi.fields.pfg.objective import Hutchinson as Hutchinson
from parvi.fields.pfg.objective import Quadratic as Quadratic
from parvi.fields.projected_svn import ProjectedSVN as ProjectedSVN
from parvi.fields.sliced_svgd import SlicedSVGD as SlicedSVGD
from parvi.fields.svgd import SVGD as SVGD
from parvi.fields.svn import SVN as SVN
from parvi.fields.svn import BlockDiagonalSystem as BlockDiagonalSystem
from parvi.fields.svn import Dimension as Dimension
from parvi.fields.svn import FullSystem as FullSystem
