"""How a run ended: data carried through the compiled loop, put into words only on the host."""

import enum


class Status(enum.IntEnum):
    """How a run ended."""

    RUNNING = 0
    CONVERGED = 1
    MAX_STEPS = 2
    NONFINITE = 3
    DIVERGED = 4
    STALLED = 5
    INTERRUPTED = 6
    NOT_AT_REST = 7
    NOISY = 8

    @property
    def failed(self) -> bool:
        """Whether the particles should not be used as a sample."""
        return self in (Status.NONFINITE, Status.DIVERGED, Status.STALLED)

    def __str__(self) -> str:
        return self.name

    @property
    def message(self) -> str:
        """One sentence for a human."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.RUNNING: "The run has not ended.",
    Status.CONVERGED: "The sampler came to its end: its stopping rule was satisfied.",
    Status.MAX_STEPS: "All steps were made; the stopping rule was not satisfied.",
    Status.NONFINITE: "The log density or its gradient became NaN or infinite at a proposed move.",
    Status.DIVERGED: "The particles ran away, further than their dtype can resolve.",
    Status.STALLED: "The run made no progress: no move was accepted, or none can be resolved.",
    Status.INTERRUPTED: "The run was interrupted.",
    Status.NOT_AT_REST: "The target's own dynamics still move the particles.",
    Status.NOISY: "The run saw mini-batches, and its particles have not passed a test.",
}


class _WithResult(BaseException):
    """An exception with a result, which pickles with it."""

    def __init__(self, message: str, result):
        super().__init__(message)
        self.result = result

    def __reduce__(self):
        # Python would call the class with the message alone.
        return type(self), (str(self), self.result)


class SamplingError(_WithResult, RuntimeError):
    """A run failed; the particles reached before the failure are in ``result``."""


class NotAtRestWarning(UserWarning):
    """The particles have not passed the run's own test, and are probably not a sample."""


class SamplingInterrupted(_WithResult, KeyboardInterrupt):
    """A run was interrupted; the particles reached so far are in ``result``."""
