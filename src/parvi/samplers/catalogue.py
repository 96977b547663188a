"""The ready samplers by name, used by the contract tests, benchmarks, guide and documentation."""

from collections.abc import Callable

from parvi.interface import AbstractSampler
from parvi.samplers.default import pfg
from parvi.samplers.langevin import langevin, mala
from parvi.samplers.nuts import nuts
from parvi.samplers.psgld import psgld
from parvi.samplers.ready import (
    grassmann_svgd,
    jko_icnn,
    jko_variational,
    matrix_svgd,
    neural_svgd,
    pfg_algorithm_1,
    projected_svn,
    sliced_svgd,
    stein_neural_sampler,
    svgd,
    svn,
)
from parvi.samplers.sequence import Sequence
from parvi.samplers.sgld import sgld

# Each makes a sampler with its defaults. Add a new one here and in ``parvi/__init__.py``.
READY: dict[str, Callable[..., AbstractSampler | Sequence]] = {
    "pfg": pfg,
    "pfg_algorithm_1": pfg_algorithm_1,
    "svgd": svgd,
    "matrix_svgd": matrix_svgd,
    "svn": svn,
    "projected_svn": projected_svn,
    "grassmann_svgd": grassmann_svgd,
    "sliced_svgd": sliced_svgd,
    "neural_svgd": neural_svgd,
    "stein_neural_sampler": stein_neural_sampler,
    "jko_icnn": jko_icnn,
    "jko_variational": jko_variational,
    "langevin": langevin,
    "mala": mala,
    "sgld": sgld,
    "psgld": psgld,
    "nuts": nuts,
}
