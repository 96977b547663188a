"""Run by test_mesh.py in processes of their own: the number of devices is fixed at start-up.

python over_devices.py devices FILE NAME...          eight devices of one process
python over_devices.py process FILE PORT STEPS I N   process I of N, one device each
"""

import collections
import re
import sys

import jax
import numpy as np
import pytest

import parvi
import parvi.cloud
from parvi import evaluation
from parvi.models.logistic import logistic_regression
from parvi.run import run as runs
from parvi.run.sharding import particle_sharding
from parvi.samplers.bend import Bend
from parvi.samplers.default import affine

NUM, DIM, ROWS = 512, 6, 96
# The stages that move the particles, without those that only look.
MOVES = parvi.Sequence(
    parvi.Stage("affine", affine(share=0.1, patience=2)), parvi.Stage("bend", Bend(patience=30))
)
SAMPLERS = {
    "default": (parvi.pfg(), 40),
    "default_diagonal": (parvi.pfg(num_features=0), 20),
    "algorithm_1": (parvi.pfg_algorithm_1(0.05), 20),
    "svgd": (parvi.svgd(0.1), 20),
}


def posterior():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ROWS, DIM))
    labels = features @ np.linspace(-1, 1, DIM) + rng.logistic(size=ROWS) > 0
    return features, labels


def begin(num=NUM):
    return np.random.default_rng(1).normal(size=(num, DIM)).astype(np.float32)


def rows_target(batch_size):
    features, labels = posterior()
    signed = (features * np.where(labels, 1.0, -1.0)[:, None]).astype(np.float32)
    return parvi.MiniBatch(
        lambda w: -0.5 * (w @ w),
        lambda w, rows: jax.nn.log_sigmoid(rows @ w),
        signed,
        batch_size,
        like=np.zeros(DIM, np.float32),
    )


def collectives(sampler, target, mesh):
    """What devices tell each other in the compiled loop: shapes by operation."""
    run = runs.Run.begin(target, begin(), sampler, sharding=particle_sharding(mesh, NUM))
    texts = []
    stages = set()
    while not run.is_done and run.num_steps < 40:
        if run.stage.name not in stages:
            stages.add(run.stage.name)
            for leaf in jax.tree_util.tree_leaves(run.carry):
                # What stands beside every particle is on the particle's device, nowhere else.
                assert leaf.shape[:1] != (NUM,) or not leaf.sharding.is_fully_replicated
            texts.append(run._stepper.inspected(run.carry).compile().as_text())
        run.advance(1)
    text = "\n".join(texts)
    found = collections.defaultdict(list)
    pattern = r"= \(?(\w+)\[([\d,]*)\][^=]*? (all-gather|all-reduce|all-to-all|collective-permute)"
    for _, shape, name in re.findall(pattern, text):
        found[name].append(int(np.prod([int(n) for n in shape.split(",") if n])))
    return found


def one(name, sampler, steps, target, mesh):
    settings = {"sampler": sampler, "num_steps": steps}
    results = {
        f"{name} alone": parvi.sample(target, begin(), **settings).particles,
        f"{name} spread": parvi.sample(target, begin(), mesh=mesh, **settings).particles,
    }
    if name != "svgd":
        for operation, sizes in collectives(sampler, target, mesh).items():
            results[f"{name} {operation}"] = np.array(sizes)
    return results


def devices(path, *names):
    """The runs with these names, and what a number that cannot be divided is told."""
    mesh = jax.make_mesh((8,), ("particles",))
    both = jax.make_mesh((4, 2), ("particles", "rows"))
    target = logistic_regression(*posterior())
    results = {}
    for name, (sampler, steps) in SAMPLERS.items():
        if name in names:
            results |= one(name, sampler, steps, target, mesh)
    for batch_size in (ROWS, 16):
        if f"rows {batch_size}" not in names:
            continue
        rows = rows_target(batch_size)
        settings = {"sampler": parvi.pfg_algorithm_1(0.05), "num_steps": 10}
        alone = parvi.sample(rows, begin(), **settings).particles
        results[f"rows {batch_size} alone"] = alone
        results[f"rows {batch_size} spread"] = parvi.sample(
            rows, begin(), mesh=both, **settings
        ).particles
    try:
        parvi.sample(target, begin(100), mesh=mesh)
    except ValueError as error:
        results["uneven"] = np.array(str(error))
    # As if these rows were too many for all particles at once: four blocks.
    jax.clear_caches()
    evaluation._CPU_BYTES = NUM // 4 * ROWS * 4
    assert evaluation.num_blocks(NUM, ROWS, 4) == 4
    if "blocks" in names:
        results |= one("blocks", MOVES, 40, target, mesh)
    # The same sampler, as if this were very many particles.
    jax.clear_caches()
    parvi.cloud.BLOCK, runs._LARGE = 128, 1
    if "unread" in names:
        results |= one("unread", MOVES, 30, target, mesh)
    np.savez(path, **results)


def process(path, port, steps, number, processes):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(number))
    assert jax.process_count() == int(processes)
    mesh = jax.make_mesh((jax.device_count(),), ("particles",))
    target = logistic_regression(*posterior())
    with pytest.raises(ValueError, match="runs of one process"):
        parvi.sample(target, begin(), mesh=mesh, checkpoint=f"{path}.checkpoint")
    run = parvi.sample(target, begin(), num_steps=int(steps), mesh=mesh)
    np.savez(path, particles=run.particles, kl_rate=run.history["kl_rate"])


if __name__ == "__main__":
    {"devices": devices, "process": process}[sys.argv[1]](*sys.argv[2:])
