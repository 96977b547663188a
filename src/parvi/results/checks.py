"""What is wrong with a set of particles, in words.

Two kinds of tests. The first ask whether the particles obey Stein's identity, E[s f + div f] = 0,
for functions that the run did not use, in units of what as many independent draws would show. They
cannot see mass that the particles have not reached, such as a missing tail. The second can: some
Hamiltonian transitions from every particle, which leave the target as it is, must leave the means
and variances of the particles as they are.

A clean bill is no proof: a mode that no particle has met is seen by neither.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from parvi.fields.clumps import separated
from parvi.fields.frame import own_frame, tells_covariance
from parvi.fields.pfg.excess import stein_excess
from parvi.fields.pfg.functions import RandomFeatures
from parvi.interface import Cloud, LogDensity
from parvi.results.metrics.kernel_stein import ksd_test
from parvi.status import Status

_NUM_DRAWS = 4
_RIDGE = 1e-2
# Particles in the kernel test at the most: its time is quadratic.
_MAX_KERNEL = 1024
# Hamiltonian transitions of so many leapfrog steps, and how many errors above the expected largest
# a change must be.
_TRANSITIONS = 40
_LEAPFROGS = 8
_MAX_DRIFT = 1.0


class Check(NamedTuple):
    """Whether nothing was found, what was found in words, and the numbers behind it."""

    ok: bool
    findings: tuple[str, ...]
    numbers: dict[str, float]

    def __str__(self) -> str:
        if self.ok:
            return "Nothing wrong was found."
        return "\n".join(f"- {finding}" for finding in self.findings)


def check(
    status: Status, log_density: LogDensity, flat: Float[Array, "n d"], tempered: bool
) -> Check:
    """Look at particles, flat and unconstrained."""
    # Here, and not above: it takes a second, and most runs are not looked at.
    import scipy.stats

    num, dim = flat.shape
    dense = tells_covariance(flat)
    numbers = _numbers(log_density, jnp.asarray(flat))
    numbers = {name: float(value) for name, value in numbers.items()}
    findings = []
    if status != Status.CONVERGED:
        findings.append(f"The run ended with {status.name}: {status.message}")
    # For independent draws the eigenvalues of -E[s z^T] are within about 1 +- 2 sqrt(d / n).
    noise = 2 * (dim / num) ** 0.5 if dense else 4 * num**-0.5
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
    if numbers["mean_excess"] > scipy.stats.chi2.isf(1e-3, dim) / dim:
        findings.append(
            f"The mean is off: the average score is {numbers['mean_excess']:.1f} times as large, "
            "squared, as that of independent draws."
        )
    for name, words in _SHAPES.items():
        if numbers.get(name, 0.0) > 1.5:
            findings.append(
                f"{words}: random features find {numbers[name]:.1f} times the error of "
                "independent draws."
            )
    if numbers.get("ksd_p", 1.0) < 0.01:
        findings.append(
            f"The kernel Stein test rejects the particles (p = {numbers['ksd_p']:.3f})."
        )
    if numbers["drift"] > _MAX_DRIFT:
        findings.append(
            "The particles are not at rest under the target's own dynamics: Hamiltonian "
            f"transitions move a mean or a spread by {numbers['drift']:.1f} standard errors more "
            "than chance does."
        )
    if numbers.get("clumps", 0.0) and not tempered:
        findings.append(
            "The particles lie in separated clumps: how much mass is in each is that of the "
            "start, not of the target."
        )
    unknown = [name for name, value in numbers.items() if not np.isfinite(value)]
    if unknown:
        findings.append(f"Could not be tested, the numbers are not finite: {', '.join(unknown)}.")
    return Check(not findings, tuple(findings), numbers)


_SHAPES = {
    "excess": "The shape is off",
    "excess_fine": "The fine shape is off",
    "excess_tails": "The tails are off",
}


def _soft_absolute(a):
    return jnp.sqrt(1 + a**2)


def _numbers(log_density, flat) -> dict[str, Any]:
    # Before anything is traced: importing blackjax computes.
    import blackjax  # noqa: F401

    numbers, z, s = _stein_numbers(log_density, flat)
    numbers["drift"] = _drift(log_density, flat)
    if tells_covariance(flat):
        rows = np.linspace(0, len(z) - 1, min(len(z), _MAX_KERNEL)).astype(int)
        test = ksd_test(np.asarray(z)[rows], np.asarray(s)[rows], num_bootstrap=500)
        numbers["ksd_p"] = test.p_value
    return numbers


@eqx.filter_jit
def _stein_numbers(log_density, flat):
    """The numbers that need no pairs, and the particles and scores in their own frame."""
    cloud = Cloud.at(log_density, flat)
    frame = own_frame(flat)
    z, s = frame.enter(flat), frame.pull(cloud.scores)
    num = len(z)
    variance = jnp.mean(jnp.sum((s - jnp.mean(s, axis=0)) ** 2, axis=1))
    numbers = {"mean_excess": num * jnp.sum(jnp.mean(s, axis=0) ** 2) / variance}
    if not tells_covariance(flat):
        ratios = -jnp.mean(s * z, axis=0)
        # The extremes of d ratios would be noise: a twentieth may be beyond on either side.
        low, high = jnp.quantile(ratios, jnp.array([0.05, 0.95], ratios.dtype))
        return numbers | {"stein_low": low, "stein_high": high}, z, s
    moment = -s.T @ z / num
    values = jnp.linalg.eigvalsh((moment + moment.T) / 2)
    numbers |= {"stein_low": values[0], "stein_high": values[-1]}
    features = max(min(64, num // 8), 1)
    families = {
        "excess": RandomFeatures(features),
        "excess_fine": RandomFeatures(features, scale=2.0),
        "excess_tails": RandomFeatures(features, activation=_soft_absolute, scale=2.0),
    }
    keys = jax.random.split(jax.random.key(0), _NUM_DRAWS)
    for name, functions in families.items():

        def one(key, functions=functions):
            return stein_excess(functions, functions.informed(key, z, s), z, s, _RIDGE)

        numbers[name] = jnp.mean(jax.vmap(one)(keys))
    numbers["clumps"] = separated(z, s).astype(z.dtype)
    return numbers, z, s


@eqx.filter_jit
def _drift(log_density, flat):
    """The largest change of a mean or a variance under Hamiltonian transitions, in its errors."""
    import blackjax

    frame = own_frame(flat)
    start = frame.enter(flat)
    dim = start.shape[1]

    def density(z):
        return log_density(frame.leave(z))

    def transition(key, states, step_size):
        kernel = blackjax.hmc.build_kernel()
        mass = jnp.ones(dim, start.dtype)

        def one(key, state):
            return kernel(key, state, density, step_size, mass, _LEAPFROGS)

        states, info = jax.vmap(one)(jax.random.split(key, len(start)), states)
        return states, jnp.mean(jnp.nan_to_num(info.acceptance_rate))

    states = jax.vmap(lambda z: blackjax.hmc.init(z, density))(start)
    # The longest step that is mostly accepted.
    ladder = jnp.asarray(0.5 * 2.0 ** -jnp.arange(8), start.dtype)
    keys = jax.random.split(jax.random.key(1), len(ladder))
    rates = jax.lax.map(lambda a: transition(a[0], states, a[1])[1], (keys, ladder))
    step_size = ladder[jnp.argmax(rates > 0.65)]

    def body(states, key):
        return transition(key, states, step_size)[0], None

    keys = jax.random.split(jax.random.key(2), _TRANSITIONS)
    end = jax.lax.scan(body, states, keys)[0].position

    def error(change):
        return jnp.mean(change, axis=0) / (jnp.std(change, axis=0) * len(start) ** -0.5 + 1e-12)

    errors = jnp.concatenate([error(end - start), error(end**2 - start**2)])
    # The largest of 2 d errors: less what the largest of so many normal ones would be.
    expected = jnp.sqrt(2 * jnp.log(4.0 * dim))
    return jnp.max(jnp.abs(errors)) - expected
