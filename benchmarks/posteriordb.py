"""Eight posteriors of posteriordb: the models, written from its descriptions, as parvi targets.

Data and reference draws are read from the folder ``posteriordb`` of the data folder
(``PARVI_DATA``): ``<name>.data.json`` and ``<name>.reference.npz``.
"""

import json
import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import cauchy, gamma, norm
from jaxtyping import Float

import parvi


class Posterior(NamedTuple):
    """A target, its reference draws, and the way from particles to the draws' columns."""

    target: parvi.Target
    draws: Float[np.ndarray, "m p"]
    columns: Callable


def folder() -> pathlib.Path:
    """Where the files are, or a ``FileNotFoundError`` that says how to get them."""
    root = os.environ.get("PARVI_DATA", "")
    for place in (pathlib.Path(root) / "posteriordb", pathlib.Path(root)):
        if root and (place / "arK-arK.data.json").exists():
            return place
    raise FileNotFoundError(
        f"PARVI_DATA={root!r} has no folder posteriordb with files such as arK-arK.data.json and "
        "arK-arK.reference.npz: get them from github.com/stan-dev/posteriordb and point PARVI_DATA "
        "at the folder above them."
    )


def load(name: str) -> Posterior:
    """One of ``MODELS``."""
    place = folder()
    data = json.loads((place / f"{name}.data.json").read_text())
    data = {key: np.asarray(value, float) for key, value in data.items()}
    with np.load(place / f"{name}.reference.npz", allow_pickle=False) as file:
        draws = file["draws"]
    target, columns = MODELS[name](data)
    return Posterior(target, draws, columns)


def _stack(*names):
    """Particles to columns: these parameters side by side."""

    def columns(particles):
        return np.concatenate([np.reshape(particles[n], (len(particles[n]), -1)) for n in names], 1)

    return columns


def _regression(design, response, prior=lambda p: 0.0):
    """response ~ N(design beta, sigma), with ``prior`` a log density of beta and sigma."""

    def log_density(p):
        mean = jnp.asarray(design, p["beta"].dtype) @ p["beta"]
        return jnp.sum(norm.logpdf(jnp.asarray(response), mean, p["sigma"])) + prior(p)

    like = {"beta": np.zeros(design.shape[1]), "sigma": np.ones(())}
    target = parvi.Target(log_density, like=like, constraints={"sigma": parvi.Positive()})
    return target, _stack("beta", "sigma")


def _kidiq(data):
    hs, iq = data["mom_hs"], data["mom_iq"]
    design = np.column_stack([np.ones_like(hs), hs, iq, hs * iq])
    return _regression(design, data["kid_score"], lambda p: cauchy.logpdf(p["sigma"], 0, 2.5))


def _mesquite(data):
    diam1, diam2, height = data["diam1"], data["diam2"], data["canopy_height"]
    columns = [
        np.ones_like(diam1),
        np.log(diam1 * diam2 * height),
        np.log(diam1 * diam2),
        np.log(diam1 / diam2),
        np.log(data["total_height"]),
        np.log(data["density"]),
        data["group"],
    ]
    return _regression(np.column_stack(columns), np.log(data["weight"]))


def _nes(data):
    age = data["age_discrete"]
    columns = [
        np.ones_like(age),
        data["real_ideo"],
        data["race_adj"],
        *(1.0 * (age == group) for group in (2, 3, 4)),
        data["educ1"],
        data["gender"],
        data["income"],
    ]
    return _regression(np.column_stack(columns), data["partyid7"])


def _earnings(data):
    height, male = data["height"], data["male"]
    design = np.column_stack([np.ones_like(male), height, male, height * male])
    return _regression(design, np.log(data["earn"]))


def _blr(data):
    def prior(p):
        return jnp.sum(norm.logpdf(p["beta"], 0, 10)) + norm.logpdf(p["sigma"], 0, 10)

    return _regression(data["X"], data["y"], prior)


def _autoregression(data):
    y, order = data["y"], int(data["K"])
    lags = [y[order - k : len(y) - k] for k in range(1, order + 1)]

    def log_density(p):
        mean = p["alpha"] + jnp.asarray(np.column_stack(lags)) @ p["beta"]
        return (
            jnp.sum(norm.logpdf(jnp.asarray(y[order:]), mean, p["sigma"]))
            + norm.logpdf(p["alpha"], 0, 10)
            + jnp.sum(norm.logpdf(p["beta"], 0, 10))
            + cauchy.logpdf(p["sigma"], 0, 2.5)
        )

    like = {"alpha": np.zeros(()), "beta": np.zeros(order), "sigma": np.ones(())}
    target = parvi.Target(log_density, like=like, constraints={"sigma": parvi.Positive()})
    return target, _stack("alpha", "beta", "sigma")


def _eight_schools(data):
    def log_density(p):
        theta = p["mu"] + p["tau"] * p["z"]
        return (
            jnp.sum(norm.logpdf(jnp.asarray(data["y"]), theta, jnp.asarray(data["sigma"])))
            + jnp.sum(norm.logpdf(p["z"]))
            + norm.logpdf(p["mu"], 0, 5)
            + cauchy.logpdf(p["tau"], 0, 5)
        )

    def columns(p):
        theta = p["mu"][:, None] + p["tau"][:, None] * p["z"]
        return np.column_stack([theta, p["mu"], p["tau"]])

    like = {"mu": np.zeros(()), "tau": np.ones(()), "z": np.zeros(8)}
    return parvi.Target(log_density, like=like, constraints={"tau": parvi.Positive()}), columns


def _gaussian_process(data):
    x, y = data["x"], data["y"]
    squares = (x[:, None] - x) ** 2

    def log_density(p):
        kernel = p["alpha"] ** 2 * jnp.exp(-0.5 * jnp.asarray(squares) / p["rho"] ** 2)
        factor = jnp.linalg.cholesky(kernel + p["sigma"] * jnp.eye(len(x)))
        white = jax.scipy.linalg.solve_triangular(factor, jnp.asarray(y), lower=True)
        return (
            -0.5 * jnp.sum(white**2)
            - jnp.sum(jnp.log(jnp.diag(factor)))
            + gamma.logpdf(p["rho"], 25, scale=1 / 4)
            + norm.logpdf(p["alpha"], 0, 2)
            + norm.logpdf(p["sigma"], 0, 1)
        )

    like = {"rho": np.ones(()), "alpha": np.ones(()), "sigma": np.ones(())}
    target = parvi.Target(log_density, like=like, constraints=parvi.Positive())
    return target, _stack("rho", "alpha", "sigma")


MODELS = {
    "arK-arK": _autoregression,
    "earnings-logearn_interaction": _earnings,
    "eight_schools-eight_schools_noncentered": _eight_schools,
    "gp_pois_regr-gp_regr": _gaussian_process,
    "kidiq-kidscore_interaction": _kidiq,
    "mesquite-logmesquite_logvas": _mesquite,
    "nes1980-nes": _nes,
    "sblrc-blr": _blr,
}
