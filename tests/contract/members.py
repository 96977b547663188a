"""Every sampler, one line each. A new sampler is added here and meets the whole contract."""

import optax

import parvi

_SGD = optax.sgd(1e-3, momentum=0.9)


def _flow(field, stepper=None):
    return parvi.Flow(field, parvi.Constant(0.05) if stepper is None else stepper)


def _linear(preconditioner):
    return parvi.PFG(parvi.Linear(), preconditioner, parvi.Ridge(1e-3))


# Samplers whose step does not depend on the order of the particles.
EQUIVARIANT = {
    "pfg": parvi.pfg(),
    "pfg_algorithm_1": parvi.pfg_algorithm_1(),
    "pfg_base_shift": parvi.pfg_algorithm_1(base_shift=0.1, warm_up=3),
    "pfg_identity": _flow(_linear(parvi.Identity())),
    "pfg_fisher_diagonal": _flow(_linear(parvi.FisherDiagonal(0.5))),
    "pfg_fisher": _flow(_linear(parvi.Fisher())),
    "pfg_hessian": _flow(_linear(parvi.Hessian())),
    "pfg_inverse_covariance": _flow(_linear(parvi.InverseCovariance())),
    "pfg_kronecker": _flow(_linear(parvi.Kronecker(((2, 2),)))),
    "pfg_standardised": _flow(parvi.Standardised(_linear(parvi.Identity()))),
    "pfg_curvature": _flow(_linear(parvi.Identity()), parvi.Curvature()),
    "pfg_decaying": _flow(_linear(parvi.Identity()), parvi.Decaying(0.05)),
    "svgd": parvi.svgd(),
    "svgd_imq": parvi.svgd(kernel=parvi.IMQ()),
    "svgd_linear": parvi.svgd(kernel=parvi.LinearKernel()),
    "svgd_blocked": parvi.svgd(block_size=3),
    "matrix_svgd": parvi.matrix_svgd(),
    "svn": parvi.svn(),
    "projected_svn": parvi.projected_svn(rank=2),
    "sliced_svgd": parvi.sliced_svgd(),
    "jko_icnn": parvi.jko_icnn(width=4, num_inner_steps=3),
}

# Samplers that draw at random, particle by particle.
RANDOM = {
    # The contract's few particles would not bend by themselves, nor before they rest.
    "pfg_bending": parvi.AffineThenBend(num_features=4, share=1e3).second_stage(),
    "grassmann_svgd": parvi.grassmann_svgd(num_projectors=2),
    "neural_svgd": parvi.neural_svgd(width=4, num_inner_steps=3),
    "stein_neural_sampler": parvi.stein_neural_sampler(width=4, num_critic_steps=2),
    "jko_variational": parvi.jko_variational(width=4, num_inner_steps=3),
    "langevin": parvi.langevin(),
    "mala": parvi.langevin(adjusted=True),
    "sgld": parvi.sgld(),
    "psgld": parvi.psgld(correction=parvi.ProbedCorrection()),
    "nuts": parvi.nuts(2, 5, num_chains=2),
    "pfg_random_features": _flow(
        parvi.Whitened(parvi.PFG(parvi.RandomFeatures(8), parvi.Identity(), parvi.HeldOutRidge()))
    ),
    "pfg_early_stopping": _flow(
        parvi.PFG(parvi.MLP(4), None, parvi.GradientDescent(_SGD, holdout=0.25, patience=2))
    ),
    "pfg_hutchinson": _flow(
        parvi.PFG(
            parvi.MLP(4),
            parvi.Identity(),
            parvi.GradientDescent(_SGD, batch_size=1),
            divergence=parvi.Hutchinson(2),
        )
    ),
}

ALL = EQUIVARIANT | RANDOM
