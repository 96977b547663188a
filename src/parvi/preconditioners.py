"""Preconditioners: the metric H of the regulariser, estimated from all particles at every step."""

from parvi.fields.pfg.preconditioners import Fisher as Fisher
from parvi.fields.pfg.preconditioners import FisherDiagonal as FisherDiagonal
from parvi.fields.pfg.preconditioners import Hessian as Hessian
from parvi.fields.pfg.preconditioners import Identity as Identity
from parvi.fields.pfg.preconditioners import InverseCovariance as InverseCovariance
from parvi.fields.pfg.preconditioners import Kronecker as Kronecker
from parvi.fields.pfg.preconditioners import RegressedHessian as RegressedHessian
from parvi.fields.pfg.preconditioners import StandardisedCurvature as StandardisedCurvature
from parvi.fields.pfg.preconditioners import WhitenedCurvature as WhitenedCurvature
