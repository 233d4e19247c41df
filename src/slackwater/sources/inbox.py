"""The messages of an inbox as a stream: by position, in Arrow batches, again and again until they are covered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..errors import InvalidInput, Unsupported
from ..formats.positions import KIND
from ..inboxes.files import read_published
from ..inboxes.reader import Message, check_range, read_messages
from .query_inboxes import remember

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MAX_PARTITIONS = 1024


def inbox(
    spark: SparkSession,
    folder: str | os.PathLike[str],
    *,
    max_rows: int | None = None,
    partitions: int = 1,
    binary: bool = False,
) -> DataFrame:
    """Read what a receiver keeps in a folder: a streaming DataFrame of ``position``, ``received_at`` and ``message``.

    ``max_rows`` bounds a micro-batch, ``partitions`` is how many tasks read it. ``message`` is text, or with ``binary``
    the bytes. What a pipeline's checkpoints cover is dropped from the folder: it is for one pipeline.
    """
    _check("max_rows", max_rows if max_rows is not None else 1, 2**53 - 1)
    _check("partitions", partitions, _MAX_PARTITIONS)
    place = Path(os.path.abspath(os.fspath(folder)))
    published = read_published(place)
    remember(published.inbox, place)
    spark.dataSource.register(InboxSource)
    options = {
        "folder": str(place),
        "inbox": published.inbox,
        "max_rows": str(max_rows or 0),
        "partitions": str(partitions),
        "binary": str(bool(binary)).lower(),
    }
    return spark.readStream.format(KIND).options(**options).load()


def _check(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidInput(
            f"{name} of an inbox cannot be {value!r:.60}",
            code="inbox.invalid",
            hint=f"give a whole number from 1 to {most}",
        )


class InboxSource(DataSource):
    """The format that ``sw.inbox`` loads."""

    @classmethod
    def name(cls) -> str:
        return KIND

    def schema(self) -> str:
        return f"position bigint, received_at timestamp, message {'binary' if self._binary else 'string'}"

    @property
    def _binary(self) -> bool:
        return self.options["binary"] == "true"

    def streamReader(self, schema: StructType) -> InboxReader:
        return InboxReader(
            folder=Path(self.options["folder"]),
            inbox=self.options["inbox"],
            max_rows=int(self.options["max_rows"]),
            splits=int(self.options["partitions"]),
            binary=self._binary,
        )


class Span(InputPartition):
    """The positions that one task reads: after ``begin``, up to ``end``."""

    def __init__(self, inbox: str, begin: int, end: int) -> None:
        self.inbox, self.begin, self.end = inbox, begin, end


class InboxReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Serve positions that are durable. Spark's own commit means nothing: it comes before the checkpoint."""

    def __init__(self, *, folder: Path, inbox: str, max_rows: int, splits: int, binary: bool) -> None:
        self.folder, self.inbox, self.max_rows = folder, inbox, max_rows
        self.splits, self.binary = splits, binary
        self.end: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        published = read_published(self.folder)
        return {"inbox": published.inbox, "position": published.dropped}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.max_rows) if self.max_rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        published = read_published(self.folder)
        check_range(self.folder, published, start["inbox"], start["position"])
        end = published.position if self.end is None else min(self.end, published.position)
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["position"] + limit.max_rows)
        return {"inbox": published.inbox, "position": max(end, start["position"])}

    def reportLatestOffset(self) -> dict[str, Any]:
        published = read_published(self.folder)
        return {"inbox": published.inbox, "position": published.position}

    def prepareForTriggerAvailableNow(self) -> None:
        self.end = read_published(self.folder).position

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Span]:
        begin, size = start["position"], end["position"] - start["position"]
        check_range(self.folder, read_published(self.folder), start["inbox"], begin, end["position"])
        edges = [begin + size * split // self.splits for split in range(self.splits + 1)]
        return [Span(end["inbox"], low, high) for low, high in pairwise(edges) if low < high]

    def read(self, partition: Span) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        for messages in read_messages(self.folder, partition.inbox, partition.begin, partition.end):
            yield record_batch(messages, binary=self.binary)


def record_batch(messages: list[Message], *, binary: bool) -> pa.RecordBatch:
    """Put messages into columns."""
    content = b"".join(message.content for message in messages)
    if not binary and not content.isascii():
        _check_text(messages)
    ends = np.cumsum([0, *(len(message.content) for message in messages)], dtype=np.int32)
    # pa.array() imports pandas, which costs each Python worker of Spark a second.
    positions = np.array([message.position for message in messages], dtype=np.int64)
    times = np.array([message.received_at_ms for message in messages], dtype=np.int64) * 1_000
    moment = pa.timestamp("us", tz="UTC")
    kind = pa.binary() if binary else pa.string()
    count = len(messages)
    return pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(positions)]),
            pa.Array.from_buffers(moment, count, [None, pa.py_buffer(times)]),
            pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends), pa.py_buffer(content)]),
        ],
        names=["position", "received_at", "message"],
    )


def _check_text(messages: list[Message]) -> None:
    for message in messages:
        try:
            message.content.decode()
        except UnicodeDecodeError:
            raise Unsupported(
                f"message {message.position} is not UTF-8",
                code="inbox.unsupported",
                hint="read with sw.inbox(spark, DIR, binary=True)",
            ) from None
