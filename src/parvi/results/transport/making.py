"""Makes the transport map of a run: a streamed one, one from flown particles, or one for each mode.

A streamed map is tried first. Where a coupling straightens the target (``geometry.straightening``),
the map is made in the coupling's coordinates, and the coupling is its last layer. If the map's
weighted draws are worth little, Hamiltonian transitions make more particles, and the same rounds
take these to N(0, I). The map that gives held-out particles the higher density is taken. If
neither is good, an error says that there is no map.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from parvi.cloud import Place
from parvi.evaluation import evaluate, quickly
from parvi.geometry.bridge import bridge, hessian_axes
from parvi.geometry.frame import DenseFrame, tells_covariance
from parvi.geometry.peaks import climbed
from parvi.geometry.straightening import straightened
from parvi.kept import carefully
from parvi.results.transport.chain import Chain
from parvi.results.transport.elsewhere import elsewhere
from parvi.results.transport.fit import gaussianised, streamed
from parvi.results.transport.importance import Importance
from parvi.results.transport.layers import AbstractLayer, Coupled
from parvi.results.transport.transport import Transport
from parvi.run.run import Run
from parvi.samplers.gather import Gather
from parvi.targets.straight import StraightDensity
from parvi.targets.target import AbstractTarget, Target

# Draws by which maps are judged.
_NUM_DRAWS = 4096
# A streamed map is taken as it is from this share of effective draws on.
_GOOD = 0.5
# Share of the particles that a map may fail to reach; and by how much the evidences of draws and
# of a bridge may differ, in standard errors and beyond these.
_OUTSIDE, _CREDIBLE, _SLACK = 0.02, 4.0, 0.02
# Mass of another mode from which a map is refused, and numbers of its place that are shown.
_ELSEWHERE, _NUM_SHOWN = 0.02, 5
# Sets of flown particles, and how many of them are held out.
_NUM_SETS, _HELD_OUT = 20, 4


def transport_of(
    target: AbstractTarget,
    flat: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"] | None,
    key: Key[Array, ""],
) -> Transport:
    """The map of flat and unconstrained particles, whose modes the labels give.

    Raises a ``ValueError`` if there is none.
    """
    num, dim = flat.shape
    if not tells_covariance((num, dim)):
        raise ValueError(
            f"There is no map here: {num} particles do not determine the covariance of {dim} "
            "parameters. Run with at least 1.5 particles per parameter."
        )
    density, dtype, layout = target.full(), flat.dtype, target.layout
    assert layout is not None
    key_first, key_second, key_flown, key_back = _four(key)

    def transport(maps, weights=(1.0,)):
        log_weights = np.log(np.asarray(weights)).astype(dtype)
        return Transport(tuple(_on_host(maps)), log_weights, layout, target)

    if labels is not None and labels.max() > 0:
        weights = np.bincount(labels) / len(labels)
        maps = [
            streamed(density, _frame(density, flat, labels == k), own)[0]
            for k, own in enumerate(jax.random.split(key_first, len(weights)))
        ]
        return judged(transport(maps, weights), flat, key_second)
    first = transport([_straight_and_streamed(density, jnp.asarray(flat), key_first)])
    found = first.importance(_NUM_DRAWS, key_second)
    if found and found.share >= _GOOD and _contradiction(first, found, flat) is None:
        _refuse_if_elsewhere(density, flat, found, key_back)
        return first
    visits = jnp.asarray(flown(target, flat, _NUM_SETS, key_flown))
    held_out = visits[-_HELD_OUT:].reshape(-1, dim)
    others = visits[:-_HELD_OUT].reshape(-1, dim)
    second = transport([gaussianised(others, held_out, key_back)[0]])
    likelihoods = [float(np.median(each.log_prob_flat(held_out))) for each in (first, second)]
    better = first if not likelihoods[1] >= likelihoods[0] else second
    better = judged(better, np.asarray(held_out), key_second)
    _refuse_if_elsewhere(density, flat, better.importance(_NUM_DRAWS, key_second), key_back)
    return better


def _straight_and_streamed(density, flat: Float[Array, "n d"], key: Key[Array, ""]) -> Chain:
    """The streamed map, in the coordinates of a coupling if there is one."""
    scores = evaluate(density, flat)[1]
    coupling = straightened(np.asarray(flat), np.asarray(scores))
    if coupling is None:
        return streamed(density, _frame_of(flat), key)[0]
    last = Coupled(coupling.astype(flat.dtype))
    straight = StraightDensity(density, last.coupling)
    found = streamed(straight, _frame_of(_entered(last, flat)), key)[0]
    return Chain((*found.layers, last))


def judged(transport: Transport, flat: Float[np.ndarray, "n d"], key: Key[Array, ""]) -> Transport:
    """The map, unless its weighted draws are worth too little or particles contradict them."""
    found = transport.importance(_NUM_DRAWS, key)
    trouble = found.trouble or _contradiction(transport, found, flat)
    if trouble is None:
        return transport
    raise ValueError(
        f"There is no map here: {trouble}. The particles may be right all the same: "
        "result.check() tests them. For the evidence, run parvi.samplers.temper.Temper() from them."
    )


def _refuse_if_elsewhere(density, flat, found: Importance, key) -> None:
    """Raise a ``ValueError`` if there is a mode that neither particles nor draws have reached."""
    peak = elsewhere(density, jnp.asarray(flat), key)
    share = float(np.exp(min(float(peak.log_mass) - found.log_evidence, 50.0)))
    if share > _ELSEWHERE:
        place = np.array2string(np.asarray(peak.place)[:_NUM_SHOWN], precision=3)
        raise ValueError(
            "There is no map here: neither the particles nor the map's draws have reached another "
            f"mode, of about {share:.2g} times their mass. In unconstrained numbers it is at "
            f"{place}{'' if len(peak.place) <= _NUM_SHOWN else ' (the first ones)'}. Start with "
            "particles that cover both, or run parvi.samplers.temper.Temper()."
        )


def _contradiction(transport: Transport, found: Importance, flat) -> str | None:
    """How particles of the target contradict weighted draws, in words; None if they do not.

    Draws see only where the map leads. Particles see where it does not lead: there their density
    is too small, or the map has no inverse. A bridge between both has to have the same evidence.
    """
    ratios = np.asarray(transport.log_ratios(flat))
    outside = np.mean(~np.isfinite(ratios))
    if outside > _OUTSIDE:
        return f"the map does not reach {100 * outside:.1f} % of the particles"
    there = np.where(np.isfinite(found.log_weights), found.log_weights, -np.inf)
    kept = np.isfinite(ratios)
    weights = kept / kept.sum()
    mass = _bridge(np.where(kept, ratios, 0.0), weights, there)
    apart = abs(float(mass.log_mass) - found.log_evidence)
    error = np.hypot(float(mass.variance) ** 0.5, found.standard_error)
    if not apart <= _CREDIBLE * error + _SLACK:
        return (
            f"draws and particles differ by {apart:.2f} in the log evidence, with a standard error "
            f"of {error:.2f}, so the map misses mass"
        )
    return None


def _on_host(maps: list[AbstractLayer]) -> list[AbstractLayer]:
    """The maps with NumPy arrays, which a program takes in its own precision."""
    return jax.tree_util.tree_map(np.asarray, maps)


def _frame(density, flat, own) -> DenseFrame:
    """The frame of a mode: of its particles or, if these are few, of the Hessian at its peak."""
    particles = jnp.asarray(flat[own])
    if tells_covariance(particles.shape):
        return _frame_of(particles)
    values, scores = evaluate(density, particles)
    unit = jnp.std(scores, axis=0) + jnp.finfo(particles.dtype).tiny
    best = particles[jnp.argmax(values)]
    peak = _climbed(density, best[None], unit)[0][0]
    axes = _hessian_axes(density, peak, unit)
    return DenseFrame(peak, axes.factor, axes.inverse)


_frame_of = quickly(DenseFrame.of)
_entered = quickly(lambda layer, points: layer.inverse(points))
_four = quickly(lambda key: tuple(jax.random.split(key, 4)))
_bridge = quickly(bridge)
_climbed, _hessian_axes = carefully(climbed), carefully(hessian_axes)


def flown(
    target: AbstractTarget, flat: Any, num_sets: int, key: Key[Array, ""]
) -> Float[np.ndarray, "t n d"]:
    """Sets of places that Hamiltonian transitions visit, each as large as the set of particles."""
    particles = jnp.asarray(flat)
    if not target.is_fixed:
        target = Target(target.full(), like=np.zeros(flat.shape[1], flat.dtype))
    values, scores = evaluate(target.full(), particles)
    run = Run(target, Gather(num_sets), key, Place(particles, scores, values))
    while not run.is_done and run.num_steps < run.stage.sampler.max_steps:
        run.advance(run.stage.sampler.max_steps)
    made = int(run.memory.num_made)
    if made < num_sets:
        raise ValueError(
            f"Only {made} of {num_sets} Hamiltonian transitions were accepted by enough "
            "particles, so no more particles can be made from these."
        )
    return np.asarray(run.memory.visits)
