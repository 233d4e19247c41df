"""The executors' side of a reference table: find the version of this micro-batch, and read rows from it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import Unavailable
from ..keyed.state import KeyedState
from .published_versions import PublishedVersions
from .rows import RowCodec

# Spark names the micro-batch to every task of it.
_MICRO_BATCH = "streaming.sql.batchId"
_open: dict[str, KeyedState] = {}
# A worker process outlives micro-batches; the last versions that it has read stay open.
_MOST_OPEN = 4


def version_of_task(published: PublishedVersions, table: str) -> KeyedState:
    """Open the version that this task's micro-batch reads; outside of a stream, the newest."""
    from pyspark import TaskContext  # noqa: PLC0415 - in the executor's worker

    context = TaskContext.get()
    number = context.getLocalProperty(_MICRO_BATCH) if context is not None else None
    version = published.wait(number) if number else published.newest()
    if not version:
        raise Unavailable(
            f"the table {table!r} has no version for {f'micro-batch {number}' if number else 'this'}",
            code="table.unavailable",
            hint="start the query with sw.writeStream, in the process that made the table, and see what that says of "
            "its feed; on a cluster, let SLACKWATER_WORK name a folder that driver and executors share",
        )
    if version not in _open:
        if not _open:
            # Spark's worker collects garbage after each task. What is imported by now stays, and need not be looked
            # through each time, which takes as long as some thousand lookups.
            gc.freeze()
        while len(_open) >= _MOST_OPEN:
            _open.pop(next(iter(_open))).close()
        _open[version] = KeyedState(Path(version), read_only=True)
    return _open[version]


def make_lookup(
    published: PublishedVersions, codec: RowCodec, on: Sequence[str], how: str
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Make the function that joins a stream's batches with the table, for ``mapInArrow``."""

    def lookup(batches: Iterator[Any]) -> Iterator[Any]:
        state: KeyedState | None = None
        for batch in batches:
            state = state or version_of_task(published, codec.table)
            keys = codec.encode_keys([batch.column(name) for name in on])
            found: list[bytes | None] = [None] * len(keys)
            wanted = [number for number, key in enumerate(keys) if key is not None]
            for number, value in zip(wanted, state.get_many([keys[number] or b"" for number in wanted]), strict=True):
                found[number] = value
            rows = batch
            if how == "inner":
                kept = [number for number, value in enumerate(found) if value is not None]
                rows, found = batch.take(pa.array(kept, pa.int64())), [found[number] for number in kept]
            names = [*rows.schema.names, *codec.values]
            yield pa.RecordBatch.from_arrays([*rows.columns, *codec.decode_values(found)], names=names)

    lookup.__name__ = lookup.__qualname__ = plan_name(codec.table, published)
    return lookup


def plan_name(table: str, published: PublishedVersions) -> str:
    """Name what reads a table. Spark writes this into the plan, by which a start finds the tables that a query reads.

    After the @ is what is new in each run: as an address in memory would, it does not count in the query's hash.
    """
    return f"slackwater.table.{table}@{published.path.name.rpartition('-')[2]}"
