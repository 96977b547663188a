"""Where a run of the default is, and what the next step is: see ``affine_then_bend``."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from parvi.samplers import flights
from parvi.status import Status

_MAX_AFFINE_STEP = 0.5
_MAX_BENT_STEP = 2.0
_FIRST_BETA = 0.01
_MIN_STEP = 1e-8
# A fresh excess that no longer falls is believed at once below this, else the second time.
_SURE = 0.6
# Steps of a round at least: a first step may fall far on its own features alone.
_MIN_AGE = 3
# Steps of a tempered round at most: the next one has another target.
_TEMPERED_AGE = 30


class Control(NamedTuple):
    """Where the run is.

    ``fresh``: a round begins with the next step. ``excess``: the smallest of the fresh ones.
    ``late``: rounds since the tempered path ended. ``leapfrogs``: those of Hamiltonian transitions
    that are left to do. ``flown``: they are done.
    ``rested``: the run is over; further steps, where some were asked for, change nothing.
    """

    affine: Bool[Array, ""]
    fresh: Bool[Array, ""]
    step_size: Float[Array, ""]
    radius: Float[Array, ""]
    quiet: Int[Array, ""]
    age: Int[Array, ""]
    first_merit: Float[Array, ""]
    excess: Float[Array, ""]
    beta: Float[Array, ""]
    tempered: Bool[Array, ""]
    hesitated: Bool[Array, ""]
    late: Int[Array, ""]
    leapfrogs: Int[Array, ""]
    flown: Bool[Array, ""]
    rested: Bool[Array, ""]


class Phases(eqx.Module):
    """The rules by which one phase gives way to the next; parameters as of the default sampler."""

    share: float
    fall: float
    max_age: int
    num_temperatures: int

    def start(self, dtype) -> Control:
        """Before the first step."""
        zero, never = jnp.zeros((), dtype), jnp.zeros((), bool)
        return Control(
            affine=jnp.ones((), bool),
            fresh=never,
            step_size=jnp.asarray(_MAX_AFFINE_STEP, dtype),
            radius=jnp.ones((), dtype),
            quiet=jnp.zeros((), jnp.int32),
            age=jnp.zeros((), jnp.int32),
            first_merit=zero,
            excess=jnp.asarray(jnp.finfo(dtype).max, dtype),
            beta=jnp.ones((), dtype),
            tempered=never,
            hesitated=never,
            late=jnp.zeros((), jnp.int32),
            leapfrogs=jnp.zeros((), jnp.int32),
            flown=never,
            rested=never,
        )

    def following(self, control, x, bends, excess, accepted, limited, descent, next_descent):
        """The control after a step that was no new start."""
        num, dim = x.shape
        affine = control.affine
        # The affine phase is over when its rate is small often enough.
        share = self.share if bends else 0.1 * self.share
        bound = dim * max(share / num, 8 * float(jnp.finfo(x.dtype).eps))
        quiet = jnp.where(affine & accepted & (descent.merit <= bound), control.quiet + 1, 0)
        rests = (quiet >= 2) if bends else jnp.zeros((), bool)
        radius = jnp.where(limited, 2 * control.radius, control.radius)
        radius = jnp.where(accepted, radius, jnp.maximum(control.radius / 4, 1.0))
        limit = jnp.where(affine, _MAX_AFFINE_STEP, _MAX_BENT_STEP).astype(x.dtype)
        step_size = jnp.where(
            accepted, jnp.minimum(1.2 * control.step_size, limit), 0.5 * control.step_size
        )
        # A round ends when its merit has fallen, when it is old, or when no step is short enough.
        first = jnp.where(control.fresh, descent.merit, control.first_merit)
        age = jnp.where(control.fresh, 0, control.age) + 1
        merit = jnp.where(accepted, next_descent.merit, descent.merit)
        # Each temperature has but one round: it comes closer to rest.
        fall = self.fall * jnp.where(control.beta < 1, 0.15, jnp.where(control.flown, 0.5, 1.0))
        fallen = (merit <= fall * first) & (age >= _MIN_AGE)
        oldest = jnp.where(control.beta < 1, min(_TEMPERED_AGE, self.max_age), self.max_age)
        ends = fallen | (age >= oldest) | (step_size < 1e-6)
        ends = (~affine & ends) | rests
        # Tempered rounds do not count: each has another target.
        counted = control.fresh & (control.beta >= 1)
        smallest = jnp.where(counted, jnp.minimum(control.excess, excess), control.excess)
        warmer = jnp.minimum(control.beta * self._ratio(), 1.0)
        return Control(
            affine=affine & ~rests,
            fresh=ends,
            step_size=jnp.where(ends, jnp.clip(step_size, 1e-3, 0.5), step_size),
            radius=jnp.where(affine & ~rests, radius, 1.0),
            quiet=quiet,
            age=age,
            first_merit=first,
            excess=smallest,
            beta=jnp.where(ends & ~affine, warmer, control.beta),
            tempered=control.tempered,
            hesitated=control.hesitated,
            late=control.late + (counted & control.tempered),
            leapfrogs=control.leapfrogs,
            flown=control.flown,
            rested=control.rested,
        )

    def _ratio(self):
        return _FIRST_BETA ** (-1 / max(self.num_temperatures - 1, 1))

    def restarted(self, control):
        """The control after a new start from the broad Gaussian."""
        return self._anew(control)._replace(
            beta=jnp.full_like(control.beta, _FIRST_BETA), tempered=jnp.ones((), bool)
        )

    def taking_off(self, control):
        """Before the first leapfrog."""
        return control._replace(
            fresh=jnp.zeros((), bool),
            leapfrogs=jnp.full_like(control.leapfrogs, flights.NUM_STEPS),
            flown=jnp.ones((), bool),
        )

    def flying(self, control):
        """One leapfrog less; after the last, rounds begin anew."""
        fewer = control._replace(leapfrogs=control.leapfrogs - 1)
        return where(control.leapfrogs == 1, self._anew(fewer), fewer)

    def _anew(self, control):
        return control._replace(
            fresh=jnp.ones((), bool),
            step_size=jnp.full_like(control.step_size, 0.5),
            excess=jnp.full_like(control.excess, jnp.finfo(control.excess.dtype).max),
            hesitated=jnp.zeros((), bool),
        )


def where(condition: Bool[Array, ""], new, old):
    """``new`` where the condition holds, leaf by leaf."""
    return jax.tree_util.tree_map(lambda a, b: jnp.where(condition, a, b), new, old)


def shortened(descent, control):
    """A step, shortened to the trust region; and whether it was."""
    length = control.step_size * jnp.max(jnp.sqrt(jnp.mean(descent.values**2, axis=0)))
    factor = jnp.minimum(1.0, control.radius / jnp.where(length > 0, length, 1.0))
    return control.step_size * factor * descent.values, factor < 1


def at_the_floor(control, excess, gain):
    """Whether all that is left is the features' noise: perhaps, and surely.

    A fresh excess below 1 that falls no more; surely where it is far below, or a second time.
    """
    floor = control.fresh & (control.beta >= 1) & (excess < 1) & (excess > gain * control.excess)
    return floor, floor & ((excess < _SURE) | control.hesitated)


def status_after(control, new, finite):
    """Running, or the failure of an affine step that cannot be made any shorter."""
    failure = jnp.where(finite, Status.STALLED, Status.NONFINITE)
    stalled = control.affine & (new.step_size < _MIN_STEP)
    return jnp.where(stalled, failure, Status.RUNNING)
