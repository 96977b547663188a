"""Checks that say in words what is wrong with a set of particles.

There are three kinds of tests. The first ask whether the particles obey Stein's identity,
E[s f + div f] = 0, for functions that the run did not use, in units of what the same number of
independent draws would show. They cannot see mass that the particles have not reached, such as a
missing tail. The second can: Hamiltonian transitions leave the target unchanged, so they must
leave the means and variances of the particles unchanged.
The third look for mass beyond the particles by weighted draws, which tells something in few
dimensions (``geometry.beyond``).

A clean result is not a proof: in many dimensions none of them sees a mode that no particle has met.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float

from parvi.cloud import Cloud, Place, View
from parvi.evaluation import evaluate, quickly
from parvi.fields.pfg.excess import stein_excess
from parvi.fields.pfg.functions import RandomFeatures
from parvi.geometry.beyond import NUM_FIRST, NUM_MORE, Beyond, beyond, is_told
from parvi.geometry.clumps import separated
from parvi.geometry.drift import BOUND
from parvi.geometry.frame import InFrame, own_frame, tells_covariance
from parvi.geometry.straightening import seen, straightened
from parvi.results.metrics.kernel_stein import ksd_test
from parvi.results.modes import modes_of
from parvi.results.transport.witness import Witness
from parvi.results.verdicts import DISPUTED, DRIFTS, IN_DOUBT, SKEWED, UNWEIGHED, drift_bound
from parvi.run.run import Run
from parvi.samplers.verify import Verify
from parvi.status import Status
from parvi.targets.target import AbstractTarget

_NUM_DRAWS = 4
_RIDGE = 1e-2
# Maximum number of particles in the kernel test, whose time is quadratic.
_MAX_KERNEL = 1024
# Number of standard errors by which a Stein ratio must be off.
_NOISE = 4.0
# Times the error of independent draws above which a shape is off. In few dimensions features are
# alike, and their errors do not average out: the largest of the three excesses of 300 sets of 64
# exact normal draws had a 99 % quantile of 2.7, 1.9, 1.8 and 1.6 in one to four dimensions, of 256
# draws 2.6, 1.7, 1.4 and 1.4, and in six dimensions 1.4 and 1.3.
_EXCESS = 1.5
# Chance, over all parameters, below which the identity for a square does not hold.
_UNLIKELY = 0.003
# The largest number of parameters that a finding names.
_MAX_NAMES = 5


class Check(NamedTuple):
    """The outcome of a check: whether nothing was found, the findings in words, and the numbers.

    ``bool(check)`` is ``check.ok``. ``doubts`` has a word for every parameter that a finding names,
    and under ``""`` one for all others, if a finding is about all of them together.
    """

    ok: bool
    findings: tuple[str, ...]
    numbers: dict[str, float]
    doubts: dict[str, str]

    def __str__(self) -> str:
        if self.ok:
            return "Nothing wrong was found."
        return "\n".join(f"- {finding}" for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok


class Known(NamedTuple):
    """What the run itself has found about these particles; None for what it has not tested.

    ``drift``, that of every coordinate (``changes``), and the share of the mass ``beyond`` them.
    """

    drift: float | None = None
    changes: Float[np.ndarray, " d"] | None = None
    beyond: float | None = None


def checked(
    status: Status,
    target: AbstractTarget,
    flat: Float[Array, "n d"],
    tempered: bool,
    names: list[str],
    known: Known = Known(),
    witness: Witness | None = None,
) -> Check:
    """Check flat and unconstrained particles of a target whose log density is fixed.

    ``known`` is what the run has found itself. ``witness`` is what weighted draws of a map say of
    the particles.
    """
    num, dim = flat.shape
    numbers, changes, skews = _numbers(target, jnp.asarray(flat), known)
    numbers = {name: float(value) for name, value in numbers.items()}
    findings: list[str] = []
    doubts: dict[str, str] = {}
    if status != Status.CONVERGED:
        findings.append(f"The run ended with {status.name}: {status.message}")
    noise = _NOISE * numbers.pop("stein_error", num**-0.5)
    if numbers["stein_low"] < 0.9 - noise:
        findings.append(
            f"Too narrow in some direction: its Stein ratio is {numbers['stein_low']:.2f}, 1 is "
            "right (variance has collapsed, or the run was too short)."
        )
    if numbers["stein_high"] > 1.1 + noise:
        findings.append(
            f"Too wide in some direction: its Stein ratio is {numbers['stein_high']:.2f}, 1 is "
            "right."
        )
    if numbers["mean_excess"] > scipy.special.chdtri(dim, 1e-3) / dim:
        findings.append(
            f"The mean is off: the average score is {numbers['mean_excess']:.1f} times as large, "
            "squared, as that of independent draws."
        )
    for name, words in _SHAPES.items():
        if numbers.get(name, 0.0) > max(_EXCESS, 1 + 2 / dim):
            findings.append(
                f"{words}: random features find {numbers[name]:.1f} times the error of "
                "independent draws."
            )
    if numbers.get("ksd_p", 1.0) < 0.01:
        findings.append(
            f"The kernel Stein test rejects the particles (p = {numbers['ksd_p']:.3f})."
        )
    # All findings so far are about all parameters together.
    general = bool(findings)
    if numbers["skew_p"] < _UNLIKELY:
        doubts |= _named(names, skews, float(-scipy.special.ndtri(_UNLIKELY / (2 * dim))), SKEWED)
        findings.append(
            "The particles are not skewed as the density is, as if one tail were missing "
            f"(p = {numbers['skew_p']:.1g}){_worst(names, skews)}."
        )
    if numbers["drift"] > BOUND:
        findings.append(
            "The particles are not at rest under the target's own dynamics: Hamiltonian "
            f"transitions move a moment by {numbers['drift']:.1f} standard errors more than chance "
            f"does{_worst(names, changes)}."
        )
        # Small changes of all parameters add up to a drift that none of them has by itself.
        tested = known.changes if changes is None else changes
        drifting = {} if tested is None else _named(names, tested, drift_bound(dim), DRIFTS)
        doubts |= drifting
        general |= not drifting
    if numbers.get("beyond", 0.0) > 0:
        findings.append(
            f"The target has mass where no particle is: {numbers['beyond']:.0%} of all, by "
            "weighted draws from all around the particles."
        )
        general = True
    if witness is not None:
        numbers |= {"map_share": witness.share, "map_excess": witness.excess}
    if witness is not None and not witness.agrees:
        at_rest = numbers["drift"] <= BOUND
        findings.append(
            "The weighted draws of the map disagree with the particles: a mean or a variance "
            f"differs by {np.max(witness.changes):.1f} standard errors"
            f"{_worst(names, witness.changes)}. Hamiltonian transitions "
            f"{'find nothing wrong: one of the two is mistaken' if at_rest else 'agree with them'}."
        )
        doubts = _named(names, witness.changes, witness.bound, DISPUTED) | doubts
    if numbers.get("clumps", 0.0) and not tempered:
        findings.append(
            "The particles lie in separated clumps, whose masses are those of the start, not of "
            "the target."
        )
    unknown = [name for name, value in numbers.items() if not np.isfinite(value)]
    if unknown:
        findings.append(f"Some numbers are not finite and were not tested: {', '.join(unknown)}.")
    if general or unknown:
        doubts[""] = IN_DOUBT
    if numbers.get("clumps", 0.0) and not tempered:
        doubts[""] = UNWEIGHED
    return Check(not findings, tuple(findings), numbers, doubts)


_SHAPES = {
    "excess": "The shape is off",
    "excess_fine": "The fine shape is off",
    "excess_tails": "The tails are off",
}


def _named(names: list[str], errors: np.ndarray, bound: float, word: str) -> dict[str, str]:
    """The word for every parameter whose error is not chance."""
    return {names[i]: word for i in np.flatnonzero(errors > bound)}


def _worst(names: list[str], changes: np.ndarray | None) -> str:
    if changes is None:
        return ""
    rows = np.argsort(-changes)[:_MAX_NAMES]
    return "; most for " + ", ".join(f"{names[i]} ({changes[i]:.1f})" for i in rows)


def _numbers(target, flat, known: Known) -> tuple[dict[str, Any], np.ndarray | None, np.ndarray]:
    """All numbers, and each parameter's drift, if measured here, and the error of its skew."""
    density = target.full()
    values, scores = evaluate(density, flat)
    place = Place(flat, scores, values)
    numbers, z, s = _stein_numbers(density, place)
    if numbers.get("clumps", 0.0):
        numbers["clumps"] = _straight_clumps(flat, scores)
    if numbers.get("clumps", 0.0):
        # Draws from one hill have valleys by chance: one in nine sets of 64 draws, and nearly all
        # sets of 12. The log density on the ways between them has none.
        x, heights, slopes = map(np.asarray, (flat, values, scores))
        numbers["clumps"] = float(len(modes_of(density, x, heights, slopes, None).weights) > 1)
    changes = None
    if known.drift is None:
        numbers["drift"], changes = _drift(target, place)
    else:
        numbers["drift"] = known.drift
    if is_told(flat.shape):
        found = _beyond(density, flat) if known.beyond is None else known.beyond
        numbers["beyond"] = found
    if tells_covariance(flat.shape):
        rows = np.linspace(0, len(z) - 1, min(len(z), _MAX_KERNEL)).astype(int)
        test = ksd_test(np.asarray(z)[rows], np.asarray(s)[rows], num_bootstrap=500)
        numbers["ksd_p"] = test.p_value
    skews = _skews(np.asarray(flat), np.asarray(scores))
    # Two-sided, for the largest of d errors.
    numbers["skew_p"] = min(1.0, 2 * len(skews) * scipy.special.ndtr(-np.max(skews)))
    return numbers, changes, skews


def _skews(particles: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"]) -> np.ndarray:
    """How far each parameter is from Stein's identity for its square, in standard errors.

    E[s u^2 + 2 u] = 0 for the parameter u in units of its spread. Flows make the identity hold for
    u itself, and a tail that no particle has entered leaves means and variances at rest.
    """
    spread = particles.std(axis=0) + np.finfo(particles.dtype).tiny
    u = (particles - particles.mean(axis=0)) / spread
    values = scores * spread * u**2 + 2 * u
    error = values.std(axis=0) + np.finfo(values.dtype).tiny
    # From Student's distribution to about a normal one.
    return np.sqrt(len(u) * np.log1p((values.mean(axis=0) / error) ** 2))


def _straight_clumps(flat, scores) -> float:
    """Whether particles that look clumped still do so in coordinates in which no ridge is bent."""
    coupling = straightened(np.asarray(flat), np.asarray(scores))
    if coupling is None:
        return 1.0
    x, s = seen(coupling, np.asarray(flat), np.asarray(scores))
    return float(_clumps(jnp.asarray(x, flat.dtype), jnp.asarray(s, flat.dtype)))


@quickly
def _clumps(particles, scores):
    frame = own_frame(particles)
    return separated(frame.enter(particles), frame.pull(scores)).astype(particles.dtype)


@quickly
def _stein_numbers(log_density, place):
    """The numbers that need no pairs of particles, and the particles and scores in their frame."""
    cloud = Cloud.of(place, log_density)
    seen = View(cloud, InFrame(own_frame(cloud.particles)))
    z, s = seen.particles, seen.scores
    num = len(z)
    variance = jnp.mean(jnp.sum((s - jnp.mean(s, axis=0)) ** 2, axis=1))
    numbers = {"mean_excess": num * jnp.sum(jnp.mean(s, axis=0) ** 2) / variance}
    if not tells_covariance(z.shape):
        ratios = -jnp.mean(s * z, axis=0)
        # The extremes of d ratios would be noise, so a twentieth on either side is left out.
        low, high = jnp.quantile(ratios, jnp.array([0.05, 0.95], ratios.dtype))
        return numbers | {"stein_low": low, "stein_high": high}, z, s
    halves = _halves(cloud)
    ratios, errors = jnp.asarray([_extremes(*pair) for pair in halves]).mean(axis=0)
    numbers |= {"stein_low": ratios[0], "stein_high": ratios[1], "stein_error": jnp.max(errors)}
    numbers |= _excesses(halves)
    numbers["clumps"] = separated(z, s).astype(z.dtype)
    return numbers, z, s


def _halves(cloud) -> list[tuple[View, View]]:
    """Pairs of particles: those that choose the tests, and those that are tested in their frame.

    Directions that are chosen by the particles that they test find errors in exact draws too: 2.7
    times the expected ones for a bridge of the Lorenz system in 90 dimensions. If half of the
    particles do not determine a frame, all of them have to choose and be tested.
    """
    parts = [slice(0, None, 2), slice(1, None, 2)]
    if not tells_covariance((cloud.shape[0] // 2, cloud.shape[1])):
        parts = [slice(None)] * 2
    first, second = (
        Cloud.of(
            jax.tree_util.tree_map(lambda a, part=part: a[part], cloud.place), cloud.log_density
        )
        for part in parts
    )

    def pair(chooses, tested):
        lens = InFrame(own_frame(chooses.particles))
        return View(chooses, lens), View(tested, lens)

    return [pair(first, second), pair(second, first)]


def _extremes(chooses: View, tested: View) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
    """The Stein ratios in the directions in which the choosing particles have extreme ones."""
    moment = -chooses.scores.T @ chooses.particles / chooses.shape[0]
    directions = jnp.linalg.eigh((moment + moment.T) / 2)[1][:, jnp.array([0, -1])]
    ratios = -(tested.scores @ directions) * (tested.particles @ directions)
    # The mean of two halves is taken, whose errors are about independent.
    error = jnp.std(ratios, axis=0) / (2 * tested.shape[0]) ** 0.5
    return jnp.mean(ratios, axis=0), error


def _excesses(halves) -> dict[str, Any]:
    """The mean excess over some draws of each of three kinds of features."""
    num_features = max(min(64, halves[0][0].shape[0] // 8), 1)

    def one(args):
        # One program serves all kinds; compiling each by itself would take three times as long.
        key, fine, tails = args

        def activation(a):
            return jnp.where(tails, jnp.sqrt(1 + (2 * a) ** 2), jnp.tanh(jnp.where(fine, 2, 1) * a))

        functions = RandomFeatures(num_features, activation)

        def excess(chooses, tested):
            features = functions.informed(key, chooses.particles, chooses.scores)
            return jnp.mean(stein_excess(functions, features, tested, _RIDGE, chooses))

        return (excess(*halves[0]) + excess(*halves[1])) / 2

    kinds = np.repeat(np.arange(len(_SHAPES)), _NUM_DRAWS)
    keys = jax.random.split(jax.random.key(0, impl="rbg"), len(kinds))
    found = jax.lax.map(one, (keys, jnp.asarray(kinds == 1), jnp.asarray(kinds == 2)))
    means = found.reshape(len(_SHAPES), _NUM_DRAWS).mean(axis=1)
    return dict(zip(_SHAPES, means, strict=True))


def _beyond(density, flat) -> float:
    """The share of the mass beyond the particles; 0 if it does not count or may be chance."""
    keys = jax.random.split(jax.random.key(2, impl="rbg"), NUM_FIRST + NUM_MORE)

    def seen(some):
        looks = (_looked(key, density, flat) for key in some)
        return functools.reduce(Beyond.and_also, looks)

    if not seen(keys[:NUM_FIRST]).suspicious:
        return 0.0
    found = seen(keys[NUM_FIRST:])
    return float(found.share) if found.sure else 0.0


@quickly
def _looked(key, density, flat):
    return beyond(key, density, flat)


def _drift(target, place) -> tuple[float, np.ndarray]:
    """The drift under the transitions of the default's own test, and that of every coordinate."""
    run = Run(target, Verify(), jax.random.key(1), place)
    while not run.is_done and run.num_steps < run.stage.sampler.max_steps:
        run.advance(run.stage.sampler.max_steps)
    drift = np.concatenate([records.info.extra["drift"] for _, records in run.history])
    drift = drift[~np.isnan(drift)]
    return float(drift[-1] if len(drift) else np.inf), np.asarray(run.memory.changes)
