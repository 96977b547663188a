"""The default on shapes of other kinds, scales, weights, tails, dimensions and starts.

``python -m benchmarks unseen`` runs every cell (shape, seed) that is not yet in ``results/unseen/``
and writes ``docs/benchmarks/unseen.md``; name shapes to run only those. Every shape can be drawn
from exactly, so each error is divided by that of as many independent draws: the root mean square
over ``NUM_SETS`` sets of them, which is right for tails of any kind.
"""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Float
from rich.console import Console
from rich.progress import track

from benchmarks.ours import default
from parvi.results.metrics import energy_distance, mean_distance
from parvi.targets import zoo

ROOT = pathlib.Path(__file__).parents[1]
STORE, PAGE = ROOT / "results" / "unseen", ROOT / "docs" / "benchmarks" / "unseen.md"
SEEDS = range(3)
NUM_TRUTH, NUM_SETS, NUM_ENERGY = 400_000, 200, 10_000
# Errors of more than this many times that of independent draws are wrong.
WRONG = 2.0


class Shape(NamedTuple):
    """A density with exact draws, how many particles it gets, and where they start."""

    log_density: Callable
    draw: Callable[[np.random.Generator, int], Float[np.ndarray, "n d"]]
    num: int = 512
    centre: float = 0.0
    width: float = 1.0


def _of(exact: zoo.Exact, **options) -> Shape:
    return Shape(exact.target.full(), exact.draw, **options)


def gaussian(dim: int, condition: float, **options) -> Shape:
    return _of(zoo.rotated_gaussian(dim, condition, seed=11), **options)


def scales() -> Shape:
    """Standard deviations from 1e-4 to 1e4."""
    sds = np.geomspace(1e-4, 1e4, 8)

    def draw(rng, num):
        return sds * rng.normal(size=(num, len(sds)))

    return Shape(lambda x: -0.5 * jnp.sum((x / sds) ** 2), draw)


def log_gammas(dim: int, shape: float) -> Shape:
    """Logs of Gamma variables: an exponential tail on one side, a double one on the other."""

    def draw(rng, num):
        # Gamma(a) is Gamma(a + 1) U^(1 / a), whose log does not underflow.
        larger = np.log(rng.gamma(shape + 1, size=(num, dim)))
        return larger + np.log(rng.random((num, dim))) / shape

    return Shape(lambda x: jnp.sum(shape * x - jnp.exp(x)), draw)


def students(dim: int, degrees: float) -> Shape:
    """Independent Student-t coordinates, turned."""
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(dim, dim)))[0]

    def log_density(x):
        return -0.5 * (degrees + 1) * jnp.sum(jnp.log1p((turn.T @ x) ** 2 / degrees))

    return Shape(log_density, lambda rng, num: rng.standard_t(degrees, (num, dim)) @ turn.T)


def sinh_arcsinh(dim: int, weight: float = 0.7) -> Shape:
    """x = sinh(asinh(z) / weight) of correlated normals z: tails between a normal's and a t's."""
    factor = np.linalg.cholesky(0.6 * np.ones((dim, dim)) + 0.4 * np.eye(dim))
    inverse = np.linalg.inv(factor)

    def log_density(x):
        y = jnp.arcsinh(x)
        z = jnp.sinh(weight * y)
        log_slopes = jnp.log(jnp.cosh(weight * y)) - 0.5 * jnp.log1p(x**2)
        return -0.5 * jnp.sum((inverse @ z) ** 2) + jnp.sum(log_slopes)

    def draw(rng, num):
        return np.sinh(np.arcsinh(rng.normal(size=(num, dim)) @ factor.T) / weight)

    return Shape(log_density, draw)


def laplace(dim: int) -> Shape:
    """Independent Laplace coordinates, with a kink at their mode."""
    return Shape(lambda x: -jnp.sum(jnp.abs(x - 1)), lambda rng, n: rng.laplace(1, 1, (n, dim)))


def product(log_density: Callable, dim: int, reach: float, turned: bool = False, **options):
    """Independent coordinates of one density, which are drawn from a fine grid."""
    grid = np.linspace(-reach, reach, 200_001)
    with jax.enable_x64(True):
        logs = np.asarray(jax.vmap(log_density)(jnp.asarray(grid)))
    total = np.cumsum(np.exp(logs - logs.max()))
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(dim, dim)))[0]
    turn = turn if turned else np.eye(dim)

    def draw(rng, num):
        return np.interp(rng.random((num, dim)), total / total[-1], grid) @ turn.T

    def whole(x):
        return jnp.sum(jax.vmap(log_density)(turn.T @ x))

    return Shape(whole, draw, **options)


def shell(dim: int, radius: float, width: float) -> Shape:
    """A ring or a shell: the radius is close to normal, the direction uniform."""
    near = np.linspace(max(1e-6, radius - 12 * width), radius + 12 * width, 100_001)
    logs = -0.5 * ((near - radius) / width) ** 2 + (dim - 1) * np.log(near)
    total = np.cumsum(np.exp(logs - logs.max()))

    def draw(rng, num):
        z = rng.normal(size=(num, dim))
        radii = np.interp(rng.random(num), total / total[-1], near)
        return radii[:, None] * z / np.linalg.norm(z, axis=1, keepdims=True)

    def log_density(x):
        return -0.5 * ((jnp.sqrt(jnp.sum(x**2) + 1e-12) - radius) / width) ** 2

    return Shape(log_density, draw)


def mixture(means, sds, weights, **options) -> Shape:
    """Gaussians with axes of their own: ``sds`` has a row for every mode."""
    means, weights = np.asarray(means, float), np.asarray(weights, float)
    sds = np.broadcast_to(np.asarray(sds, float), means.shape)

    def log_density(x):
        each = -0.5 * jnp.sum(((x - means) / sds) ** 2, axis=1) - np.sum(np.log(sds), axis=1)
        return logsumexp(each + np.log(weights))

    def draw(rng, num):
        rows = rng.choice(len(weights), size=num, p=weights)
        return means[rows] + sds[rows] * rng.normal(size=(num, means.shape[1]))

    return Shape(log_density, draw, **options)


def _apart(dim: int, distance: float) -> np.ndarray:
    """Two means at that distance, in a direction that is no axis."""
    direction = np.random.default_rng(dim).normal(size=dim)
    return np.outer([-0.5, 0.5], distance * direction / np.linalg.norm(direction))


def turned_funnel(dim: int, scale: float) -> Shape:
    """A funnel whose neck lies along no axis."""
    exact = zoo.funnel(dim, scale)
    turn = np.linalg.qr(np.random.default_rng(8).normal(size=(dim, dim)))[0]
    density = exact.target.full()
    return Shape(lambda x: density(turn.T @ x), lambda rng, n: exact.draw(rng, n) @ turn.T)


def rosenbrock(dim: int, noise: float) -> Shape:
    """A chain of ridges: x_1 ~ N(0, 1), and x_i ~ N(x_{i-1}^2, noise^2) up to the last."""

    def log_density(x):
        return -0.5 * x[0] ** 2 - 0.5 * jnp.sum(((x[1:] - x[:-1] ** 2) / noise) ** 2)

    def draw(rng, num):
        columns = [rng.normal(size=num)]
        for _ in range(dim - 1):
            columns.append(columns[-1] ** 2 + noise * rng.normal(size=num))
        return np.column_stack(columns)

    return Shape(log_density, draw)


# Looked at while something was mended that they had shown.
LOOKED_AT = ("three, d = 8", "cross", "ridges, d = 3")

SHAPES: dict[str, Callable[[], Shape]] = {
    "gaussian-2, condition 1e6": lambda: gaussian(2, 1e6),
    "gaussian-20, 64 particles": lambda: gaussian(20, 100.0, num=64),
    "gaussian-200": lambda: gaussian(200, 1e3),
    "gaussian-400, fewer than 1.5 d": lambda: gaussian(400, 100.0),
    "gaussian-5, started far and tight": lambda: gaussian(5, 10.0, centre=100.0, width=0.01),
    "gaussian-5, started wide": lambda: gaussian(5, 10.0, width=50.0),
    "scales from 1e-4 to 1e4": scales,
    "log-gammas 0.5, d = 4": lambda: log_gammas(4, 0.5),
    "log-gammas 0.3, d = 20": lambda: log_gammas(20, 0.3),
    "t with 3 degrees, d = 10": lambda: _of(zoo.student_t(10, 3.0)),
    "turned independent t with 4": lambda: students(8, 4.0),
    "sinh-arcsinh, d = 5": lambda: sinh_arcsinh(5),
    "laplace, d = 6": lambda: laplace(6),
    "box, d = 4": lambda: product(lambda x: -((x / 3) ** 16), 4, 6.0),
    "turned quartic, d = 30": lambda: product(lambda x: -(x**4), 30, 6.0, turned=True),
    "ripples, d = 1": lambda: product(lambda x: 2 * jnp.cos(3 * x) - x**2 / 8, 1, 20.0),
    "ripples, d = 2": lambda: product(lambda x: 2 * jnp.cos(3 * x) - x**2 / 8, 2, 20.0),
    "slanted double wells, d = 3": lambda: product(lambda x: 2 * x**2 - x**4 / 4 + x / 3, 3, 8.0),
    "ring": lambda: shell(2, 4.0, 0.3),
    "shell, d = 10": lambda: shell(10, 8.0, 0.5),
    "two widths 0.3 and 1.5": lambda: mixture(_apart(3, 8.0), [[0.3], [1.5]], [0.15, 0.85]),
    "two, 0.05 and 0.95": lambda: mixture(_apart(2, 7.0), 1.0, [0.05, 0.95]),
    "two, 16 apart": lambda: mixture(_apart(2, 16.0), 1.0, [0.3, 0.7]),
    "two that touch, d = 10": lambda: mixture(_apart(10, 3.0), 1.0, [0.3, 0.7]),
    "two, 128 particles": lambda: mixture(_apart(5, 8.0), [[0.7], [1.2]], [0.4, 0.6], num=128),
    "three, d = 8": lambda: mixture(
        4 * np.eye(3, 8), [[1.0], [0.6], [1.5]], np.array([0.1, 0.3, 0.6])
    ),
    "cross": lambda: mixture(np.zeros((2, 2)), [[4.0, 0.2], [0.2, 4.0]], [0.3, 0.7]),
    "funnel, d = 5": lambda: _of(zoo.funnel(5, 2.0)),
    "funnel, d = 30": lambda: _of(zoo.funnel(30, 1.0)),
    "turned funnel, d = 6": lambda: turned_funnel(6, 1.5),
    "turned banana": lambda: _of(zoo.banana(0.3, turned=0.7)),
    "ridges, d = 3": lambda: rosenbrock(3, 0.5),
    # Twins of those that were looked at; nothing was chosen on them.
    "three, d = 6": lambda: mixture(
        6 * np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0][:3] / np.sqrt(2),
        [[0.8], [0.4], [1.2]],
        np.array([0.25, 0.15, 0.6]),
    ),
    "four, d = 10": lambda: mixture(
        5 * np.eye(4, 10), [[0.7], [1.0], [1.4], [0.5]], np.array([0.1, 0.35, 0.35, 0.2])
    ),
    "cross, d = 3": lambda: mixture(
        np.zeros((3, 3)), [[4, 0.3, 0.3], [0.3, 3, 0.3], [0.3, 0.3, 5]], np.array([0.2, 0.5, 0.3])
    ),
    "ridges, d = 3, wide": lambda: rosenbrock(3, 1.0),
}


def cell(name: str, seed: int) -> dict:
    shape = SHAPES[name]()
    rng = np.random.default_rng(100)
    truth = shape.draw(rng, NUM_TRUTH)
    start = np.random.default_rng(seed).normal(size=(shape.num, truth.shape[1]))
    jax.clear_caches()
    outcome = default(shape.log_density, shape.centre + shape.width * start)(seed)
    sets = shape.draw(rng, NUM_SETS * shape.num).reshape(NUM_SETS, shape.num, -1)
    facts = {"dim": truth.shape[1], "gradients": outcome.gradients / shape.num}
    return outcome.facts | facts | _errors(outcome.particles, truth, sets)


def _errors(particles, truth, sets) -> dict:
    """The errors of means, sds and energy distance over those of independent draws."""
    mean, sd = truth.mean(axis=0), truth.std(axis=0)

    def moments(x):
        return (x.mean(axis=-2) - mean) / sd, np.log(x.std(axis=-2) / sd)

    units = [np.sqrt(np.mean(found**2)) for found in moments(sets)]
    ours = [np.sqrt(np.mean(found**2)) for found in moments(particles)]
    some = truth[:NUM_ENERGY]
    # Of n independent draws, the expected distance is E |x - x'| / n.
    ratio = energy_distance(particles / sd, some / sd) * len(particles) / mean_distance(some / sd)
    sds = particles.std(axis=0) / sd
    return {
        "mean_error": float(ours[0] / units[0]),
        "sd_error": float(ours[1] / units[1]),
        "energy": float(ratio),
        "sds": [float(sds.min()), float(sds.max())],
    }


def is_wrong(row: dict) -> bool:
    """Whether means or standard deviations are worse than a quarter as many draws would be."""
    return not max(row["mean_error"], row["sd_error"]) <= WRONG


def main(console: Console, names: Sequence[str] = ()) -> None:
    unknown = sorted(set(names) - set(SHAPES))
    if unknown:
        raise SystemExit(f"Unknown shapes {unknown}; there are {', '.join(SHAPES)}.")
    STORE.mkdir(parents=True, exist_ok=True)
    work = [(n, s) for s in SEEDS for n in names or SHAPES if not _path(n, s).exists()]
    for name, seed in track(work, "unseen", console=console):
        _path(name, seed).write_text(json.dumps(cell(name, seed), indent=1))
    PAGE.write_text(page())
    console.print(f"Page: {PAGE.relative_to(ROOT)}")


def _path(name: str, seed: int) -> pathlib.Path:
    plain = "".join(c if c.isalnum() or c in ".-" else "-" for c in name.replace(",", ""))
    return STORE / f"{plain}.{seed}.json"


def page() -> str:
    lines = [
        "# Shapes of other kinds",
        "",
        "Made by `python -m benchmarks unseen` from the cells in `results/unseen/`: shapes that",
        "can be drawn from exactly, 512 particles from N(0, I) unless the name says otherwise, no",
        "setting. Errors of means and of standard deviations (of their logs) are root mean squares",
        "over the coordinates, divided by those of as many independent draws; *energy* is the",
        "energy distance over that of as many independent draws. Medians over the seeds; *sds* is",
        "the range of all. Seconds were measured beside other work.",
        "",
        f"No setting was chosen on these shapes, but what {_and(LOOKED_AT)}",
        "had shown was mended ([decision 23](../decisions/0023-mass-beyond.md) and",
        "[24](../decisions/0024-known-modes.md)). The last four are their twins, on which nothing",
        "was chosen.",
        "",
        _summary(),
        "",
        "| shape | d | status (clean check) | mean | sd | energy | sds | gradients | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in SHAPES:
        rows = _rows(name)
        if not rows:
            continue
        said = ", ".join(f"{r['status']} ({'yes' if r['ok'] else 'no'})" for r in rows)
        low, high = min(r["sds"][0] for r in rows), max(r["sds"][1] for r in rows)
        middle = [
            f"{np.median([r[key] for r in rows]):.{digits}f}"
            for key, digits in (("mean_error", 2), ("sd_error", 2), ("energy", 2))
        ]
        ends = [f"{np.median([r[key] for r in rows]):.0f}" for key in ("gradients", "seconds")]
        cells = [name, str(rows[0]["dim"]), said, *middle, f"{low:.2f} to {high:.2f}", *ends]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _rows(name: str) -> list[dict]:
    return [json.loads(_path(name, s).read_text()) for s in SEEDS if _path(name, s).exists()]


def _and(names: Sequence[str]) -> str:
    """The names in words."""
    return " and ".join([", ".join(f"*{name}*" for name in names[:-1]), f"*{names[-1]}*"])


def _summary() -> str:
    rows = [row for name in SHAPES for row in _rows(name)]
    wrong = [row for row in rows if is_wrong(row)]
    silent = [row for row in wrong if row["status"] == "CONVERGED" and row["ok"]]
    better = [row for row in rows if max(row["mean_error"], row["sd_error"]) < 1]
    flagged = [row for row in rows if not is_wrong(row)]
    flagged = [row for row in flagged if row["status"] != "CONVERGED" or not row["ok"]]
    return (
        f"Of {len(rows)} runs {len(better)} are closer than independent draws in means and in "
        f"standard deviations. {len(wrong)} are off by more than {WRONG:g} times the error of "
        f"these, and {len(silent)} of those end as CONVERGED with a clean check. Of those that "
        f"are not off, {len(flagged)} are flagged."
    )
