"""A run with checkpoints, in a process of its own that a test kills."""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import parvi
from parvi.run import checkpoint

KINDS = ("banana", "modes", "svgd", "rows")
# On two devices, in a process that has them.
MESH = "mesh"


@functools.cache
def problem(kind):
    """The same objects every time, so that runs share their programs."""
    rng = np.random.default_rng(0)
    if kind == "rows":
        features = rng.normal(size=(4000, 3)).astype(np.float32)
        labels = (features @ np.array([1.0, -1.0, 0.5]) > rng.logistic(size=4000)).astype("f4")
        target = parvi.MiniBatch(
            lambda x: -0.5 * jnp.sum(x**2),
            lambda x, b: b["y"] * (b["x"] @ x) - jnp.logaddexp(0, b["x"] @ x),
            {"x": features, "y": labels},
            100,
        )
        start = rng.normal(size=(64, 3)).astype(np.float32)
        return target, start, {"sampler": parvi.sgld(), "num_steps": 3000}
    start = rng.normal(size=(128, 2)).astype(np.float32)
    if kind == MESH:
        mesh = jax.make_mesh((2,), ("particles",))
        return lambda x: jnp.sum(x - jnp.exp(x)), start, {"mesh": mesh}
    if kind == "svgd":
        return lambda x: -0.5 * jnp.sum((x - 1) ** 2), start, {"sampler": parvi.svgd()}
    if kind == "modes":
        return (
            lambda x: jnp.logaddexp(
                -0.5 * jnp.sum((x - 4) ** 2), jnp.log(0.3) - 0.5 * jnp.sum((x + 4) ** 2)
            ),
            3 * start,
            {},
        )
    return lambda x: -0.5 * (x[0] ** 2 / 4 + (x[1] - x[0] ** 2 / 2) ** 2 / 0.1), start, {}


def facts(result):
    """What two equal runs have in common."""
    return {
        "particles": result.particles,
        "steps": result.num_steps,
        "status": int(result.status),
        "stages": result.history["stage"],
        "kl_rate": result.history["kl_rate"],
    }


def main():
    kind, folder, output = sys.argv[1:4]
    checkpoint._EVERY = checkpoint._TIMES = 0.0
    target, start, settings = problem(kind)
    folder = None if folder == "-" else folder
    result = parvi.sample(target, start, checkpoint=folder, progress=False, **settings)
    made = pathlib.Path(output).with_suffix(".made.npz")
    np.savez(made, **facts(result))
    made.replace(output)


if __name__ == "__main__":
    main()
