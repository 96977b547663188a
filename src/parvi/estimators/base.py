"""What all estimators share: checks of their input, the run, and averages over the particles."""

import abc
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from parvi.estimators.rows import Rows, Scaling, merged, padded, scaling_of
from parvi.sampling import sample
from parvi.targets.minibatch import MiniBatch

# Particles by default: the first number, or two per dimension if that is more, up to the second.
# If the second is less than two per dimension, it is the first again: predictions need no more,
# and only maps that bend have a use for more.
_LEAST_PARTICLES, _MOST_PARTICLES = 256, 512
# Rows in a step if all of them are too expensive (parvi.MiniBatch).
_BATCH_SIZE = 1024
# Limit on the numbers of a block of predictions (particles times rows).
_AT_ONCE = 4_000_000


class AbstractBayesianEstimator(BaseEstimator, abc.ABC):
    """An estimator whose parameters are particles: predictions are averages over all of them.

    Subclasses say what the model is: ``_encoded`` turns outcomes into numbers, ``_model`` gives the
    target and the first particles, and ``_outputs`` the outputs of every particle.
    """

    # The dtype of the run.
    _dtype: Any = np.float64
    # Whether outcomes are numbers.
    _y_is_numeric = True

    @abc.abstractmethod
    def _encoded(self, y: np.ndarray) -> Float[np.ndarray, " rows"]:
        """Outcomes as numbers; what is learnt of them is kept."""

    @abc.abstractmethod
    def _model(self, rows: Rows, rng: np.random.Generator) -> tuple[Any, Any, dict, Any]:
        """The log prior, log likelihood, a particle, and ``init(num)``, for standardised rows."""

    @abc.abstractmethod
    def _outputs(self, z: Float[np.ndarray, "rows d"]) -> Float[np.ndarray, "n rows *k"]:
        """The outputs of every particle at standardised inputs."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Sample the posterior.

        Parameters
        ----------
        X
            Inputs, an array of shape (rows, features).
        y
            Outcomes, an array of shape (rows,).
        sample_weight
            Weights of the rows; a weight of two means the same as the row given twice.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=self._y_is_numeric)
        check_consistent_length(X, y)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        rows = merged(X, self._encoded(y), weights)
        centred = getattr(self, "fit_intercept", True)
        self._scaling: Scaling = scaling_of(rows.x, rows.weights, centred)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        rng = np.random.default_rng(seed)
        rows = self._standardised(rows)
        log_prior, log_likelihood, like, init = self._model(rows, rng)
        rows = Rows(*(part.astype(self._dtype) for part in padded(rows)))
        wanted = _BATCH_SIZE if self.batch_size is None else self.batch_size
        size = min(wanted, len(rows.x))
        target = MiniBatch(log_prior, log_likelihood, rows, size, like=like)
        num = self._num_particles(like) if self.n_particles is None else self.n_particles
        start = {name: part.astype(self._dtype) for name, part in init(num).items()}
        self.result_ = sample(
            target,
            start,
            key=seed,
            sampler=self.sampler,
            num_steps=self.max_iter,
            progress=None if self.verbose else False,
        )
        self.n_iter_ = self.result_.num_steps
        self._learn(log_prior, rng)
        return self

    def sample_posterior(
        self, n_samples: int | None = None, random_state: Any = None
    ) -> dict[str, np.ndarray]:
        """Parameters that are a sample of the posterior, by name, with a leading axis of draws.

        Parameters
        ----------
        n_samples
            The number of particles to draw at random, with repetitions if it is more than there
            are; None for all particles in their own order, which is the most exact.
        random_state
            An int, a NumPy ``RandomState`` or None.
        """
        check_is_fitted(self)
        drawn = self._parameters()
        if n_samples is None:
            return drawn
        num = self.result_.num_particles
        if not isinstance(n_samples, (int, np.integer)) or n_samples < 1:
            raise ValueError(f"n_samples must be None or an int of at least 1, got {n_samples!r}.")
        rng = check_random_state(random_state)
        chosen = rng.choice(num, int(n_samples), replace=n_samples > num)
        return {name: part[chosen] for name, part in drawn.items()}

    def _standardised(self, rows: Rows) -> Rows:
        return rows._replace(x=self._scaling(rows.x))

    def _learn(self, prior: Any, rng: np.random.Generator) -> None:
        """Keep what predictions need, and learnt attributes such as ``coef_``."""

    def _parameters(self) -> dict[str, np.ndarray]:
        """The parameters of all particles."""
        return dict(self.result_.particles)

    def _num_particles(self, like: dict) -> int:
        dim = sum(part.size for part in like.values())
        wanted = max(2 * dim, _LEAST_PARTICLES)
        return wanted if wanted <= _MOST_PARTICLES else _LEAST_PARTICLES

    def _averaged(self, X: Any, function: Any, y: Any = None) -> Any:
        """``function(outputs, y)`` of blocks of rows, with the blocks put together."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        z = self._scaling(X)
        num = max(1, _AT_ONCE // (self.result_.num_particles * self._width()))
        blocks = []
        for first in range(0, len(z), num):
            own = None if y is None else y[first : first + num]
            blocks.append(function(self._outputs(z[first : first + num]), own))
        if isinstance(blocks[0], tuple):
            return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return np.concatenate(blocks)

    def _width(self) -> int:
        """The numbers that one particle makes of one row."""
        return 1


def log_mean_exp(logs: Float[np.ndarray, "n rows"]) -> Float[np.ndarray, " rows"]:
    """The log of the mean over the particles."""
    top = logs.max(axis=0)
    return top + np.log(np.mean(np.exp(logs - top), axis=0))
