"""Layouts of whole models, whose parameters may have supports that depend on one another.

A front end has transforms of its own from unconstrained numbers to parameters, and a log density of
the unconstrained numbers with their Jacobian in it. Both are used as they are: the target's
function takes the flat vector, and the particle is what the front end makes of it, with
everything that it computes along the way.
"""

import abc
import math
from collections import Counter
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from parvi.evaluation import evaluate, quickly
from parvi.targets.flatten import AbstractLayout, Labels, names_of

# Attempts to draw starts with a finite density. Starts that stay bad are moved between good ones.
_ATTEMPTS = 20
# Scores of an improper coordinate agree up to rounding, in units of the dtype's precision.
_ROUNDING = 100
# How far away they are looked at again.
_FAR = 100.0

Arrays = dict[str, np.ndarray]


class AbstractModel(abc.ABC):
    """A model of a front end: its parameters, and whatever else it computes from them.

    It lives on the host and is compared by identity. Its methods are called in the precision of the
    run. ``flat`` is an array of unconstrained particles, and ``particles`` what ``constrain`` made
    of them, with leading axis n.

    Attributes
    ----------
    front
        The name of the front end, for messages.
    flat_names
        A name for every unconstrained number.
    parameters
        The shapes of the parameters, by name.
    derived
        The shapes of what the model computes from them.
    labels
        Names of axes and of the places along them.
    is_wide
        Whether the front end computes in float64 unless told otherwise.
    radius
        Half the width of the cube of starts.
    """

    front: str
    flat_names: list[str]
    parameters: dict[str, tuple[int, ...]]
    derived: dict[str, tuple[int, ...]]
    labels: Labels
    is_wide: bool = False
    radius: float = 2.0

    @abc.abstractmethod
    def log_density(self, flat: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density of one flat vector, with the Jacobian."""

    @abc.abstractmethod
    def constrain(self, flat: Float[Array, " d"]) -> dict[str, Array]:
        """The parameters and what the model computes from them, for one flat vector."""

    @abc.abstractmethod
    def unconstrain(self, values: Arrays) -> Float[np.ndarray, "n d"]:
        """The flat vectors of parameters with leading axis n; NaN outside the support."""

    def centre(self) -> Float[np.ndarray, " d"]:
        """The centre of the cube of starts."""
        return np.zeros(len(self.flat_names))

    @property
    def trouble(self) -> str:
        """What the front end last said of a point that it rejected."""
        return ""

    def observed(self) -> Arrays:
        """The observed data."""
        return {}

    def log_likelihood(self, particles: Arrays, flat: Float[np.ndarray, "n d"]) -> Arrays:
        """The log likelihood of every observation, with leading axis n."""
        return {}

    def predict(
        self, key: Key[Array, ""], particles: Arrays, flat: Float[np.ndarray, "n d"]
    ) -> Arrays:
        """Data drawn from the model at every particle."""
        return {}

    def prior(self, key: Key[Array, ""], num: int) -> tuple[Arrays, Arrays]:
        """Draws of the prior, and of the data at each of them."""
        raise ValueError(
            f"A model of {self.front} does not draw from its prior here: leave num_prior out."
        )

    def as_model(self) -> Any:
        """What ``parvi.calibrate`` needs: a ``parvi.Model``."""
        raise ValueError(
            f"A model of {self.front} is not calibrated as it is: write "
            "parvi.Model(prior, simulate, log_density)."
        )

    def layout(self) -> "Dependent":
        """The layout of its particles."""
        shapes = self.parameters | self.derived
        example = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
        leaves, treedef = jax.tree_util.tree_flatten_with_path(example)
        names = tuple(path[0].key for path, _ in leaves)
        return Dependent(treedef, tuple(shapes[name] for name in names), names, self)


class Dependent(AbstractLayout):
    """The layout of a model of a front end.

    Parameters
    ----------
    treedef, shapes, paths
        Structure of one particle, and the shapes and names of its arrays.
    model
        What maps flat vectors to particles.
    """

    treedef: jax.tree_util.PyTreeDef = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    paths: tuple[str, ...] = eqx.field(static=True)
    model: AbstractModel = eqx.field(static=True)

    @property
    def dim(self):
        return len(self.model.flat_names)

    @property
    def is_wide(self):
        return self.model.is_wide

    @property
    def labels(self):
        return self.model.labels

    def constrain(self, flat):
        found = self.model.constrain(flat)
        shapes = zip(self.paths, self.shapes, strict=True)
        return {name: jnp.asarray(found[name], flat.dtype).reshape(s) for name, s in shapes}

    def argument(self, flat):
        return flat

    def log_jacobian(self, flat):
        return jnp.zeros((), flat.dtype)

    def flat_names(self):
        shown = dict(zip(names_of(self.paths, self.shapes), self.scalar_names(), strict=True))
        # An array such as a simplex has other unconstrained numbers than its own.
        sizes = {name: math.prod(s) for name, s in zip(self.paths, self.shapes, strict=True)}
        stems = [name.partition("[")[0] for name in self.model.flat_names]
        own = {stem for stem, number in Counter(stems).items() if number == sizes.get(stem)}
        pairs = zip(stems, self.model.flat_names, strict=True)
        return [shown.get(name, name) if stem in own else name for stem, name in pairs]

    def starts(self, log_density, key, num, dtype):
        """Uniform draws from a cube, as the front end itself begins, where they are finite."""
        centre = jnp.asarray(self.model.centre(), dtype)
        flat: Any = None
        bad = np.empty(0, bool)
        for attempt in range(_ATTEMPTS):
            drawn = _in_cube(key, attempt, centre, self.model.radius, num)
            flat = drawn if attempt == 0 else jnp.where(bad[:, None], drawn, flat)
            values, scores = evaluate(log_density, flat)
            bad = ~(np.isfinite(np.asarray(values)) & np.isfinite(np.asarray(scores)).all(axis=1))
            if not bad.any():
                return flat
        if 2 * bad.sum() >= num:
            raise ValueError(
                f"The log density of the model is finite at only {num - bad.sum()} of {num} starts "
                f"in a cube of half width {self.model.radius:g} around its first values, after "
                f"{_ATTEMPTS} attempts: look for data that are NaN or outside a distribution's "
                "support, or give init= where the density is positive. "
                f"{self.model.trouble}".strip()
            )
        return flat

    def flattened(self, values, dtype: np.dtype) -> Float[Array, "n d"]:
        """The flat vectors of ``init``, which holds the parameters by name or is flat already."""
        if not isinstance(values, dict):
            if np.ndim(values) != 2 or np.shape(values)[1] != self.dim:
                raise ValueError(
                    f"init must hold the parameters {_words(self.model.parameters)} by name, or be "
                    f"an array of n rows of {self.dim} unconstrained numbers; got "
                    f"{type(values).__name__} of shape {np.shape(values)}."
                )
            return jnp.asarray(values, dtype)
        wanted = self.model.parameters
        missing = sorted(set(wanted) - set(values))
        unknown = sorted(set(values) - set(wanted) - set(self.model.derived))
        if missing or unknown:
            raise ValueError(
                f"init holds {sorted(values)}, and the model's parameters are {_words(wanted)}: "
                + (f"{missing} are missing." if missing else f"it has no {unknown}.")
            )
        arrays = {name: np.asarray(values[name]) for name in wanted}
        for name, array in arrays.items():
            if array.shape[1:] != tuple(wanted[name]):
                raise ValueError(
                    f"init has particles of shape {array.shape[1:]} for {name}, and the model has "
                    f"{wanted[name]}; give it a leading axis n and the model's shape."
                )
        flat = np.asarray(self.model.unconstrain(arrays))
        bad = ~np.isfinite(flat).all(axis=1)
        if bad.any():
            rows, columns = np.nonzero(~np.isfinite(flat))
            raise ValueError(
                f"init is outside the support of {self.model.flat_names[columns[0]]} at "
                f"{bad.sum()} of {len(flat)} particles; first bad particle: {rows[0]}."
            )
        return jnp.asarray(flat, dtype)

    def admit(self, log_density, place):
        """Refuse coordinates whose score is the same everywhere: the density has no end there."""
        if place.scores is None or len(place.particles) < 2:
            return
        scores, points = np.asarray(place.scores), np.asarray(place.particles)
        rounding = _ROUNDING * np.finfo(scores.dtype).eps * np.abs(scores).max(axis=0)
        flat = (np.ptp(scores, axis=0) <= rounding) & (np.ptp(points, axis=0) > 0)
        for side in (-_FAR, _FAR) if flat.any() else ():
            # A kink such as a Laplace distribution's has the same slopes only on one side of it.
            far = jnp.asarray(points + side * flat, scores.dtype)
            there = np.asarray(evaluate(log_density, far)[1])
            flat &= np.abs(there - scores[0]).max(axis=0) <= rounding
        if flat.any():
            self._refuse(np.flatnonzero(flat), scores[0])

    def _refuse(self, columns, slopes) -> NoReturn:
        some = ", ".join(f"{self.model.flat_names[i]} ({slopes[i]:g})" for i in columns[:5])
        more = f" and {len(columns) - 5} others" if len(columns) > 5 else ""
        raise ValueError(
            f"The density has no end in {some}{more}: its slope, in brackets, is the same at all "
            "starts, so neither the prior nor the data say where the parameter is. Give "
            "it a proper prior, or leave it out of the model (NumPyro's obs_mask= makes such "
            "parameters of observed entries: index the missing ones instead)."
        )


@quickly
def _in_cube(key, attempt, centre, radius, num: int):
    """Uniform draws within a radius of the centre, in every coordinate."""
    own = jax.random.fold_in(key, attempt)
    cube = jax.random.uniform(own, (num, centre.size), centre.dtype, -1.0, 1.0)
    return centre + radius * cube


def _words(parameters: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" if shape else name for name, shape in parameters.items())


def model_of(layout: AbstractLayout | None) -> AbstractModel | None:
    """The model of a layout that has one."""
    return layout.model if isinstance(layout, Dependent) else None
