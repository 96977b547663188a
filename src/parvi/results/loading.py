"""``load``: a result from the file that ``Result.save`` wrote."""

from typing import Any

from jaxtyping import PyTree

from parvi.results import kept_findings, storage
from parvi.results.particles import first_of
from parvi.results.result import Result, Timing
from parvi.results.transport import files
from parvi.status import Status
from parvi.targets.flatten import Layout, names_of


def load(path: Any, like: PyTree | None = None) -> Result:
    """Read a result that ``Result.save`` wrote.

    Parameters
    ----------
    path
        Path of the file.
    like
        A particle of the wanted structure. It is needed only if the structure is not made of
        dicts, lists and tuples.
    """
    particles, arrays, facts = storage.read(path, like)
    try:
        status = Status[facts["status"]]
    except KeyError as error:
        known = ", ".join(status.name for status in Status)
        raise ValueError(
            f"{path} has the unknown status {facts.get('status')!r}; this version of parvi knows "
            f"{known}. It was written by a newer version or changed by hand: update parvi, or "
            "read the arrays with numpy.load."
        ) from error
    prefix, layout = "history/", Layout.of(first_of(particles))
    labels = storage.labels_of(facts)
    findings = kept_findings.from_record(arrays, facts.get("findings"), path)
    return Result(
        particles=particles,
        status=status,
        history={n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)},
        # In the order of the leaves as read: those of a user's class are in a dict.
        names=names_of(layout.paths, layout.shapes, labels),
        sampler=facts["sampler"],
        key=facts["key"],
        timing=Timing(facts["seconds"], facts["compile_seconds"]),
        num_moved=facts["num_moved"],
        saved_log_density=arrays["log_density"],
        saved_transport=files.from_file(arrays, facts, first_of(particles)),
        sought=findings.sought,
        saved_findings=findings,
        flat=arrays.get("flat"),
        labels=labels,
    )
