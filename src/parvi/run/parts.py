"""The loop of ``advance`` for a log density that takes long: a step is three programs.

Only the one in the middle, which asks the log density, is compiled with care. Calling them one by
one costs a millisecond or two, of a step that takes fifty and more.
"""

import jax
import numpy as np

from parvi.evaluation import evaluate, quickly
from parvi.interface import Cloud, Info
from parvi.run.advance import Programs, Run, begun, first_keys, judged, step_keys
from parvi.status import Status


@quickly
def _begin(key, sampler, log_density, rule, particles, found):
    values, scores = found
    key_sampler, _ = first_keys(key)
    return begun(sampler.begin(key_sampler, Cloud(particles, scores, values, log_density)), rule)


@quickly
def _propose(key, run, sampler, log_density):
    key_sampler, _ = step_keys(key, run.state)
    return sampler.propose(key_sampler, run.state, log_density)


@quickly
def _conclude(run, sampler, log_density, rule, stops, moved, proposal, found):
    values, scores = found
    cloud = Cloud(moved, scores, values, log_density)
    state, info = sampler.conclude(run.state, proposal, cloud)
    return judged(run, state, info, sampler, rule, stops), info


def _start(key, particles, sampler, target, rule, sharding=None) -> Run:
    """As ``start``, for a target that is the same at every step, on one device."""
    assert target.is_fixed
    assert sharding is None
    log_density = target.full()
    return _begin(key, sampler, log_density, rule, particles, evaluate(log_density, particles))


def _advance(
    key, run: Run, sampler, target, rule, until, stops, capacity, sharding=None
) -> tuple[Run, Info]:
    log_density = target.full()
    infos: list[Info] = []
    while (
        int(run.status) == Status.RUNNING and int(run.state.step) < until and len(infos) < capacity
    ):
        moved, proposal = _propose(key, run, sampler, log_density)
        found = evaluate(log_density, moved)
        run, info = _conclude(run, sampler, log_density, rule, stops, moved, proposal, found)
        infos.append(info)
    return run, jax.tree_util.tree_map(lambda *column: np.stack(column), *infos)


IN_PARTS = Programs(_start, _advance)
