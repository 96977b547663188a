"""Every sampler, one line each. A new sampler is added here and meets the whole contract."""

import optax

import parvi
from parvi import fields, functions, kernels, preconditioners, steppers
from parvi.samplers.bend import Bend
from parvi.samplers.default import affine
from parvi.samplers.descend import Descend
from parvi.samplers.explore import Explore
from parvi.samplers.fly import Fly
from parvi.samplers.gather import Gather
from parvi.samplers.psgld import ProbedCorrection
from parvi.samplers.temper import Temper

_SGD = optax.sgd(1e-3, momentum=0.9)


def _flow(field, stepper=None):
    return parvi.Flow(field, steppers.Constant(0.05) if stepper is None else stepper)


def _linear(preconditioner):
    return fields.PFG(functions.Linear(), preconditioner, fields.Ridge(1e-3))


# Samplers whose step does not depend on the order of the particles.
EQUIVARIANT = {
    "affine": affine(),
    "pfg_algorithm_1": parvi.pfg_algorithm_1(),
    "pfg_base_shift": parvi.pfg_algorithm_1(base_shift=0.1, warm_up=3),
    "pfg_identity": _flow(_linear(preconditioners.Identity())),
    "pfg_fisher_diagonal": _flow(_linear(preconditioners.FisherDiagonal(0.5))),
    "pfg_fisher": _flow(_linear(preconditioners.Fisher())),
    "pfg_hessian": _flow(_linear(preconditioners.Hessian())),
    "pfg_inverse_covariance": _flow(_linear(preconditioners.InverseCovariance())),
    "pfg_kronecker": _flow(_linear(preconditioners.Kronecker(((2, 2),)))),
    "pfg_standardised": _flow(fields.Standardised(_linear(preconditioners.Identity()))),
    "pfg_curvature": _flow(_linear(preconditioners.Identity()), steppers.Curvature()),
    "pfg_decaying": _flow(_linear(preconditioners.Identity()), steppers.Decaying(0.05)),
    "svgd": parvi.svgd(),
    "svgd_imq": parvi.svgd(kernel=kernels.IMQ()),
    "svgd_linear": parvi.svgd(kernel=kernels.LinearKernel()),
    "svgd_blocked": parvi.svgd(block_size=3),
    "matrix_svgd": parvi.matrix_svgd(),
    "svn": parvi.svn(),
    "projected_svn": parvi.projected_svn(rank=2, prior_covariance=1.0),
    "sliced_svgd": parvi.sliced_svgd(),
    "jko_icnn": parvi.jko_icnn(width=4, num_inner_steps=3),
}

# Samplers that draw at random, particle by particle.
RANDOM = {
    "bend": Bend(num_features=4),
    "fly": Fly(num_transitions=5, num_leapfrogs=2),
    "temper": Temper(num_passes=2),
    "explore": Explore(window=2),
    "gather": Gather(num_transitions=2),
    "descend": Descend(),
    "grassmann_svgd": parvi.grassmann_svgd(num_projectors=2),
    "neural_svgd": parvi.neural_svgd(width=4, num_inner_steps=3),
    "stein_neural_sampler": parvi.stein_neural_sampler(width=4, num_critic_steps=2),
    "jko_variational": parvi.jko_variational(width=4, num_inner_steps=3),
    "langevin": parvi.langevin(),
    "mala": parvi.mala(),
    "sgld": parvi.sgld(),
    "psgld": parvi.psgld(correction=ProbedCorrection()),
    "nuts": parvi.nuts(2, 5, num_chains=2),
    "pfg_random_features": _flow(
        fields.Whitened(
            fields.PFG(
                functions.RandomFeatures(8), preconditioners.Identity(), fields.HeldOutRidge()
            )
        )
    ),
    "pfg_early_stopping": _flow(
        fields.PFG(functions.MLP(4), None, fields.GradientDescent(_SGD, holdout=0.25, patience=2))
    ),
    "pfg_hutchinson": _flow(
        fields.PFG(
            functions.MLP(4),
            preconditioners.Identity(),
            fields.GradientDescent(_SGD, batch_size=1),
            divergence=fields.Hutchinson(2),
        )
    ),
}

ALL = EQUIVARIANT | RANDOM
# Those that fit functions which bend: one particle is refused, in words.
BENDING = ("bend",)
# One of each kind; with another number of particles, which takes another program, the others are
# tested slowly.
KINDS = ("affine", "pfg_algorithm_1", "svgd", "matrix_svgd", "bend", "fly", "langevin")
# Members that differ from another one in a part, which has tests of its own.
VARIANTS = (
    "pfg_base_shift",
    "pfg_fisher",
    "pfg_fisher_diagonal",
    "pfg_inverse_covariance",
    "pfg_kronecker",
    "pfg_standardised",
    "pfg_curvature",
    "pfg_decaying",
    "svgd_imq",
    "svgd_linear",
    "svgd_blocked",
    "pfg_early_stopping",
    "pfg_hutchinson",
)
