"""The table of JKO schemes (appendix): hierarchical logistic regression on Covertype.

Model, split, start, scores and the PFG runs are those of Table 1; the page below has the rest. The
input-convex networks have two layers and Adam 2e-2; the variational ones have Adam 1e-2 for the map
and 5 steps of Adam 3e-3 for the dual. A step's length is relative to the particles' spread, so the
schemes have a grid of their own, as long as that of PFG.
"""

from collections.abc import Callable

import numpy as np

from parvi import Flow, jko_icnn, jko_variational
from parvi.experiments import hierarchical
from parvi.experiments.cells import Experiment
from parvi.experiments.tables import values
from parvi.experiments.tuning import DEFAULT
from parvi.stopping import exactly

_SCHEMES: dict[str, Callable[..., Flow]] = {
    "JKO-ICNN": jko_icnn,
    "JKO-Variational": jko_variational,
}
_STEP_SIZES = (1e-3, 1e-2, 1e-1, 1.0)
_NUM_STEPS = 12
_OTHERS = {"PFG": 2000, DEFAULT: 2000}
_NUM_INNER_STEPS = 50
_BATCH = 5000
_NUM_SEEDS = 3


def _run(setting):
    if setting["method"] not in _SCHEMES:
        return hierarchical.run(setting)
    scheme = _SCHEMES[setting["method"]]

    def sampler(size, rows, dim):
        # All step sizes are arrays, so that they share one compilation.
        made = scheme(np.float64(size), num_inner_steps=setting["inner_steps"])
        return exactly(made, setting["steps"])

    return hierarchical.tuned(setting, _STEP_SIZES, _BATCH, sampler)


def _setting(dataset, method, seed, steps, inner_steps):
    setting = {"dataset": dataset, "method": method, "seed": seed, "steps": steps}
    return setting | ({"inner_steps": inner_steps} if method in _SCHEMES else {})


def _settings(quick):
    if quick:
        return [_setting("german", "JKO-Variational", 0, 1, 2)]
    return [
        _setting("covertype", method, seed, steps, _NUM_INNER_STEPS)
        for seed in range(_NUM_SEEDS)
        for method, steps in (dict.fromkeys(_SCHEMES, _NUM_STEPS) | _OTHERS).items()
    ]


def _page(cells, folder):
    schemes = [cell for cell in cells if cell.setting["method"] in _SCHEMES]
    inner = " and ".join(str(n) for n in sorted({c.setting["inner_steps"] for c in schemes}))
    steps = " and ".join(str(n) for n in sorted(set(values(schemes, "steps"))))
    text = (
        "The protocol, PFG and its step sizes are those of Table 1. The JKO schemes take "
        f"{steps} steps of {inner} inner ones, with {_BATCH} rows per step and networks of 32 "
        "units, in the particles' own metric, which the schemes' papers do not use; that of "
        "JKO-ICNN takes 6 steps of 10 000 inner ones with 2 x 512 units, in hours. Validation "
        "chooses among four step sizes per method (none for the default); for JKO these are 0.001 "
        "to 1 in units of the particles' covariance. Seconds are those of the last run.\n\n"
    )
    return text + hierarchical.table(cells, "jko")


JKO = Experiment(
    "jko", "JKO schemes on Covertype (appendix)", _settings, _run, _page, ("german", "covertype")
)
