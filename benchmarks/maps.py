"""Transport maps beside NumPyro's autoguides, and their evidence beside tempered SMC.

``python -m benchmarks maps`` runs every cell (target, method, seed) that is not yet in
``results/maps/`` and writes ``docs/benchmarks/maps.md``; name targets to run only those. Seconds
are those of seed 0, with nothing compiled before. The other seeds of a target share its programs,
and say what particles and draws are worth. Guides are trained for as many seconds as the map took,
compilation included for both; what their draws are worth is measured as for the map, by the share
of effective draws of 16 384 weighted ones.
"""

import functools
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.progress import track

import parvi
from benchmarks.posteriors import NUM_PARTICLES, PROBLEMS, Problem, _available, _flat, errors
from parvi.results.transport.importance import Importance

ROOT = pathlib.Path(__file__).parents[1]
STORE, PAGE = ROOT / "results" / "maps", ROOT / "docs" / "benchmarks" / "maps.md"
NUM_DRAWS = 16_384
SEEDS = tuple(range(10))
# Targets that take minutes have fewer seeds.
FEWER = {"mixture-20": 5, "logistic-61": 3}
PEER_SEEDS = (0,)
# The seed whose seconds are measured, with nothing compiled before.
COLD = 0
GUIDES = ("AutoMultivariateNormal", "AutoIAFNormal", "AutoBNAFNormal")
# Steps of a guide between two looks at the clock, and of SMC's transitions.
_CHUNK, _LEAPFROGS, _SHARE = 100, 8, 0.7


@functools.cache
def made(name: str) -> tuple[Problem, parvi.Target]:
    """A problem and its flat target, each made once, so that runs share their programs."""
    problem = PROBLEMS[name]()
    return problem, _flat(problem)


def ours(problem: Problem, target: parvi.Target, seed: int) -> dict[str, Any]:
    """The run, the map, what its draws are worth, and what T(Sobol) is worth as particles."""
    dim = _dim(problem)
    start = np.random.default_rng(seed).normal(size=(NUM_PARTICLES, dim))
    began = time.perf_counter()
    result = parvi.sample(target, start, key=seed, throw=False)
    ran = time.perf_counter()
    out: dict[str, Any] = {
        "status": result.status.name,
        "gradients": result.num_gradients / NUM_PARTICLES,
        "run_seconds": ran - began,
        "worth": errors(problem, result.particles)["worth"],
        "stages": list(dict.fromkeys(result.history["stage"].tolist())),
    }
    ran = time.perf_counter()
    try:
        transport = result.transport
    except ValueError as error:
        return out | {"refused": str(error), "fit_seconds": time.perf_counter() - ran}
    fitted = time.perf_counter()
    found = transport.importance(NUM_DRAWS, seed)
    weighed = time.perf_counter()
    out |= {
        "fit_seconds": fitted - ran,
        "weigh_seconds": weighed - fitted,
        "maps": [type(layer).__name__ for layer in transport.maps],
    }
    again = time.perf_counter()
    transport.importance(NUM_DRAWS, seed + 1)
    out["microseconds_a_draw"] = 1e6 * (time.perf_counter() - again) / NUM_DRAWS
    sobol = transport.draw_flat(seed, NUM_PARTICLES, sobol=True)
    out["worth_of_sobol"] = errors(problem, sobol)["worth"]
    return out | _facts(found)


def _facts(found: Importance) -> dict[str, Any]:
    return {
        "share": found.share,
        "first_share": found.first_share,
        "khat": found.khat,
        "log_evidence": found.log_evidence,
        "standard_error": found.standard_error,
        "trouble": found.trouble,
    }


def guide(problem: Problem, seed: int, name: str, seconds: float) -> dict[str, Any]:
    """A guide of NumPyro's that was trained with Adam for as many seconds, compilation included."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value

    density, dim = problem.target.full(), _dim(problem)

    def model():
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), (dim,)))
        numpyro.factor("density", density(x))

    first = np.random.default_rng(seed).normal(size=dim)
    made = getattr(autoguide, name)(model, init_loc_fn=init_to_value(values={"x": first}))
    began = time.perf_counter()
    svi = SVI(model, made, optax.adam(1e-2), Trace_ELBO(num_particles=16))
    state = svi.init(jax.random.key(seed))

    @jax.jit
    def some(state):
        return jax.lax.scan(lambda s, _: svi.stable_update(s), state, length=_CHUNK)[0]

    steps = 0
    while True:
        state = jax.block_until_ready(some(state))
        steps += _CHUNK
        if time.perf_counter() - began >= seconds:
            break
    params = svi.get_params(state)
    base, transform = made.get_base_dist(), made.get_transform(params)
    z = base.sample(jax.random.key(seed + 1), (NUM_DRAWS,))
    x = jax.vmap(transform)(z)
    log_det = jax.vmap(transform.log_abs_det_jacobian)(z, x)
    log_q = base.log_prob(z) - log_det
    found = Importance.of(x, jax.lax.map(density, x, batch_size=1024) - log_q)
    return _facts(found) | {"steps": steps, "seconds": time.perf_counter() - began}


def smc(problem: Problem, seed: int, gradients: int) -> dict[str, Any]:
    """blackjax's adaptive tempered SMC from a Gaussian of twice the width of the reference draws.

    It is told the target's covariance, and makes as many gradients as the map's fit and draws.
    """
    import blackjax
    from blackjax.smc import resampling

    density, dim = problem.target.full(), _dim(problem)
    pilot = parvi.sample(
        _flat(problem),
        np.random.default_rng(seed).normal(size=(NUM_PARTICLES, dim)),
        key=seed,
        throw=False,
    ).particles
    mean, factor = pilot.mean(axis=0), 2 * np.linalg.cholesky(np.cov(pilot.T).reshape(dim, dim))

    def log_base(z):
        return -0.5 * jnp.sum(z**2)

    def log_target(z):
        return density(mean + factor @ z)

    def passed(num_steps):
        kernel = blackjax.adaptive_tempered_smc(
            log_base,
            lambda z: log_target(z) - log_base(z),
            blackjax.hmc.build_kernel(),
            blackjax.hmc.init,
            {
                "step_size": jnp.full(1, 0.2),
                "inverse_mass_matrix": jnp.ones((1, dim)) / 4,
                "num_integration_steps": jnp.full(1, _LEAPFROGS),
            },
            resampling.systematic,
            target_ess=_SHARE,
            num_mcmc_steps=num_steps,
        )
        step = jax.jit(kernel.step)
        key, own = jax.random.split(jax.random.key(seed))
        state = kernel.init(jax.random.normal(own, (NUM_PARTICLES, dim)))
        evidence = 0.5 * dim * np.log(2 * np.pi) + np.linalg.slogdet(factor)[1]
        count = 0
        while float(state.tempering_param) < 1:
            key, own = jax.random.split(key)
            state, info = step(own, state)
            evidence, count = evidence + float(info.log_likelihood_increment), count + 1
        return evidence, count

    began = time.perf_counter()
    _, count = passed(1)
    num_steps = max(1, round(gradients / NUM_PARTICLES / (_LEAPFROGS * count)))
    evidence, count = passed(num_steps)
    return {
        "log_evidence": float(evidence),
        "gradients": NUM_PARTICLES * count * (1 + num_steps * _LEAPFROGS),
        "seconds": time.perf_counter() - began,
    }


def cell(name: str, method: str, seed: int) -> dict[str, Any]:
    if method != "map" or seed == COLD:
        jax.clear_caches()
        made.cache_clear()
    problem, target = made(name)
    if method == "map":
        return ours(problem, target, seed)
    mine = _read(name, "map", seed)
    with jax.enable_x64(True):
        if method == "smc":
            # 17 rounds of twice 2048 points, and the weighted draws.
            return smc(problem, seed, 17 * 2 * 2048 + NUM_DRAWS)
        return guide(problem, seed, method, mine["run_seconds"] + mine["fit_seconds"])


def _dim(problem: Problem) -> int:
    assert problem.target.layout is not None
    return problem.target.layout.dim


def main(console: Console, names: Sequence[str] = ()) -> None:
    names = _available(console, names or list(PROBLEMS))
    STORE.mkdir(parents=True, exist_ok=True)
    # What is timed comes first, and then one target after another.
    work = [(n, "map", COLD) for n in names]
    work += [(n, m, s) for s in PEER_SEEDS for n in names for m in (*GUIDES, "smc")]
    work += [(n, "map", s) for n in names for s in _seeds(n) if s != COLD]
    work = [w for w in work if not _path(*w).exists()]
    for name, method, seed in track(work, "maps", console=console):
        _path(name, method, seed).write_text(json.dumps(cell(name, method, seed), indent=1))
    PAGE.write_text(page())
    console.print(f"Page: {PAGE.relative_to(ROOT)}")


def _seeds(name: str) -> tuple[int, ...]:
    return SEEDS[: FEWER.get(name)]


def _path(name: str, method: str, seed: int) -> pathlib.Path:
    return STORE / f"{name}.{method}.{seed}.json"


def _read(name: str, method: str, seed: int) -> dict[str, Any]:
    path = _path(name, method, seed)
    return json.loads(path.read_text()) if path.exists() else {}


def page() -> str:
    """What the draws of maps and of guides are worth, and the evidence."""
    lines = [
        "# Maps",
        "",
        "Made by `python -m benchmarks maps` from the cells in `results/maps/`:",
        f"`result.transport` after a run of the default with {NUM_PARTICLES} particles, float64,",
        f"default settings. *Share*: the share of effective draws among {NUM_DRAWS} weighted",
        "ones, smallest and largest over the seeds; *refused*: runs in which parvi said that",
        "there is no map, of as many as there are seeds. *Worth*: the worth of a particle of the",
        "run and of one of 512 images of Sobol points, in independent draws: median, and smallest",
        "to largest over the seeds.",
        f"Seconds are those of seed {COLD}, compilation included; a draw is timed with its",
        "weight, after compilation. Guides are NumPyro's, trained with Adam 1e-2 for as many",
        f"seconds as run and fit took (seed {PEER_SEEDS[0]}).",
        "",
        "| target | share | refused | worth: run | worth: map | run, s | fit, s | weigh, s | "
        "a draw, us | normal guide | IAF | BNAF |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    evidence = [
        "",
        "## Log evidence",
        "",
        f"The log evidence of seed {COLD} with its standard error, and that of blackjax's adaptive",
        f"tempered SMC with {NUM_PARTICLES} particles and as many gradients as the map's fit and",
        "draws. SMC starts from a Gaussian that is twice as wide as the target in every direction;",
        "it is told the target's covariance.",
        "",
        "| target | map | standard error | range over the seeds | SMC | off by |",
        "|---|---|---|---|---|---|",
    ]
    for name in PROBLEMS:
        rows = [row for row in (_read(name, "map", seed) for seed in SEEDS) if row]
        if rows:
            lines.append(_line(name, rows))
        made = [row for row in rows if "share" in row]
        if made:
            evidence.append(_evidence(name, made))
    return "\n".join([*lines, "", *_closing(), *evidence, ""])


def _line(name: str, rows: list[dict[str, Any]]) -> str:
    made, cold = [row for row in rows if "share" in row], _read(name, "map", COLD)
    seconds = [
        f"{cold[key]:.{digits}f}" if key in cold else "-"
        for key, digits in (
            ("run_seconds", 1),
            ("fit_seconds", 1),
            ("weigh_seconds", 1),
            ("microseconds_a_draw", 0),
        )
    ]
    shares = sorted(row["share"] for row in made)
    cells = [
        name,
        f"{shares[0]:.2f} to {shares[-1]:.2f}" if shares else "-",
        f"{len(rows) - len(made)} of {len(rows)}",
        _spread([row["worth"] for row in rows]),
        _spread([row["worth_of_sobol"] for row in made]),
        *seconds,
        *(_share(_read(name, guide, PEER_SEEDS[0])) for guide in GUIDES),
    ]
    return f"| {' | '.join(cells)} |"


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{np.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _evidence(name: str, made: list[dict[str, Any]]) -> str:
    first, other = made[0], _read(name, "smc", PEER_SEEDS[0]).get("log_evidence")
    found = [row["log_evidence"] for row in made]
    peer = ["-", "-"]
    if other is not None:
        peer = [f"{other:.4f}", f"{other - np.median(found):+.4f}"]
    own = f"{first['log_evidence']:.4f} | {first['standard_error']:.4f} | {np.ptp(found):.4f}"
    return f"| {name} | {own} | {' | '.join(peer)} |"


def _closing() -> list[str]:
    """How often the images of Sobol points were worth more than the particles of their run."""
    pairs = [
        (row["worth_of_sobol"], row["worth"])
        for name in PROBLEMS
        for row in (_read(name, "map", seed) for seed in SEEDS)
        if "worth_of_sobol" in row
    ]
    if not pairs:
        return []
    better = sum(image > own for image, own in pairs)
    ratio = np.exp(np.median([np.log(image / own) for image, own in pairs]))
    return [
        f"The images of Sobol points were worth more than the particles of the same run in "
        f"{better} of {len(pairs)} runs, by a median factor of {ratio:.2f}.",
        "",
    ]


def _share(row: dict[str, Any]) -> str:
    return f"{row['share']:.2f}" if "share" in row else "-"
