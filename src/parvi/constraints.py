"""Constraints of parameters, each with its Jacobian.

The commonest ones (``Positive``, ``Interval``, ``Simplex``, ``Ordered``) are at the top level too.
"""

from parvi.targets.constraints import AbstractConstraint as AbstractConstraint
from parvi.targets.constraints import Interval as Interval
from parvi.targets.constraints import Ordered as Ordered
from parvi.targets.constraints import Positive as Positive
from parvi.targets.constraints import Real as Real
from parvi.targets.constraints import Simplex as Simplex
from parvi.targets.further_constraints import Circular as Circular
from parvi.targets.further_constraints import CorrelationCholesky as CorrelationCholesky
from parvi.targets.further_constraints import CovarianceCholesky as CovarianceCholesky
from parvi.targets.further_constraints import LowerBound as LowerBound
from parvi.targets.further_constraints import UnitVector as UnitVector
from parvi.targets.further_constraints import UpperBound as UpperBound
from parvi.targets.further_constraints import ZeroSum as ZeroSum
