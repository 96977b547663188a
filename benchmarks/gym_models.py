"""Inference Gym's models as flat, unconstrained log densities with the truth of long Stan runs.

The models compute in float32. Those of this list need no download.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

# The names of the Gym's classes.
MODELS = (
    "EightSchools",
    "BrownianMotionMissingMiddleObservations",
    "BrownianMotionUnknownScalesMissingMiddleObservations",
    "ConvectionLorenzBridge",
    "ConvectionLorenzBridgeUnknownScales",
    "SyntheticItemResponseTheory",
    "SyntheticLogGaussianCoxProcess",
    "VectorizedStochasticVolatilitySP500Small",
    "VectorizedStochasticVolatilityLogSP500Small",
)


class Problem(NamedTuple):
    """A model: its log density, and the columns whose means and sds are known."""

    log_density: Callable
    dim: int
    columns: Callable[[np.ndarray], np.ndarray]
    mean: Float[np.ndarray, " p"]
    sd: Float[np.ndarray, " p"]


def load(name: str) -> Problem:
    """A model by the name of its class."""
    try:
        from inference_gym import using_jax as gym
    except ImportError as error:
        raise SystemExit(
            "Inference Gym is missing: pip install 'parvi[gym]', or leave this benchmark out."
        ) from error
    model = gym.targets.VectorModel(
        getattr(gym.targets, name)(), flatten_sample_transformations=True
    )
    bijector = model.default_event_space_bijector
    identity = model.sample_transformations["identity"]

    def log_density(x):
        jacobian = bijector.forward_log_det_jacobian(x, event_ndims=1)
        return model.unnormalized_log_prob(bijector.forward(x)) + jacobian

    def columns(particles):
        return np.asarray(jax.vmap(lambda x: identity(bijector.forward(x)))(jnp.asarray(particles)))

    return Problem(
        log_density,
        int(bijector.inverse_event_shape(model.event_shape)[0]),
        columns,
        np.asarray(identity.ground_truth_mean),
        np.asarray(identity.ground_truth_standard_deviation),
    )
