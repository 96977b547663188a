"""The history of a run in blocks, one or more for every stage."""

from typing import Any

import jax
import numpy as np

from parvi.interface import Info
from parvi.run.compile.programs import Record

Block = tuple[str, Record]


def joined(blocks: list[Block]) -> list[Block]:
    """The blocks, after joining neighbours of one stage that have the same columns."""
    groups: list[list[Block]] = []
    for name, records in blocks:
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and last[0] == name
            and set(last[1].info.extra) == set(records.info.extra)
        ):
            groups[-1].append((name, records))
        else:
            groups.append([(name, records)])
    return [(group[0][0], _together([records for _, records in group])) for group in groups]


def _together(parts: list[Record]) -> Record:
    if len(parts) == 1:
        return parts[0]
    return jax.tree_util.tree_map(lambda *columns: np.concatenate(columns), *parts)


def record_of(arrays: dict[str, np.ndarray], number: int, extra: list[str]) -> Record:
    """The block that was saved under a number, with these columns of its own."""
    zero: Any = 0
    like = Record(Info(zero, zero, zero, zero, zero, dict.fromkeys(extra, zero)), zero)
    leaves, treedef = jax.tree_util.tree_flatten(like)
    found = [arrays[f"history/{number}/{i}"] for i in range(len(leaves))]
    record = jax.tree_util.tree_unflatten(treedef, found)
    # A tree has the names in alphabetical order, and the history in that of the sampler.
    ordered = {name: record.info.extra[name] for name in extra}
    return record._replace(info=record.info._replace(extra=ordered))


def columns_of(blocks: list[Block]) -> dict[str, np.ndarray]:
    """One column for each quantity, NaN in stages that do not have it."""
    if not blocks:
        return {}
    parts = []
    for stage, record in blocks:
        columns = record.info._asdict() | {"accepted": record.accepted}
        columns |= columns.pop("extra")
        del columns["status"]
        columns["stage"] = np.full(len(record.accepted), stage)
        parts.append(columns)
    names = dict.fromkeys(name for columns in parts for name in columns)
    return {name: np.concatenate([_column(name, part) for part in parts]) for name in names}


def _column(name: str, columns: dict[str, np.ndarray]) -> np.ndarray:
    if name in columns:
        return columns[name]
    return np.full(len(columns["accepted"]), np.nan, columns["kl_rate"].dtype)


def with_column(records: Record, name: str, column: Any) -> Record:
    """The records with one more column, in the dtype of the run."""
    extra = {**records.info.extra, name: column.astype(records.info.kl_rate.dtype)}
    return records._replace(info=records.info._replace(extra=extra))
