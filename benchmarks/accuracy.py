"""Time to accuracy on 61-d logistic regression: ours and the peers, with and without compilation.

Ours are the seconds of ``parvi.sample`` with its defaults from N(0, I). Chains (NUTS, MCLMC) make
as many draws as their smallest effective sample size needs to be n. Pathfinder and ADVI run as
their users run them. Each method has a process of its own. Quality is the energy distance of n of
the draws, evenly spaced among all, to a long reference, divided by that of as many independent
draws (below 1: better than those).
"""

import json
import pathlib
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import parvi
from benchmarks import children, peers, record
from benchmarks.problems import sonar_shaped, start
from parvi.results.metrics import energy_distance

ROWS = (166, 1000, 10_000, 100_000)
NUM = 512
OURS = "PFG (default)"
NUTS = "NumPyro NUTS"
_CHAINS = {
    NUTS: peers.numpyro_nuts,
    "blackjax NUTS": peers.blackjax_nuts,
    "blackjax MCLMC": peers.blackjax_mclmc,
}
_OTHERS = {"blackjax pathfinder": peers.blackjax_pathfinder, "NumPyro ADVI": peers.numpyro_advi}
# Beyond this, only NumPyro's NUTS stands for the chains: each takes minutes.
_MANY_ROWS = 10_000
# A chain that does not have its effective draws after so long is given up.
_LIMIT = 150.0
_REFERENCE = 8000


def main(console: Console) -> None:
    figures: dict[str, dict[str, dict]] = {}
    for rows in ROWS:
        table = Table(title=f"{rows} rows, d = 61, {NUM} particles or effective draws")
        for column in ("", "s, cold", "s, again", "energy ratio", "smallest ESS", "peak MB"):
            table.add_column(column, justify="right")
        found = figures.setdefault(str(rows), {})
        with tempfile.TemporaryDirectory() as folder:
            truth = pathlib.Path(folder) / "truth.npy"
            np.save(truth, _reference(sonar_shaped(rows), rows))
            for name in (OURS, *_CHAINS, *_OTHERS):
                if name in _CHAINS and name != NUTS and rows > _MANY_ROWS:
                    continue
                found[name] = row = _measured(name, rows, truth)
                size = f"{row['ess']:.0f}" if "ess" in row else ""
                numbers = f"{row['cold']:.2f}", f"{row['again']:.2f}", f"{row['energy_ratio']:.2f}"
                table.add_row(name, *numbers, size, f"{row['peak'] / 1e6:.0f}")
        console.print(table)
        record.save("accuracy", figures)


def _measured(name, rows, truth):
    script = "from benchmarks.accuracy import child; child()"
    num_draws = NUM // 4
    while True:
        row = children.run(script, name, str(rows), str(truth), str(num_draws))
        if "again" in row:
            return row
        num_draws = int(num_draws * np.clip(1.2 * NUM / row["ess"], 1.2, 8))


def child() -> None:
    """What each process does: method, rows, reference and draws are its arguments."""
    name, rows, truth, num_draws = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    target, reference = sonar_shaped(rows), np.load(truth)
    if name == OURS:
        row = _ours(target, reference)
    elif name in _CHAINS:
        row = _chain(_CHAINS[name], target, reference, num_draws)
    else:
        run = _OTHERS[name](target, start(NUM), NUM)
        row = _timed(lambda: run()[0], reference)
    print(json.dumps(row | {"peak": children.peak_bytes()}))


def _ours(target, truth):
    results = []

    def run():
        results.append(parvi.sample(target, start(NUM)))
        return results[-1].particles

    row = _timed(run, truth)
    return row | {"steps": results[-1].num_steps, "status": results[-1].status.name}


def _chain(peer, target, truth, num_draws):
    """Run chains as a user would who knew the length; do not repeat those that were too short."""
    from numpyro.diagnostics import effective_sample_size

    run = peer(target, start(NUM), num_draws)
    began = time.perf_counter()
    draws = run()
    cold = time.perf_counter() - began
    size = float(np.min(effective_sample_size(draws)))
    row = {"cold": cold, "ess": size, "draws": draws.shape[0] * draws.shape[1]}
    if size < NUM and cold <= _LIMIT and np.isfinite(size):
        return row
    began = time.perf_counter()
    run()
    again = time.perf_counter() - began
    return row | {"again": again, "energy_ratio": _quality(draws, truth)}


def _timed(run, truth):
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        draws = run()
        seconds.append(time.perf_counter() - began)
    return {"cold": seconds[0], "again": seconds[1], "energy_ratio": _quality(draws, truth)}


def _quality(draws, truth):
    flat = draws.reshape(-1, draws.shape[-1])
    chosen = flat[np.linspace(0, len(flat) - 1, NUM).astype(int)]
    rng = np.random.default_rng(0)
    independent = [energy_distance(truth[rng.choice(len(truth), NUM)], truth) for _ in range(8)]
    return energy_distance(chosen, truth) / float(np.mean(independent))


def _reference(target, rows):
    if rows <= 1000:
        draws = peers.numpyro_nuts(target, start(4, seed=1), _REFERENCE)()
        return draws.reshape(-1, draws.shape[-1])[::4]
    return _by_metropolis(target)


def _by_metropolis(target, num: int = _REFERENCE):
    """Independent proposals of Laplace's approximation, accepted or not: exact, and few repeats."""
    with jax.enable_x64(True):
        signed = jnp.asarray(target.log_density.signed, jnp.float64)

        @jax.jit
        def values(x):
            return jnp.sum(jax.nn.log_sigmoid(x @ signed.T), axis=1) - 0.5 * jnp.sum(x**2, axis=1)

        dim = signed.shape[1]
        density = lambda x: values(x[None])[0]  # noqa: E731
        mode = jnp.zeros(dim)
        for _ in range(30):
            curvature = -jax.hessian(density)(mode)
            mode = mode + jnp.linalg.solve(curvature, jax.grad(density)(mode))
        factor = jnp.linalg.cholesky(jnp.linalg.inv(curvature))
        rng = np.random.default_rng(2)
        normal = rng.normal(size=(num, dim))
        proposals = np.asarray(mode) + normal @ np.asarray(factor).T
        batches = [np.asarray(values(jnp.asarray(part))) for part in np.split(proposals, num // 80)]
        weights = np.concatenate(batches) + 0.5 * np.sum(normal**2, axis=1)
    chain, current = [], 0
    for i in range(num):
        if np.log(rng.uniform()) < weights[i] - weights[current]:
            current = i
        chain.append(current)
    return proposals[chain].astype(np.float32)
