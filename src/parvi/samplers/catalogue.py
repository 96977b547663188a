"""The ready samplers by name, used by the contract tests, benchmarks, guide and documentation."""

from collections.abc import Callable

from parvi.interface import AbstractSampler
from parvi.samplers import ready
from parvi.samplers.default import pfg
from parvi.samplers.langevin import langevin, mala
from parvi.samplers.nuts import nuts
from parvi.samplers.psgld import psgld
from parvi.samplers.sequence import Sequence
from parvi.samplers.sgld import sgld

# Each makes a sampler with its defaults. Add a new one here and in ``parvi/__init__.py``.
READY: dict[str, Callable[..., AbstractSampler | Sequence]] = {
    "pfg": pfg,
    "pfg_algorithm_1": ready.pfg_algorithm_1,
    "svgd": ready.svgd,
    "matrix_svgd": ready.matrix_svgd,
    "svn": ready.svn,
    "projected_svn": ready.projected_svn,
    "grassmann_svgd": ready.grassmann_svgd,
    "sliced_svgd": ready.sliced_svgd,
    "neural_svgd": ready.neural_svgd,
    "stein_neural_sampler": ready.stein_neural_sampler,
    "jko_icnn": ready.jko_icnn,
    "jko_variational": ready.jko_variational,
    "langevin": langevin,
    "mala": mala,
    "sgld": sgld,
    "psgld": psgld,
    "nuts": nuts,
}
