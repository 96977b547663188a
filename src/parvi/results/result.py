"""``Result``: the particles, how the run ended, and its history."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PyTree

from parvi.evaluation import evaluate
from parvi.results import arviz, checks, kept_findings, modes, storage
from parvi.results.particles import constrained, flattened, log_densities
from parvi.results.predict import predicted
from parvi.results.report.words import Call, Verdict, verdict_of
from parvi.results.sought import Sought
from parvi.results.transport import files
from parvi.results.transport.importance import Importance
from parvi.results.transport.making import flown, transport_of
from parvi.results.transport.transport import Transport
from parvi.results.transport.witness import Witness, witnessed
from parvi.results.verdicts import Verdicts
from parvi.run.history import columns_of
from parvi.run.initial import as_key, as_target
from parvi.run.surroundings import surrounded
from parvi.samplers.balance import Balanced
from parvi.samplers.path import Passes
from parvi.status import Status
from parvi.targets.dependent import Dependent, model_of
from parvi.targets.flatten import Labels
from parvi.targets.target import AbstractTarget

if TYPE_CHECKING:
    import arviz as az
    import pandas as pd

# Further particles come from the map if its share of effective draws is at least this.
_GOOD_SHARE = 0.8
_UNPICKLED = ("target", "settings", "transport", "importance", "passes", "balanced")
# What is computed at first access and stays.
_KEPT = ("log_density", "transport", "importance", "verdicts")


class Timing(NamedTuple):
    """Total seconds, and the seconds of the calls that compiled; of a resumed run, since then."""

    seconds: float
    compile_seconds: float


class Settings(NamedTuple):
    """The arguments of ``parvi.sample`` other than the target."""

    init: Any
    key: Any
    num_particles: int | None
    sampler: Any
    num_steps: int | None


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Result:
    """The outcome of a run. All arrays are NumPy arrays in the dtype of the run.

    Attributes
    ----------
    particles
        The particles, in the structure and on the scale of ``init``, with leading axis n.
    status
        How the run ended.
    history
        Per-step arrays: ``stage`` (its name), ``kl_rate`` (dKL/dt), ``stein_ratio``,
        ``step_size``, ``gradients`` (how many were evaluated), ``accepted`` (whether any particle
        moved) and the sampler's own columns, which are NaN in stages that do not have them.
    names
        A name for every number of a particle.
    sampler, key
        The sampler's settings and the key as text, for the record.
    timing
        Times in seconds.
    num_moved
        Number of initial particles that were moved between others because their density was not
        finite.
    target
        The target; None in a result that was loaded from a file.
    saved_log_density
        The log densities, in a result that was loaded from a file.
    settings
        The arguments with which ``parvi.sample(result.target, **result.settings._asdict())`` gives
        the same particles, bit for bit; None in a result that was loaded from a file. It refers to
        ``init`` without a copy.
    passes
        Where the passes of a tempered path ended; None if the run took none, or was loaded.
    balanced
        The weights of modes by bridge sampling; None if the run took no path, or was loaded.
    saved_transport
        The map, in a result that was loaded from a file.
    changes
        How far the run's own transitions moved the mean or variance of every unconstrained number,
        in standard errors; None if it has not tested the particles.
    sought
        How far from the particles the run has looked for modes; None if it has not.
    saved_findings
        What was known about the particles when the file was written, in a result that was loaded.
    flat
        The flat and unconstrained particles of a model of another library, whose particles hold
        more than its parameters; None otherwise.
    labels
        Names of axes and of the places along them, where the model has them.
    """

    particles: PyTree[np.ndarray]
    status: Status
    history: dict[str, np.ndarray]
    names: list[str]
    sampler: str
    key: str
    timing: Timing
    num_moved: int = 0
    target: AbstractTarget | None = None
    saved_log_density: Float[np.ndarray, " n"] | None = None
    settings: Settings | None = None
    passes: Passes | None = None
    balanced: Balanced | None = None
    saved_transport: Transport | None = None
    changes: Float[np.ndarray, " d"] | None = None
    sought: Sought | None = None
    saved_findings: kept_findings.Findings = kept_findings.Findings()
    flat: Float[np.ndarray, "n d"] | None = None
    labels: Labels | None = None

    @classmethod
    def build(
        cls,
        target: AbstractTarget,
        flat: Any,
        status: Status,
        history: list,
        settings: Settings,
        timing: Timing,
        num_moved: int = 0,
        passes: Passes | None = None,
        balanced: Balanced | None = None,
        changes: Float[np.ndarray, " d"] | None = None,
        sought: Sought | None = None,
    ) -> "Result":
        """Build a result from the end of a run."""
        layout = target.layout
        assert layout is not None
        particles = constrained(layout, flat)
        return cls(
            particles=jax.tree_util.tree_map(np.asarray, particles),
            status=status,
            history=columns_of(history),
            names=layout.scalar_names(),
            sampler=_text_of(settings.sampler),
            key=str(settings.key),
            timing=timing,
            num_moved=num_moved,
            target=target,
            settings=settings,
            passes=passes,
            balanced=balanced,
            changes=changes,
            sought=sought,
            flat=np.asarray(flat) if isinstance(layout, Dependent) else None,
            labels=layout.labels,
        )

    @functools.cached_property
    def log_density(self) -> Float[np.ndarray, " n"]:
        """Log density of each particle on the scale of ``init`` (without the Jacobian).

        For a model of another library it is the density that the library's samplers see, with the
        Jacobian. All the data are used. The density is evaluated at first access, since that may
        take longer than the run.
        """
        if self.saved_log_density is not None:
            return self.saved_log_density
        assert self.target is not None
        with surrounded(self._dtype):
            arguments = self.particles if self.flat is None else self.flat
            return np.asarray(log_densities(self.target, arguments), self._dtype)

    @property
    def _dtype(self) -> np.dtype:
        return jax.tree_util.tree_leaves(self.particles)[0].dtype

    @property
    def num_steps(self) -> int:
        """Number of steps that were made."""
        return len(self.history["kl_rate"]) if self.history else 0

    @property
    def num_gradients(self) -> int:
        """Number of gradients that were evaluated, including those at the start."""
        made = self.history["gradients"].sum(dtype=np.int64) if self.history else 0
        return self.num_particles + int(made)

    @property
    def num_particles(self) -> int:
        """n, the number of particles."""
        return len(jax.tree_util.tree_leaves(self.particles)[0])

    def matrix(self) -> Float[np.ndarray, "n k"]:
        """The particles as one array with a column for every name."""
        leaves = jax.tree_util.tree_leaves(self.particles)
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    def summary(self) -> "pd.DataFrame":
        """Mean, standard deviation, quantiles and the verdict on every parameter.

        ``drift`` is the largest change of its mean or variance under the run's own Hamiltonian
        transitions, in standard errors. ``stein_ratio`` is 1 for the target's own draws, smaller if
        the particles are too narrow. ``verdict`` says in a word whether either is more than chance.
        Once ``check()`` has been called and has found something, no parameter that a finding is
        about is "ok". If the run met separated modes, the mean within each follows. It has no r_hat
        and no effective sample size, which are made for chains and mean nothing here. A result from
        a file has the verdicts that were known when it was saved.
        """
        from parvi.results.table import summarised

        met = self.known_modes() if np.any(self._tempered) else None
        seen = self.__dict__.get("last_check", self.saved_findings.check)
        doubts = {} if seen is None else seen.doubts
        return summarised(self.matrix(), self.names, self.status, self.verdicts, met, doubts)

    @functools.cached_property
    def verdicts(self) -> Verdicts | None:
        """What is known about every parameter; None in a result from a file without it."""
        if self.saved_findings.verdicts is not None or self.target is None:
            return self.saved_findings.verdicts
        with surrounded(self._dtype):
            target, flat, _ = self._flattened(None, "summary")
            scores = np.asarray(evaluate(target.full(), flat)[1])
        assert self.target.layout is not None
        return Verdicts.of(np.asarray(flat), scores, self.changes).per_name(self.target.layout)

    def predict(self, function: Callable, key: Any = None) -> PyTree[np.ndarray]:
        """The values of a function at every particle, such as predictions at new inputs.

        Parameters
        ----------
        function
            Function of one particle, or of a key and a particle if ``key`` is given, that returns
            an array or any pytree of arrays.
        key
            An int or a JAX key, if the function draws; every particle gets a key of its own.
        """
        with surrounded(self._dtype):
            return predicted(function, self.particles, key)

    def known_modes(self) -> modes.Modes | None:
        """The modes as ``modes()`` finds them, or as they were saved; None if nobody knows.

        Particles of a run that failed have none.
        """
        if self.target is None or self.status.failed:
            return self.saved_findings.modes
        if "found_modes" not in self.__dict__:
            self.__dict__["found_modes"] = self.modes()
        return self.__dict__["found_modes"]

    def verdict(self) -> Verdict:
        """Whether the particles can be believed, why, and what to do next, in words."""
        check = None
        known = self.target is not None or self.saved_findings.check is not None
        if known and not self.status.failed:
            check = self.check()
        dim = len(self.names) if self.flat is None else self.flat.shape[1]
        limited = None if self.settings is None else self.settings.num_steps is not None
        return verdict_of(
            self.status,
            check,
            self.known_modes(),
            (self.num_particles, dim),
            self.sought,
            Call(self.sampler, limited),
        )

    def report(self, path: Any, title: str = "parvi report", names: list[str] | None = None) -> Any:
        """Write a page that shows this result and needs nothing but itself; returns its path.

        Parameters
        ----------
        path
            File to write, such as ``report.html``.
        title
            Title of the page.
        names
            Parameters in the figures; by default the first ones.
        """
        from parvi.results.report.page import write_report

        return write_report(self, path, title, names)

    def check(self, target: AbstractTarget | Callable | None = None) -> checks.Check:
        """Say in words what is wrong with these particles, as far as they show it.

        The check tests Stein's identity for functions that the run did not use, in units of what
        as many independent draws would show. Hamiltonian transitions from every particle must
        leave means and variances unchanged; a run of the default has already tested that, and its
        finding is used. If ``transport`` was made, its weighted draws must have the same means and
        variances. ``bool(result.check())`` is True if nothing was found; print the check to
        read its findings.

        Parameters
        ----------
        target
            The target, if the result was loaded from a file.
        """
        if target is None and self.target is None and self.saved_findings.check is not None:
            return self.saved_findings.check
        witness = self.witness if "transport" in self.__dict__ else None
        with surrounded(self._dtype):
            target, flat, names = self._flattened(target, "check")
            tempered = bool(np.any(self._tempered))
            known = checks.Known(self._drift, self.changes, self._beyond)
            found = checks.checked(self.status, target, flat, tempered, names, known, witness)
        self.__dict__["last_check"] = found
        return found

    def modes(self, target: AbstractTarget | Callable | None = None) -> modes.Modes:
        """The separated modes in which the particles lie, with the errors of their weights.

        Print them to read them in words. They take some log densities on ways between particles.

        Parameters
        ----------
        target
            The target, if the result was loaded from a file.
        """
        with surrounded(self._dtype):
            target, flat, _ = self._flattened(target, "modes")
            density = target.full()
            values, scores = (np.asarray(found) for found in evaluate(density, flat))
            return modes.modes_of(
                density, np.asarray(flat), values, scores, self.passes, self.balanced
            )

    def _flattened(self, target, method: str) -> tuple[AbstractTarget, Any, list[str]]:
        """The target with all its data, the flat and unconstrained particles, and their names."""
        target = self.target if target is None else target
        return flattened(target, self.particles, self.flat, method)

    @property
    def _drift(self) -> float | None:
        """The drift that the run itself has found in these particles, if it has tested them."""
        if "drift" not in self.history:
            return None
        stages = self.history["stage"].astype(str)
        # Steps that were undone tested other particles, and surveys test these in another way.
        kept = ~np.char.endswith(stages, ", undone") & ~np.char.startswith(stages, "survey")
        drifts = self.history["drift"][kept]
        return float(drifts[-1]) if len(drifts) and np.isfinite(drifts[-1]) else None

    @property
    def _beyond(self) -> float | None:
        """The mass beyond the particles that the run itself has found; None if it has not looked.

        A survey that was not the last step has seen other particles.
        """
        shares = self.history.get("beyond", np.empty(0))
        return float(shares[-1]) if len(shares) and np.isfinite(shares[-1]) else None

    @functools.cached_property
    def transport(self) -> Transport:
        """A smooth map from N(0, I) to the target, with its exact density, made at first access.

        Layers are fitted to fresh points, and each is kept only if it lowers the exact KL
        divergence. Separated modes get a map each. The key is the run's, so that the same run has
        the same map. If there is no map, a ``ValueError`` says so.
        """
        if self.saved_transport is not None:
            return self.saved_transport
        if self.target is None:
            raise ValueError(
                "A loaded result does not hold the log density, and no map was saved with it: "
                "use result.transport before result.save."
            )
        labels = self.modes().labels if np.any(self._tempered) else None
        with surrounded(self._dtype):
            target, flat, _ = self._flattened(None, "transport")
            return transport_of(target, np.asarray(flat), labels, self._key(1))

    @functools.cached_property
    def importance(self) -> Importance:
        """Weighted draws of ``transport``: ``transport.importance()``, kept."""
        return self.transport.importance()

    @property
    def witness(self) -> Witness:
        """What the weighted draws of ``transport`` say of the particles' means and variances."""
        found = self.importance
        with surrounded(self._dtype):
            _, flat, _ = self._flattened(self.transport.target, "witness")
            return witnessed(found, np.asarray(flat))

    def log_evidence(self) -> float:
        """The log of the integral of the density: the log marginal likelihood of a model.

        If the run met separated modes, it comes from the tempered path, and otherwise from the
        weighted draws of ``transport``, whose ``importance()`` has the standard error. If neither
        gives it, a ``ValueError`` says so.
        """
        if np.any(self._tempered):
            column, beta = self.history["log_evidence"], self.history["beta"]
            # A path that was broken off has the evidence of a density that is flatter.
            whole = column[np.isfinite(column) & ~(beta < 1)]
            if not len(whole):
                raise ValueError(
                    "The evidence is not known: the run ended before its tempered path did. Give "
                    "it more steps."
                )
            return float(whole[-1])
        found = self.importance
        if not found:
            raise ValueError(f"The evidence is not known: {found.trouble}.")
        return found.log_evidence

    def more(self, num: int, key: Any = 1) -> PyTree[np.ndarray]:
        """More particles, without another run.

        They are images of scrambled-Sobol points under ``transport``, or, where there is no good
        map, places that Hamiltonian transitions from these particles visit.

        Parameters
        ----------
        num
            How many.
        key
            An int or a JAX key.
        """
        if not isinstance(num, (int, np.integer)) or num < 1:
            raise ValueError(f"num must be an int of at least 1, got {num!r}.")
        try:
            if self.importance.share >= _GOOD_SHARE:
                drawn = self.transport.draw(key, int(num), sobol=True)
                return jax.tree_util.tree_map(np.asarray, drawn)
        except ValueError:
            if self.target is None:
                raise
        with surrounded(self._dtype):
            target, flat, _ = self._flattened(None, "more")
            sets = -(-int(num) // self.num_particles)
            visits = flown(target, np.asarray(flat), sets, as_key(key))
            # Rows are taken evenly from all sets, so the last set may be cut anywhere.
            rows = visits.reshape(-1, visits.shape[-1])
            chosen = rows[np.arange(int(num)) * len(rows) // int(num)]
            assert target.layout is not None
            found = constrained(target.layout, chosen)
            return jax.tree_util.tree_map(np.asarray, found)

    @property
    def names_flat(self) -> list[str]:
        """A name for every unconstrained number."""
        assert self.target is not None
        assert self.target.layout is not None
        return self.target.layout.flat_names()

    def with_status(self, status: Status) -> "Result":
        """The same result with another status, and with the map if it was made."""
        new = dataclasses.replace(self, status=status)
        kept = {name: self.__dict__[name] for name in _KEPT if name in self.__dict__}
        new.__dict__.update(kept)
        return new

    def _key(self, number: int) -> Any:
        """A key of the run's own."""
        key = 0 if self.settings is None else self.settings.key
        return jax.random.fold_in(as_key(key), number)

    @property
    def _tempered(self) -> np.ndarray:
        """Which steps followed a tempered path."""
        stages = self.history.get("stage", np.empty(0, str))
        return np.char.startswith(stages.astype(str), "temper")

    def to_arviz(
        self,
        num_prior: int = 0,
        dims: dict[str, Any] | None = None,
        coords: dict[str, Any] | None = None,
        target: Any = None,
    ) -> "az.InferenceData":
        """Convert to what ArviZ works with: one chain of n draws, ``lp`` in ``sample_stats``.

        A model of another library has the groups ``log_likelihood``, ``posterior_predictive`` and
        ``observed_data`` too, as far as it knows them. It is an ``InferenceData`` of ArviZ 0.23,
        and a ``DataTree`` of ArviZ 1.

        Parameters
        ----------
        num_prior
            Number of draws in ``prior`` and ``prior_predictive``, which are left out if it is 0.
        dims, coords
            Names of axes, by parameter, and of the places along an axis, beside the model's own.
        target
            The target, if the result was loaded from a file.
        """
        labels = self.labels or Labels({}, {})
        labels = Labels(labels.dims | (dims or {}), labels.coords | (coords or {}))
        target = self.target if target is None else as_target(target)
        model = None if target is None else model_of(target.layout)
        groups: dict[str, Any] = {}
        if model is not None and self.flat is not None:
            with surrounded(self._dtype):
                groups = arviz.groups_of(
                    model, self.particles, self.flat, num_prior, self._key(2), self._key(3)
                )
        elif num_prior:
            raise ValueError(
                "Only a model of another library can draw from its prior: leave num_prior out, or "
                "give target= if the result was loaded from a file."
            )
        facts = self._facts()
        return arviz.inference_data(self.particles, self.log_density, groups, labels, facts)

    def save(self, path: Any) -> None:
        """Write to one file (NumPy's npz, no pickle). An existing file is replaced atomically.

        The map is saved too if ``transport`` was made and all constraints are parvi's own, and so
        are the verdicts, the check and the modes if they are known.
        """
        arrays = {f"history/{name}": column for name, column in self.history.items()}
        arrays["log_density"] = self.log_density
        facts = self._facts() | {"names": self.names}
        if self.flat is not None:
            arrays["flat"] = self.flat
        if self.labels is not None:
            facts["labels"] = storage.described(self.labels)
        if "transport" in self.__dict__:
            facts["transport"] = files.as_record(self.transport)
            if facts["transport"] is not None:
                arrays |= files.as_arrays(self.transport)
        more, facts["findings"] = kept_findings.as_record(self._findings())
        storage.write(path, self.particles, arrays | more, facts)

    def _findings(self) -> kept_findings.Findings:
        """What is known about the particles without new evaluations of the target."""
        saved, known = self.saved_findings, self.__dict__
        return kept_findings.Findings(
            known.get("verdicts", saved.verdicts),
            known.get("last_check", saved.check),
            known.get("found_modes", saved.modes),
            self.sought,
        )

    def _facts(self) -> dict[str, Any]:
        return {
            "status": self.status.name,
            "sampler": self.sampler,
            "key": self.key,
            "seconds": self.timing.seconds,
            "compile_seconds": self.timing.compile_seconds,
            "num_moved": self.num_moved,
        }

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: without the target, the settings and the map, which hold functions.

        The log densities are pickled only if they are known.
        """
        state = {name: value for name, value in self.__dict__.items() if name not in _UNPICKLED}
        if "log_density" in self.__dict__:
            state["saved_log_density"] = self.log_density
        return state | {"target": None, "settings": None}

    def __repr__(self) -> str:
        # Stages that only test have none.
        rates = self.history.get("kl_rate", np.empty(0))
        rates = rates[np.isfinite(rates)]
        # At rest, what the last fit shows is the noise of its features.
        going = len(rates) and self.status != Status.CONVERGED
        last = f", KL rate {rates[-1]:.2e}" if going else ""
        return (
            f"<parvi.Result: {self.num_particles} particles of {len(self.names)} numbers, "
            f"{self.status.name} after {self.num_steps} steps{last}, "
            f"{self.timing.seconds:.1f} s ({self.timing.compile_seconds:.1f} s compiling)>"
        )


# The last sampler and its text.
_printed: list[tuple[Any, str]] = []


def _text_of(sampler: Any) -> str:
    """The sampler's settings; printing those of the default takes longer than many a run."""
    for known, text in _printed:
        if known is sampler:
            return text
    _printed[:] = [(sampler, repr(sampler))]
    return _printed[0][1]
