"""Models of PyMC and Bambi as targets."""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parvi.models.extras import TRACING, imported
from parvi.models.pymc_graphs import forward, jaxified
from parvi.run.surroundings import surrounded
from parvi.targets.dependent import AbstractModel
from parvi.targets.flatten import Labels, names_of
from parvi.targets.minibatch import MiniBatch
from parvi.targets.target import AbstractTarget, Target

# Particles at which pointwise log likelihoods are computed at once.
_AT_ONCE = 64


def from_pymc(model: Any) -> AbstractTarget:
    """The target of a PyMC model, which ``parvi.sample`` takes without ``init``.

    Particles are dicts of its free variables and its deterministics, with the model's dims and
    coords. Starts are its initial point plus uniform noise on (-1, 1), unconstrained, as PyMC's
    own. Runs are in float64, as PyMC is. Data (``pm.Data``) have the values of the moment; make
    another target after ``pm.set_data``. ``pm.Minibatch`` makes a ``MiniBatch``; deterministics
    that depend on the batch, and the posterior predictive, are then left out.

    Parameters
    ----------
    model
        A ``pymc.Model`` without discrete free variables.

    Examples
    --------
    >>> import pymc as pm, parvi
    >>> with pm.Model() as model:
    ...     scale = pm.HalfNormal("scale", 2.0)
    ...     y = pm.Normal("y", 0.0, scale, observed=[1.0, -2.0, 0.5])
    >>> parvi.from_pymc(model).layout.scalar_names()
    ['scale']
    """
    pymc = imported("pymc", "pymc")
    if not isinstance(model, pymc.Model):
        raise ValueError(f"from_pymc takes a pymc.Model, got {type(model).__name__}.")
    discrete = [variable.name for variable in model.discrete_value_vars]
    if discrete:
        raise ValueError(
            f"The variables {', '.join(discrete)} are discrete, and particles move by real steps: "
            "sum them out of the model, for instance by pymc_extras.marginalize."
        )
    if not model.free_RVs:
        raise ValueError("The model has no free variables: there is nothing to sample.")
    with surrounded(np.dtype(np.float64)):
        adapter = PyMCModel(model)
    layout = adapter.layout()
    if adapter.batch is None:
        return Target(adapter.log_density, like=layout)
    rows = np.arange(adapter.batch.num_rows)
    batch = adapter.batch
    size = batch.batch_size
    return MiniBatch(adapter.log_prior, adapter.log_likelihood_of, rows, size, like=layout)


def from_bambi(model: Any) -> AbstractTarget:
    """The target of a Bambi model, which ``parvi.sample`` takes without ``init``.

    It is the target that ``parvi.from_pymc`` makes of the PyMC model that Bambi builds.

    Parameters
    ----------
    model
        A ``bambi.Model``; it is built if it has not been.
    """
    bambi = imported("bambi", "bambi")
    if not isinstance(model, bambi.Model):
        raise ValueError(f"from_bambi takes a bambi.Model, got {type(model).__name__}.")
    if not model.built:
        model.build()
    return from_pymc(model.backend.model)


class PyMCModel(AbstractModel):
    """A PyMC model, with its graphs as JAX functions of flat vectors."""

    front = "PyMC"
    radius = 1.0

    def __init__(self, model):
        import pytensor

        from parvi.models.pymc_batches import batch_of, depends_on_batch

        self.model = model
        self.is_wide = pytensor.config.floatX == "float64"
        self.first = {name: np.asarray(v) for name, v in model.initial_point(0).items()}
        self.values = [variable.name for variable in model.value_vars]
        self.free = {name: self.first[name].shape for name in self.values}
        # Under the names of the parameters: those of transformed values, such as tau_log__, would
        # hide which of them a finding is about.
        owners = tuple(model.values_to_rvs[value].name for value in model.value_vars)
        self.flat_names = names_of(owners, tuple(self.free.values()))
        parameters = [variable.name for variable in model.free_RVs]
        wanted = model.unobserved_value_vars
        # The values of transformed variables are there too, under names of their own.
        kept = {v.name: v for v in wanted if v.name not in self.values or v.name in parameters}
        kept = {name: v for name, v in kept.items() if not depends_on_batch([v])}
        self.names = tuple(kept)
        self._constrained = jaxified(model.value_vars, list(kept.values()))
        shapes = jax.eval_shape(self.constrain, jnp.asarray(self.centre()))
        self.parameters = {name: shapes[name].shape for name in parameters}
        self.derived = {
            name: shapes[name].shape
            for name in kept
            if name not in parameters and 0 not in shapes[name].shape
        }
        self.labels = _labels(model, {name: shapes[name].shape for name in shapes})
        self.batch = batch_of(model)
        if self.batch is None:
            self._log_density = jaxified(model.value_vars, [model.logp()])
            points = model.logp(vars=model.observed_RVs, sum=False) if model.observed_RVs else []
            self._pointwise = jaxified(model.value_vars, points)
        self._unconstrained = None

    def unpacked(self, flat):
        """The values of the model's value variables, in their order."""
        values, start = [], 0
        for shape in self.free.values():
            size = math.prod(shape)
            values.append(flat[start : start + size].reshape(shape))
            start += size
        return values

    def log_density(self, flat):
        with _rounded(flat.dtype):
            return self._log_density(*self.unpacked(flat))[0].astype(flat.dtype)

    def log_prior(self, flat):
        """The log density without the mini-batch."""
        assert self.batch is not None
        with _rounded(flat.dtype):
            return self.batch.log_prior(*self.unpacked(flat))

    def log_likelihood_of(self, flat, rows):
        """The log likelihood of each of some rows."""
        assert self.batch is not None
        with _rounded(flat.dtype):
            return self.batch.log_likelihood(self.unpacked(flat), rows)

    def constrain(self, flat):
        with _rounded(flat.dtype):
            found = self._constrained(*self.unpacked(flat))
        return dict(zip(self.names, found, strict=True))

    def centre(self):
        return np.concatenate([np.ravel(self.first[name]) for name in self.values])

    def unconstrain(self, values):
        if self._unconstrained is None:
            self._unconstrained = forward(self.model)
        arrays = [jnp.asarray(values[name]) for name in self.parameters]
        found = jax.jit(jax.vmap(self._unconstrained))(*arrays)
        return np.concatenate([np.asarray(each).reshape(len(each), -1) for each in found], axis=1)

    def observed(self):
        if self.batch is not None:
            return {}
        names = [variable.name for variable in self.model.observed_RVs]
        values = [self.model.rvs_to_values[variable] for variable in self.model.observed_RVs]
        return {name: _number(value) for name, value in zip(names, values, strict=True)}

    def log_likelihood(self, particles, flat):
        names = [variable.name for variable in self.model.observed_RVs]
        names = names if self.batch is None else self.batch.names
        if not names:
            return {}

        def one(row):
            if self.batch is not None:
                rows = jnp.arange(self.batch.num_rows)
                return self.batch.each(self.unpacked(row), rows)
            return self._pointwise(*self.unpacked(row))

        at_once = min(_AT_ONCE, len(flat))
        with _rounded(flat.dtype):
            found = jax.jit(lambda x: jax.lax.map(one, x, batch_size=at_once))(jnp.asarray(flat))
        return {name: np.asarray(each) for name, each in zip(names, found, strict=True)}

    def predict(self, key, particles, flat):
        import pymc
        import xarray

        names = [variable.name for variable in self.model.observed_RVs]
        if not names or self.batch is not None:
            return {}
        arrays = {}
        for name, shape in self.parameters.items():
            axes = self.labels.dims.get(name, (None,) * len(shape))
            own = [axis or f"{name}_dim_{i}" for i, axis in enumerate(axes)]
            arrays[name] = (("chain", "draw", *own), particles[name][None].astype(float))
        # Without the model's coords PyMC thinks that they have changed, and draws the variables
        # again.
        used = {axis for axes, _ in arrays.values() for axis in axes}
        coords = {axis: places for axis, places in self.labels.coords.items() if axis in used}
        dataset = xarray.Dataset(arrays, coords=coords)
        with quietly(), self.model:
            found = pymc.sample_posterior_predictive(
                dataset,
                var_names=names,
                return_inferencedata=False,
                progressbar=False,
                random_seed=seed_of(key),
            )
        return {name: np.asarray(found[name])[0] for name in names}

    def prior(self, key, num):
        import pymc

        if self.batch is not None:
            return super().prior(key, num)
        with quietly(), self.model:
            found = pymc.sample_prior_predictive(
                draws=num, return_inferencedata=False, random_seed=seed_of(key)
            )
        names = [variable.name for variable in self.model.observed_RVs]
        data = {name: found[name] for name in names}
        kept = self.parameters | self.derived
        return {name: array for name, array in found.items() if name in kept}, data

    def as_model(self):
        from parvi.models.pymc_calibration import calibrated_model

        with surrounded(np.dtype(np.float64)):
            return calibrated_model(self)


def _labels(model, shapes: dict[str, tuple[int, ...]]) -> Labels:
    dims = {name: tuple(axes) for name, axes in model.named_vars_to_dims.items() if any(axes or ())}
    dims = {name: axes for name, axes in dims.items() if len(axes) == len(shapes.get(name, axes))}
    coords = {name: list(places) for name, places in model.coords.items() if places is not None}
    return Labels(dims, coords)


def _number(value) -> np.ndarray:
    """The numbers of a constant, of shared data, or of a small graph of these."""
    if hasattr(value, "get_value"):
        return np.asarray(value.get_value())
    return np.asarray(value.data if hasattr(value, "data") else value.eval())


def seed_of(key) -> int:
    """A seed for PyMC's generators."""
    return int(jax.random.bits(key, dtype=jnp.uint32))


@contextlib.contextmanager
def _rounded(dtype: np.dtype) -> Iterator[None]:
    """Silence JAX's warnings about the float64 constants of a graph in a float32 run."""
    if dtype == np.float64:
        yield
        return
    with TRACING, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        yield


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence PyMC's announcements of what it draws."""
    logger = logging.getLogger("pymc")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)
