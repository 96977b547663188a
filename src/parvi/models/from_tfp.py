"""Joint distributions of TensorFlow Probability, on its JAX substrate, as targets."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parvi.models.extras import imported
from parvi.run.surroundings import surrounded
from parvi.targets.dependent import AbstractModel
from parvi.targets.flatten import Labels, names_of
from parvi.targets.target import Target


def from_tfp(joint: Any) -> Target:
    """The target of a joint distribution, which ``parvi.sample`` takes without ``init``.

    Particles are dicts of its parts that are not pinned. Starts are uniform on (-2, 2),
    unconstrained. A run has the dtype of the distribution.

    Parameters
    ----------
    joint
        A joint distribution of ``tensorflow_probability.substrates.jax``, with its data pinned:
        ``joint.experimental_pin(y=data)``.
    """
    tfp = imported("tensorflow_probability.substrates.jax", "tfp")
    pinned = tfp.experimental.distributions.JointDistributionPinned
    if not isinstance(joint, (tfp.distributions.JointDistribution, pinned)):
        raise ValueError(
            f"from_tfp takes a joint distribution of TFP's JAX substrate, got "
            f"{type(joint).__module__}.{type(joint).__name__}."
        )
    dtypes = {np.dtype(dtype) for dtype in jax.tree_util.tree_leaves(joint.dtype)}
    with surrounded(np.dtype(np.float64 if np.dtype(np.float64) in dtypes else np.float32)):
        adapter = TFPModel(joint, isinstance(joint, pinned))
    return Target(adapter.log_density, like=adapter.layout())


class TFPModel(AbstractModel):
    """A joint distribution, some parts of which may be pinned."""

    front = "TensorFlow Probability"
    labels = Labels({}, {})

    def __init__(self, joint, is_pinned: bool):
        self.joint = joint
        self.whole = joint.distribution if is_pinned else joint
        self.pins = {k: np.asarray(v) for k, v in joint.pins.items()} if is_pinned else {}
        self.log_prob = joint.unnormalized_log_prob if is_pinned else joint.log_prob
        if not isinstance(joint.dtype, dict) and not hasattr(joint.dtype, "_fields"):
            raise ValueError(
                "The parts of the joint distribution have no names: make it a "
                "JointDistributionNamed or a JointDistributionCoroutine."
            )
        leaves, treedef = jax.tree_util.tree_flatten(joint.dtype)
        self.treedef: Any = treedef
        self.names = _names(joint.dtype)
        dtypes = {name: np.dtype(d) for name, d in zip(self.names, leaves, strict=True)}
        self._check(dtypes, self._discrete())
        self.dtype = next(iter(dtypes.values()))
        self.is_wide = self.dtype == np.float64
        self.parameters = self._shapes(joint.event_shape)
        free = joint.experimental_default_event_space_bijector().inverse_event_shape
        self.free = self._shapes(free(joint.event_shape))
        self.derived = {}
        self.flat_names = names_of(tuple(self.free), tuple(self.free.values()))
        one = jax.ShapeDtypeStruct((len(self.flat_names),), self.dtype)
        if (shape := jax.eval_shape(self._joint_log_density, one).shape) != ():
            raise ValueError(
                f"The log density of the joint distribution has the batch shape {shape} and is not "
                "one number: use a JointDistribution...AutoBatched, tfd.Independent or tfd.Sample."
            )

    def log_density(self, flat):
        if flat.dtype != self.dtype:
            raise ValueError(
                f"The joint distribution is in {self.dtype.name} and the run in {flat.dtype.name}: "
                f"give init in {self.dtype.name}, or make the distribution in {flat.dtype.name}."
            )
        return self._joint_log_density(flat)

    def _joint_log_density(self, flat):
        # It is made again in every trace, so that it is in the run's precision.
        bijector = self.joint.experimental_default_event_space_bijector()
        free = self._unpacked(flat)
        return self.log_prob(bijector.forward(free)) + bijector.forward_log_det_jacobian(free)

    def constrain(self, flat):
        bijector = self.joint.experimental_default_event_space_bijector()
        parts = self.treedef.flatten_up_to(bijector.forward(self._unpacked(flat)))
        return dict(zip(self.names, parts, strict=True))

    def unconstrain(self, values):
        def one(values):
            bijector = self.joint.experimental_default_event_space_bijector()
            parts = [jnp.asarray(values[name], self.dtype) for name in self.names]
            given = jax.tree_util.tree_unflatten(self.treedef, parts)
            free = self.treedef.flatten_up_to(bijector.inverse(given))
            return jnp.concatenate([jnp.ravel(part) for part in free])

        return np.asarray(jax.jit(jax.vmap(one))(values))

    def observed(self):
        return self.pins

    def log_likelihood(self, particles, flat):
        if not self.pins:
            return {}

        def one(values):
            key = jax.random.key(0)
            found, _ = self.whole.sample_distributions(value=self._value(values), seed=key)
            parts = self._by_name(found)
            return {name: _pointwise(parts[name], pin) for name, pin in self.pins.items()}

        found = jax.jit(jax.vmap(one))({name: particles[name] for name in self.names})
        return {name: np.asarray(array) for name, array in found.items()}

    def predict(self, key, particles, flat):
        if not self.pins:
            return {}

        def one(key, values):
            drawn = self.whole.sample(value=self._value(values, pinned=False), seed=key)
            return {name: self._by_name(drawn)[name] for name in self.pins}

        keys = jax.random.split(key, len(flat))
        found = jax.jit(jax.vmap(one))(keys, {name: particles[name] for name in self.names})
        return {name: np.asarray(array) for name, array in found.items()}

    def prior(self, key, num):
        drawn = self._by_name(self.whole.sample(num, seed=key))
        data = {name: np.asarray(drawn[name]) for name in self.pins}
        return {name: np.asarray(drawn[name]) for name in self.names}, data

    def _unpacked(self, flat):
        parts, start = [], 0
        for shape in self.free.values():
            size = math.prod(shape)
            parts.append(flat[start : start + size].reshape(shape))
            start += size
        return jax.tree_util.tree_unflatten(self.treedef, parts)

    def _shapes(self, structure) -> dict[str, tuple[int, ...]]:
        parts = self.treedef.flatten_up_to(structure)
        found = [tuple(int(size) for size in part) for part in parts]
        return dict(zip(self.names, found, strict=True))

    def _by_name(self, structure) -> dict[str, Any]:
        """The parts of something with the structure of the whole distribution."""
        treedef: Any = jax.tree_util.tree_structure(self.whole.dtype)
        parts = treedef.flatten_up_to(structure)
        return dict(zip(_names(self.whole.dtype), parts, strict=True))

    def _value(self, values, pinned: bool = True):
        """All parts in the structure of the whole distribution; None for those to be drawn."""
        pins = self.pins if pinned else {}
        parts = [values.get(name, pins.get(name)) for name in _names(self.whole.dtype)]
        treedef = jax.tree_util.tree_structure(self.whole.dtype)
        return jax.tree_util.tree_unflatten(treedef, parts)

    def _discrete(self) -> list[str]:
        """Parts without a map from the real numbers; some of them have floating-point values."""
        found, _ = self.whole.sample_distributions(seed=jax.random.key(0))
        parts = self._by_name(found)
        return [
            n for n in self.names if parts[n].experimental_default_event_space_bijector() is None
        ]

    @staticmethod
    def _check(dtypes, discrete) -> None:
        if discrete:
            raise ValueError(
                f"The parts {', '.join(discrete)} are discrete, and particles move by real steps: "
                "sum them out, for instance by tfd.MixtureSameFamily or tfd.HiddenMarkovModel."
            )
        if len(set(dtypes.values())) > 1:
            raise ValueError(
                f"The joint distribution mixes {sorted({d.name for d in dtypes.values()})}: make "
                "all of its parts of one dtype."
            )


def _names(structure: Any) -> list[str]:
    """The names of the parts of a joint distribution."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(structure)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]


def _pointwise(distribution: Any, value: np.ndarray):
    """Log probabilities, one for each number if the distribution is one of independent numbers."""
    kind = type(distribution).__name__.lstrip("_")
    if kind == "Independent":
        return _pointwise(distribution.distribution, value)
    if kind == "Sample" and not tuple(distribution.distribution.batch_shape):
        return distribution.distribution.log_prob(value)
    return distribution.log_prob(value)
