"""How hard the compiler should try: decided by counting numbers, never by a clock.

XLA takes seconds to make many small kernels fast, and a run on a small problem is over in a
fraction of one. So the first steps of a stage run in a program that is compiled without
optimisation: two to three times sooner, each step four to five times slower. Once those steps have
taken about as long as the optimising compiler would, the stage goes on in a program that is
compiled with care: at most twice what the better choice would have cost, for any sampler. Where the
log density is what takes long, it alone is compiled with care from the first step on. The same call
always gives the same bits (docs/decisions/0014-one-protocol.md).
"""

from typing import NamedTuple

import jax

from parvi.evaluation import LIGHT

# Numbers that quickly compiled programs may compute until the optimising compiler would have paid:
# at 2.5 ns each one second.
_BUDGET = 400_000_000


class Cost(NamedTuple):
    """Numbers that a step computes: by itself, and for the log density of all particles."""

    own: float
    density: float


class Plan(NamedTuple):
    """How a stage is compiled.

    ``quick_steps``: so many of its first steps run in quickly compiled programs. ``apart``: in
    those the log density is a program of its own, compiled with care.
    """

    quick_steps: int
    apart: bool


CAREFUL = Plan(0, False)


def planned(cost: Cost, is_fixed: bool) -> Plan:
    """The plan for a stage; ``is_fixed``: every step has the same log density."""
    if jax.default_backend() != "cpu" or cost.own > LIGHT:
        return CAREFUL
    apart = is_fixed and cost.density > LIGHT
    light = cost.own if apart else cost.own + cost.density
    if light > LIGHT:
        return CAREFUL
    return Plan(int(_BUDGET // max(light, 1)), apart)
