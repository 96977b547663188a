"""Figures 1, 2, 4 and 7: flows between Gaussians, where every regulariser takes its own path.

Affine methods run at the paper's step of 1e-3 on particles whose moments are exactly those of
N(0, I), so they follow the flow of infinitely many particles. SVGD with the RBF kernel and the
network run on 1000 particles with 1e-2.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from parvi.cloud import Cloud
from parvi.experiments.cells import Experiment
from parvi.experiments.figures import panels, save
from parvi.experiments.moments import exact_normal, moments_along
from parvi.experiments.tables import chosen, footnote, markdown
from parvi.fields import PFG, SVGD, GradientDescent, Ridge
from parvi.functions import MLP, Linear
from parvi.kernels import RBF, LinearKernel
from parvi.preconditioners import Hessian, Identity
from parvi.results.metrics import gaussian_kl
from parvi.samplers.flow import Flow
from parvi.steppers import Constant
from parvi.targets.gaussian import gaussian

_SGD = optax.sgd(1e-2, momentum=0.9, nesterov=True)
_NUM_RECORDS = 100
_HORIZON = 10.0

# Means and variances of the four cases of Figure 4; Figures 1 and 2 use the last.
_CASES = {
    "a": ((1.0, 1.0), (1.0, 1.0)),
    "b": ((1.0, 1.0), (100.0, 1.0)),
    "c": ((20.0, 20.0), (1.0, 1.0)),
    "d": ((20.0, 20.0), (100.0, 1.0)),
}
_NAMES = {
    "SVGD (linear)": "SVGD, linear kernel",
    "SVGD (RBF)": "SVGD, RBF kernel",
    "PFG (I)": "PFG, H = I",
    "PFG (Hessian)": "PFG, H = Σ*⁻¹",
    "PFG (network)": "PFG, network, H = Σ*⁻¹",
}


def _method(name):
    """The method's field, step size and number of particles."""
    network = GradientDescent(_SGD, num_steps=10, warm_up=500)
    return {
        "SVGD (linear)": (SVGD(LinearKernel()), 1e-3, 100),
        "SVGD (RBF)": (SVGD(RBF()), 1e-2, 1000),
        "PFG (I)": (PFG(Linear(), Identity(), Ridge(0.0)), 1e-3, 100),
        "PFG (Hessian)": (PFG(Linear(), Hessian(), Ridge(0.0)), 1e-3, 100),
        "PFG (network)": (PFG(MLP(32), Hessian(), network), 1e-2, 1000),
    }[name]


def _settings(quick):
    cases = ["d"] if quick else list(_CASES)
    records = 2 if quick else _NUM_RECORDS
    return [
        {"case": case, "method": method, "records": records} for case in cases for method in _NAMES
    ]


def _run(setting):
    mean, variances = map(np.array, _CASES[setting["case"]])
    field, step, num = _method(setting["method"])
    every = round(_HORIZON / _NUM_RECORDS / step)
    target, sampler = gaussian(mean, np.diag(variances)), Flow(field, Constant(step))
    out = moments_along(sampler, target, exact_normal(num, 2), setting["records"], every)
    # A flow that has overflowed has an infinite KL, as linear SVGD has far away.
    kl = [
        float(gaussian_kl(m, c, mean, np.diag(variances))) if _proper(m, c) else None
        for m, c in zip(out.means, out.covariances, strict=True)
    ]
    return {
        "times": [round(i * every * step, 6) for i in range(len(kl))],
        "mean_error": [_finite(np.sum((m - mean) ** 2)) for m in out.means],
        "kl": kl,
        "means": [[_finite(v) for v in m] for m in out.means],
        "covariance_at_5": [[_finite(v) for v in row] for row in out.covariances[len(kl) // 2]],
        "particles": num,
        "step_size": step,
    }


def _proper(mean, covariance):
    finite = np.isfinite(mean).all() and np.isfinite(covariance).all()
    return bool(finite and np.linalg.eigvalsh(covariance).min() > 1e-12)


def _finite(value):
    return float(value) if np.isfinite(value) else None


def _grid(high):
    axis = np.linspace(-high, high, 15)
    return np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


def _field_settings(quick):
    names = ["PFG (I)", "transport"] if quick else [*_FIELDS, *_CURL]
    return [{"field": name} for name in names]


# Figure 1: the velocities of four regularisers, and optimal transport.
_FIELDS = {
    "SVGD (linear)": "½‖f‖²_H, linear kernel",
    "SVGD (RBF)": "½‖f‖²_H, RBF kernel",
    "PFG (I)": "½E‖f‖²",
    "PFG (Hessian)": "½E‖f‖²_Σ*⁻¹",
    "transport": "optimal transport",
}
# Figure 7: the term μ* μ_t' x of linear SVGD and its Helmholtz parts.
_CURL = {"whole": "μ* μₜᵀ x", "curl": "its curl part", "divergence": "its divergence part"}


def _run_field(setting):
    name = setting["field"]
    if name in _CURL:
        matrix = np.outer([20.0, 20.0], [0.0, 10.0])
        curl, divergence = (matrix - matrix.T) / 2, (matrix + matrix.T) / 2
        part = {"whole": matrix, "curl": curl, "divergence": divergence}[name]
        points = _grid(10)
        return {"points": points.tolist(), "vectors": (points @ part.T).tolist()}
    mean, variances = map(np.array, _CASES["d"])
    points = _grid(3)
    if name == "transport":
        # The map from N(0, I) is m* + S*^(1/2) x.
        vectors = mean + points * (np.sqrt(variances) - 1)
    else:
        field, _, num = _method(name)
        log_density = gaussian(mean, np.diag(variances)).full()
        with jax.enable_x64(True):
            start = jnp.asarray(exact_normal(num, 2))
            vectors = np.asarray(_fitted(field, log_density, start, jnp.asarray(points)))
    return {"points": points.tolist(), "vectors": vectors.tolist()}


@eqx.filter_jit
def _fitted(field, log_density, particles, points):
    key = jax.random.key(0)
    fit = field.fit(key, Cloud.at(log_density, particles), field.init(key, particles))[0]
    return jax.vmap(fit.velocity)(points)


def _field_page(cells, folder):
    text = []
    for label, names in (("figure-1", _FIELDS), ("figure-7", _CURL)):
        found = [c for c in cells if c.setting["field"] in names]
        if not found:
            continue
        figure, axes = panels(1, len(found))
        for ax, cell in zip(axes[0], found, strict=True):
            _arrows(ax, np.array(cell.result["points"]), np.array(cell.result["vectors"]))
            ax.set_title(names[cell.setting["field"]])
        text.append(save(figure, folder, label))
    by_name = {c.setting["field"]: np.array(c.result["vectors"]) for c in cells}
    rows = []
    if "transport" in by_name:
        best = by_name.pop("transport")
        for name in [name for name in _FIELDS if name in by_name]:
            dots = np.sum(by_name[name] * best, axis=1)
            lengths = np.linalg.norm(by_name[name], axis=1) * np.linalg.norm(best, axis=1)
            cosines = dots / lengths
            middle, whole = cosines[len(cosines) // 2], np.mean(cosines)
            rows.append([_FIELDS[name], f"{middle:.3f}", f"{whole:.3f}"])
    intro = (
        "The figures show g(0, x) from N(0, I) towards N([20, 20], diag(100, 1)), with darker "
        "arrows where it is larger within a panel, and the "
        "Helmholtz parts of the term μ* μₜᵀ x of linear SVGD at μₜ = [0, 10]. The table gives the "
        "cosine of the angle to optimal transport, at the mean of the particles and on average "
        "over the grid. At the mean only the last regulariser points where transport does. Around "
        "the mean it spreads by Σ* - I, whereas transport spreads by its root, so over the grid "
        "this regulariser is not the nearest. The paper says that it alone approximates transport, "
        "and shows pictures.\n\n"
    )
    table = markdown(["regulariser", "at the mean", "over the grid"], rows) if rows else ""
    return intro + table + "\n" + "\n".join(text) + "\n" + footnote(cells)


def _arrows(ax, points, vectors):
    """Arrows of one length, with their size over the largest in this panel as a colour."""
    sizes = np.linalg.norm(vectors, axis=1)
    directions = vectors / np.maximum(sizes, np.finfo(float).tiny)[:, None]
    ax.quiver(
        *points.T,
        *directions.T,
        sizes / sizes.max(),
        angles="xy",
        pivot="mid",
        width=0.007,
        scale=22,
        cmap="viridis_r",
        clim=(0, 1),
    )
    ax.set_aspect("equal")


def _page(cells, folder):
    cases = [case for case in _CASES if chosen(cells, case=case)]
    figure, axes = panels(2, len(cases), 3.0)
    for column, case in enumerate(cases):
        for cell in chosen(cells, case=case):
            name = cell.setting["method"]
            for row, number in enumerate(("mean_error", "kl")):
                # Where the flow has overflowed, the value is None and becomes NaN.
                series = np.maximum(np.array(cell.result[number], float), 1e-16)
                axes[row][column].semilogy(cell.result["times"], series, label=_NAMES[name])
        mean, variances = _CASES[case]
        centre, spread = (", ".join(f"{value:g}" for value in row) for row in (mean, variances))
        axes[0][column].set_title(f"({case}) μ* = ({centre}), Σ* = diag({spread})")
        axes[1][column].set_xlabel("t")
    axes[0][0].set_ylabel("‖μₜ − μ*‖²")
    axes[1][0].set_ylabel("KL")
    axes[0][0].legend()
    paths = [c for c in chosen(cells, case="d") if c.setting["method"] != "PFG (network)"]
    pictures = [save(figure, folder, "figure-4")]
    if paths:
        pictures.append(_draw_paths(paths, folder))
    table = [
        [_NAMES[name], *(_last_kl(chosen(cells, case=case, method=name)) for case in cases)]
        for name in _NAMES
    ]
    text = (
        "Figure 4 shows the distance of the mean and the KL divergence over time. Affine methods "
        "take steps of 1e-3 with exact moments; the RBF kernel and the network take steps of 1e-2 "
        "with the moments of 1000 particles, so their KL is that of the fitted Gaussian. Figure 2 "
        "shows the paths of the mean and p(5, x) in case d, with one standard deviation. The table "
        "gives the KL divergence at t = 10.\n\n"
    )
    header = ["", *(f"({case})" for case in cases)]
    return text + markdown(header, table) + "\n" + "\n".join(pictures) + "\n" + footnote(cells)


def _last_kl(cells):
    if not cells:
        return ""
    last = cells[0].result["kl"][-1]
    return "not finite" if last is None else f"{last:.2g}"


def _draw_paths(cells, folder):
    mean, variances = map(np.array, _CASES["d"])
    figure, axes = panels(2, len(cells), 2.8)
    angle = np.linspace(0, 2 * np.pi, 100)
    reach = mean + 1.2 * np.sqrt(variances)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    for column, cell in enumerate(cells):
        path = np.array(cell.result["means"], float)
        axes[0][column].plot(*path.T, ".-", markersize=2)
        axes[0][column].plot(*mean, "k+")
        axes[0][column].set_title(_NAMES[cell.setting["method"]])
        covariance = cell.result["covariance_at_5"]
        axes[1][column].plot(*(mean + circle * np.sqrt(variances)).T, "k--", linewidth=0.8)
        if all(v is not None for row in covariance for v in row):
            values, vectors = np.linalg.eigh(np.array(covariance))
            ring = path[len(path) // 2] + circle * np.sqrt(np.maximum(values, 0)) @ vectors.T
            axes[1][column].plot(*ring.T)
        # The same square everywhere, with the start and the target in it.
        for axis in axes[:, column]:
            axis.set(xlim=(-4, reach.max()), ylim=(-4, reach.max()), aspect="equal")
    axes[0][0].set_ylabel("mean")
    axes[1][0].set_ylabel("t = 5")
    return save(figure, folder, "figure-2")


FIELDS = Experiment(
    "fields",
    "Figures 1 and 7: velocities of the regularisers",
    _field_settings,
    _run_field,
    _field_page,
)
FLOWS = Experiment("flows", "Figures 2 and 4: flows between Gaussians", _settings, _run, _page)
