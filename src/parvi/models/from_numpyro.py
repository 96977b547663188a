"""Models of NumPyro as targets."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parvi.models.extras import TRACING, imported
from parvi.run.surroundings import surrounded
from parvi.targets.dependent import AbstractModel
from parvi.targets.flatten import names_of
from parvi.targets.minibatch import MiniBatch
from parvi.targets.target import AbstractTarget, Target

# Draws of the discrete sites that show which deterministic ones depend on them.
_NUM_DRAWS = 32


def from_numpyro(model: Callable, *args: Any, **kwargs: Any) -> AbstractTarget:
    """The target of a NumPyro model, which ``parvi.sample`` takes without ``init``.

    Particles are dicts of its continuous sample sites and its deterministic ones. Starts are
    uniform on (-2, 2), unconstrained, as NumPyro's own. Discrete latent sites are summed out by
    enumeration, which needs the package ``funsor``; deterministic sites that depend on them are
    left out. A plate with ``subsample_size`` makes a ``MiniBatch``; the arrays that the model
    indexes by it must be JAX arrays.

    Parameters
    ----------
    model
        A function with NumPyro's primitives.
    args, kwargs
        Its arguments, including the data.

    Examples
    --------
    >>> import numpyro, numpyro.distributions as dist, parvi
    >>> def model(y):
    ...     scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    ...     numpyro.sample("y", dist.Normal(0, scale), obs=y)
    >>> target = parvi.from_numpyro(model, np.array([1.0, -2.0, 0.5]))
    >>> target.layout.scalar_names()
    ['scale']
    """
    imported("numpyro", "numpyro")
    from parvi.models.numpyro_batches import Batch
    from parvi.models.numpyro_sites import inspected

    if not callable(model):
        raise ValueError(
            f"A NumPyro model is a function, got {type(model).__name__}: call "
            "parvi.from_numpyro(model, *its_arguments)."
        )
    with surrounded(np.dtype(jnp.zeros(()).dtype)):
        sites = inspected(model, args, kwargs)
        adapter = NumPyroModel(model, args, kwargs, sites)
    layout = adapter.layout()
    if sites.batch is None:
        return Target(adapter.log_density, like=layout)
    batch = Batch(adapter.prepared, args, kwargs, adapter.unpacked, sites.batch)
    rows = np.arange(sites.batch.num_rows)
    size = sites.batch.batch_size
    return MiniBatch(batch.log_prior, batch.log_likelihood, rows, size, like=layout)


class NumPyroModel(AbstractModel):
    """A NumPyro model with its arguments."""

    front = "NumPyro"

    def __init__(self, model, args, kwargs, sites):
        from parvi.models.numpyro_sites import DefaultKey, WithRows

        self.model, self.args, self.kwargs, self.sites = model, args, kwargs, sites
        # Without a mini-batch this changes nothing; with one, the model sees all its rows.
        if sites.batch is not None:
            everything = np.arange(sites.batch.num_rows)
            self.model = WithRows(model, sites.batch.plate, everything)
        self.prepared = DefaultKey(model)
        self.flat_names = names_of(tuple(sites.free), tuple(sites.free.values()))
        self.parameters = sites.latent
        self.derived = {}
        self.labels = sites.labels
        self.derived = self._deterministic()

    def unpacked(self, flat):
        """The unconstrained values of the sites."""
        values, start = {}, 0
        for name, shape in self.sites.free.items():
            size = math.prod(shape)
            values[name] = flat[start : start + size].reshape(shape)
            start += size
        return values

    def log_density(self, flat):
        from numpyro.infer.util import potential_energy

        from parvi.models.numpyro_sites import DefaultKey, enumerated

        model: Callable = DefaultKey(self.model)
        if self.sites.discrete:
            model = enumerated(model, self.sites.nesting)
        values, enum = self.unpacked(flat), bool(self.sites.discrete)
        with TRACING:
            found = potential_energy(model, self.args, self.kwargs, values, enum=enum)
        return -jnp.asarray(found, flat.dtype)

    def constrain(self, flat):
        found = self._constrained(flat, jax.random.key(0))
        return {name: found[name] for name in (self.parameters | self.derived)}

    def _constrained(self, flat, key):
        from numpyro import handlers
        from numpyro.infer.util import constrain_fn

        values = self.unpacked(flat)
        # The key is for discrete sites, and nothing that is kept depends on these.
        model = handlers.seed(self.model, key)
        with TRACING:
            return constrain_fn(model, self.args, self.kwargs, values, return_deterministic=True)

    def _deterministic(self):
        """The shapes of deterministic sites that do not depend on discrete ones."""
        flat = jnp.full(len(self.flat_names), 0.1)
        shapes = jax.eval_shape(self._constrained, flat, jax.random.key(0))
        names = [name for name in self.sites.deterministic if name in shapes]
        if self.sites.discrete and names:
            keys = jax.random.split(jax.random.key(0), _NUM_DRAWS)
            drawn = jax.vmap(lambda key: self._constrained(flat, key))(keys)
            names = [name for name in names if np.ptp(np.asarray(drawn[name]), axis=0).max() == 0]
        return {name: shapes[name].shape for name in names if 0 not in shapes[name].shape}

    def unconstrain(self, values):
        from numpyro import handlers
        from numpyro.infer.util import unconstrain_fn

        def one(values):
            model = handlers.seed(self.model, jax.random.key(0))
            with TRACING:
                free = unconstrain_fn(model, self.args, self.kwargs, values)
            return jnp.concatenate([jnp.ravel(free[name]) for name in self.sites.free])

        return np.asarray(jax.jit(jax.vmap(one))(values))

    def observed(self):
        return self.sites.observed

    def log_likelihood(self, particles, flat):
        from numpyro.infer import Predictive
        from numpyro.infer.util import log_likelihood

        if not self.sites.observed:
            return {}
        values = {name: jnp.asarray(particles[name]) for name in self.parameters}
        if self.sites.discrete:
            # The discrete sites of the posterior, given the particle and the data.
            draw = Predictive(self.model, values, infer_discrete=True)
            with TRACING:
                drawn = draw(jax.random.key(0), *self.args, **self.kwargs)
            values |= {name: drawn[name] for name in self.sites.discrete}
        with TRACING:
            found = log_likelihood(self.model, values, *self.args, parallel=True, **self.kwargs)
        return {name: np.asarray(found[name]) for name in self.sites.observed}

    def predict(self, key, particles, flat):
        values = {name: jnp.asarray(particles[name]) for name in self.parameters}
        return self._drawn(key, self.sites.observed, posterior_samples=values)

    def prior(self, key, num):
        improper = [name for name in self.parameters if name in self.sites.improper]
        if improper:
            raise ValueError(
                f"The prior of {', '.join(improper)} is improper and cannot be drawn from: leave "
                "num_prior out."
            )
        names = [*self.parameters, *self.derived, *self.sites.observed]
        drawn = self._drawn(key, names, num_samples=num)
        data = {name: drawn.pop(name) for name in self.sites.observed}
        return drawn, data

    def _drawn(self, key, names, **settings):
        from numpyro import handlers
        from numpyro.infer import Predictive

        if not names:
            return {}
        model = handlers.uncondition(self.model)
        draw = Predictive(model, return_sites=tuple(names), parallel=True, **settings)
        with TRACING:
            found = draw(key, *self.args, **self.kwargs)
        return {name: np.asarray(found[name]) for name in names}

    def as_model(self):
        from parvi.models.numpyro_calibration import calibrated_model

        return calibrated_model(self.model, self.args, self.kwargs, self.sites)
