"""A million particles of the 61-d posterior, from the first step to the last, against chains."""

import numpy as np
from rich.console import Console

from benchmarks import children, peers, record
from benchmarks.problems import sonar_shaped, start

NUM = 1_000_000
_CHAIN = 20_000

_SCRIPT = """
import json, sys, time
import numpy as np, parvi
from benchmarks.children import peak_bytes
from benchmarks.problems import sonar_shaped
init = np.random.default_rng(0).standard_normal((int(sys.argv[1]), 61), dtype=np.float32)
began = time.perf_counter()
run = parvi.sample(sonar_shaped(), init, throw=False)
seconds = time.perf_counter() - began
particles = run.particles
print(json.dumps({
    "seconds": seconds, "compile": run.timing.compile_seconds, "steps": run.num_steps,
    "status": run.status.name, "peak": peak_bytes(), "array": particles.nbytes,
    "mean": particles.mean(axis=0, dtype=float).tolist(),
    "sd": particles.std(axis=0, dtype=float).tolist(),
}))
"""


def main(console: Console) -> None:
    figures = children.run(_SCRIPT, str(NUM))
    draws = peers.numpyro_nuts(sonar_shaped(), start(4, seed=1), _CHAIN)()
    figures |= compared(figures.pop("mean"), figures.pop("sd"), draws)
    record.save("million", figures)
    console.print(text(figures), highlight=False)


def compared(mean, sd, draws) -> dict:
    """The largest errors, in posterior sds and as shares of them, beside the reference's own."""
    from numpyro.diagnostics import effective_sample_size

    flat = draws.reshape(-1, draws.shape[-1]).astype(float)
    effective = np.asarray(effective_sample_size(draws), float)
    spread = flat.std(axis=0)
    return {
        "mean_error": float(np.max(np.abs(mean - flat.mean(axis=0)) / spread)),
        "sd_error": float(np.max(np.abs(sd / spread - 1))),
        # About the largest of so many standard normals.
        "reference_error": float(3 / np.sqrt(effective.min())),
    }


def text(figures) -> str:
    return (
        f"The default with {NUM} particles in 61 dimensions ended as {figures['status']} after "
        f"{figures['steps']} steps and {figures['seconds']:.0f} s, of which compilation and the "
        f"first step took {figures['compile']:.0f} s. Its peak memory was "
        f"{figures['peak'] / figures['array']:.1f} particle arrays, with all that Python and JAX "
        f"take. Means are wrong by at most {figures['mean_error']:.3f} sds and sds by "
        f"{100 * figures['sd_error']:.1f} %, judged by chains whose own means are known to about "
        f"{figures['reference_error']:.3f} sds."
    )
