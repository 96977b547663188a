"""Simulation-based calibration: one model, many data sets of its own, one compilation."""

import collections
import dataclasses
import warnings
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree

from parvi.calibration import ranks as statistics
from parvi.calibration.model import HostModel, Model, as_model
from parvi.kept import carefully, note
from parvi.run.initial import DEFAULT_NUM_PARTICLES, as_key
from parvi.run.progress import Bar
from parvi.run.surroundings import check_surroundings, surrounded
from parvi.sampling import sample
from parvi.status import NotAtRestWarning, Status
from parvi.targets.flatten import Layout
from parvi.targets.target import Target

# The level at which a rank histogram is rejected, after the correction for all of them.
LEVEL = 0.01
_LOG_DENSITY = "log density"


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Calibration:
    """The outcome of ``parvi.calibrate``. Print it to read it in words.

    Attributes
    ----------
    names
        A name for every scalar that was ranked: those of the parameters, and the log density.
    ranks
        Number of particles below the true value, for each data set and scalar.
    uniforms
        The ranks on (0, 1), with ties broken at random: uniform if the posteriors are right.
    p_values
        One for every scalar, by name, after the correction for all of them.
    num_particles
        Number of particles of each run.
    statuses
        The ways in which runs ended, and how many ended in each.
    """

    names: list[str]
    ranks: Int[np.ndarray, "num k"]
    uniforms: Float[np.ndarray, "num k"]
    p_values: dict[str, float]
    num_particles: int
    statuses: dict[Status, int]

    def __bool__(self) -> bool:
        """Whether no rank histogram is rejected at 1 %, and no run failed."""
        return not self.rejected and not self.num_failed

    @property
    def rejected(self) -> list[str]:
        """The scalars whose ranks are not uniform."""
        return [name for name, p in self.p_values.items() if p < LEVEL]

    @property
    def num_failed(self) -> int:
        """Number of runs that failed."""
        return sum(num for status, num in self.statuses.items() if status.failed)

    def histogram(self, name: str) -> Int[np.ndarray, " bins"]:
        """How many data sets have their rank in each of some bins of equal width."""
        column = self.uniforms[:, self.names.index(name)]
        return np.histogram(column, statistics.num_bins(len(column)), (0.0, 1.0))[0]

    def plot(self, path: Any = None) -> Any:
        """Draw all rank histograms with matplotlib; saved if a path is given, else returned."""
        import matplotlib.pyplot as plt

        num, bins = len(self.ranks), statistics.num_bins(len(self.ranks))
        rows = -(-len(self.names) // 4)
        figure, axes = plt.subplots(rows, 4, figsize=(10, 2 * rows), squeeze=False)
        noise = 2.6 * np.sqrt(num / bins * (1 - 1 / bins))
        for axis, name in zip(axes.flat, self.names, strict=False):
            axis.axhspan(num / bins - noise, num / bins + noise, color="0.9")
            axis.stairs(self.histogram(name), np.linspace(0, 1, bins + 1), fill=True)
            axis.set(title=f"{name} (p = {self.p_values[name]:.2g})", yticks=[])
        for axis in axes.flat[len(self.names) :]:
            axis.axis("off")
        figure.tight_layout()
        if path is None:
            return figure
        figure.savefig(path)
        plt.close(figure)
        return None

    def __repr__(self) -> str:
        verdict = "calibrated" if self else "NOT calibrated"
        ended = ", ".join(f"{num} {status.name}" for status, num in self.statuses.items())
        lines = [
            f"{verdict}: {len(self.names)} scalars, {len(self.ranks)} data sets, "
            f"{self.num_particles} particles; runs: {ended}"
        ]
        for name in self.rejected:
            shape = statistics.shape_of(self.uniforms[:, self.names.index(name)])
            lines.append(f"  {name}: {shape} (p = {self.p_values[name]:.1e})")
        if self.num_failed:
            lines.append(f"  {self.num_failed} runs failed; their particles are not a sample.")
        return "\n".join(lines)


def calibrate(
    model: Any,
    key: Any = 0,
    num: int = 200,
    num_particles: int = DEFAULT_NUM_PARTICLES,
    sampler: Any = None,
    init: Any = None,
    progress: bool | None = None,
) -> Calibration:
    """Simulation-based calibration: whether the posteriors of a model's own data are right.

    Parameters are drawn from the prior and data from the model, again and again; among the
    particles of the posterior, the ranks of the true parameters must then be uniform (Talts et al.
    2018; ``parvi.calibration.ranks`` says why this holds for particles). The log density is ranked
    too: it depends on the data, and shows what no single parameter does (Modrák et al. 2023). All
    runs are counted, even those that did not come to rest. They share their compiled programs.

    Parameters
    ----------
    model
        A ``parvi.Model``, a model of NumPyro (``parvi.from_numpyro``) or PyMC, one of Stan with a
        simulator (``parvi.from_stan``), or an object whose ``as_model()`` returns a
        ``parvi.Model``.
    key
        An int or a JAX key.
    num
        Number of data sets.
    num_particles
        Number of particles of each run. The default is that of ``parvi.sample``, 512.
    sampler
        The sampler. The default is ``parvi.pfg()``.
    init
        The first particles of all runs, as in ``parvi.sample``.
    progress
        Whether to show a bar on standard error. None shows it if standard error is a terminal.

    Returns
    -------
    Calibration
        Ranks, p-values and a verdict: ``bool(calibration)`` is True if no rank histogram is
        rejected at 1 % after Holm's correction.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, parvi
    >>> model = parvi.Model(
    ...     prior=lambda key: jax.random.normal(key, (2,)),
    ...     simulate=lambda key, x: x + jax.random.normal(key, (10, 2)),
    ...     log_density=lambda x, y: -0.5 * (jnp.sum(x**2) + jnp.sum((y - x) ** 2)),
    ... )
    >>> affine = parvi.pfg(num_features=0)
    >>> parvi.calibrate(model, key=0, num=40, num_particles=64, sampler=affine)
    calibrated: 3 scalars, 40 data sets, 64 particles; runs: 40 CONVERGED
    """
    check_surroundings()
    model = as_model(model)
    _check(num, num_particles)
    key_draws, key_runs, key_ties = jax.random.split(as_key(key), 3)
    with surrounded(np.dtype(np.float64)):
        note(model)
        truths, data = model.drawn(key_draws, num)
        truths, data = jax.tree_util.tree_map(np.asarray, (truths, data))
    first = jax.tree_util.tree_map(lambda leaf: leaf[0], (truths, data))
    target = Target(model.log_density, like=first[0], constraints=model.constraints, data=first[1])
    ended: collections.Counter[Status] = collections.Counter()
    found = []
    with Bar(num, progress) as bar:
        for number in range(num):
            truth, own = jax.tree_util.tree_map(lambda leaf, i=number: leaf[i], (truths, data))
            with warnings.catch_warnings():
                # They are counted instead.
                warnings.simplefilter("ignore", NotAtRestWarning)
                result = sample(
                    target.with_data(own),
                    init,
                    key=jax.random.fold_in(key_runs, number),
                    num_particles=None
                    if init is not None and not callable(init)
                    else num_particles,
                    sampler=sampler,
                    progress=False,
                    throw=False,
                )
            ended[result.status] += 1
            found.append(_ranked(model, result.particles, truth, own))
            # The first run compiles for all of them.
            bar.show(number + 1, f"calibrating, data set {number + 1}/{num}", is_typical=number > 0)
    ranks = np.stack(found)
    seed = np.asarray(jax.random.key_data(key_ties)).tolist()
    u = statistics.uniforms(ranks, result.num_particles, np.random.default_rng(seed))
    names = [*Layout.of(first[0]).scalar_names(), _LOG_DENSITY]
    p_values = dict(zip(names, statistics.judged(u).adjusted.tolist(), strict=True))
    return Calibration(names, ranks, u, p_values, result.num_particles, dict(ended))


def _check(num: Any, num_particles: Any) -> None:
    for name, given, least in (("num", num, 20), ("num_particles", num_particles, 2)):
        if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < least:
            raise ValueError(f"{name} must be an int of at least {least}, got {given!r}.")
    most = statistics.most_data_sets(num_particles)
    if num > most:
        raise ValueError(
            f"{num} data sets would detect the steps between {num_particles} particles: "
            f"take at most {most} data sets, or more particles."
        )


def _ranked(model: Model | HostModel, particles: PyTree, truth: PyTree, data: PyTree) -> np.ndarray:
    """The number of particles below the truth, for every scalar and for the log density."""
    leaves = zip(*(jax.tree_util.tree_leaves(tree) for tree in (particles, truth)), strict=True)
    below = [np.sum(leaf < true, axis=0).reshape(-1) for leaf, true in leaves]
    dtype = jax.tree_util.tree_leaves(particles)[0].dtype
    with surrounded(dtype):
        values, true_value = _values(model.log_density, particles, truth, data)
    below.append(np.sum(np.asarray(values) < float(true_value)).reshape(-1))
    return np.concatenate(below)


@carefully
def _values(log_density, particles, truth, data):
    return jax.vmap(lambda p: log_density(p, data))(particles), log_density(truth, data)
