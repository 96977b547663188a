"""How hard the compiler should try, decided by counting numbers, never by a clock.

XLA takes seconds to make many small kernels fast, and a run on a small problem is over in a
fraction of a second. So the first steps of a stage run in a program that is compiled without
optimisation, which is ready two to three times sooner but makes each step four to five times
slower. Once those steps have taken about as long as the optimising compiler would, the stage goes
on in a program that is compiled with care. For any sampler this costs at most twice the better
choice. If a step would be too slow that way, the log density alone is compiled with care from the
first step on. The same call always gives the same bits (docs/decisions/0014-one-protocol.md).
"""

from typing import NamedTuple

import jax

from parvi.evaluation import LIGHT

# Numbers that quickly compiled programs may compute before the optimising compiler would have paid
# off: one second at 2.5 ns each.
_BUDGET = 400_000_000


class Cost(NamedTuple):
    """The count of numbers that a step computes, by itself and for all log densities."""

    own: float
    density: float


class Plan(NamedTuple):
    """The way a stage is compiled.

    ``quick_steps``: the number of first steps that run in quickly compiled programs. ``apart``:
    whether the log density is then a program of its own, compiled with care.
    """

    quick_steps: int
    apart: bool


CAREFUL = Plan(0, False)


def planned(cost: Cost, is_fixed: bool) -> Plan:
    """The plan for a stage; ``is_fixed`` says whether every step has the same log density."""
    if jax.default_backend() != "cpu" or cost.own > LIGHT:
        return CAREFUL
    light = cost.own + cost.density
    apart = is_fixed and light > LIGHT
    if apart:
        light = cost.own
    elif light > LIGHT:
        return CAREFUL
    return Plan(int(_BUDGET // max(light, 1)), apart)
