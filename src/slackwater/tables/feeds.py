"""Feeds: where the changes of a reference table come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa


class Changes(msgspec.Struct, frozen=True):
    """Changes in their order, where they come from in words, and the position that is reached when they are applied.

    ``batches`` are Arrow record batches. ``position`` is the feed's own, as text by text.
    """

    batches: list[Any]
    where: str
    position: dict[str, str]


class Feed(ABC):
    """A source of changes that can be read again from any position that it gave. ``kind`` is a word for tools.

    >>> class Listed(Feed):
    ...     kind = "listed"
    ...
    ...     def __init__(self, rows):
    ...         self.rows = rows
    ...
    ...     def read(self, position, schema):
    ...         done = int(position.get("row", 0))
    ...         new = [pa.RecordBatch.from_pylist([row], schema) for row in self.rows[done:]]
    ...         return Changes(new, f"rows from {done} on", {"row": str(len(self.rows))}) if new else None
    >>> schema = pa.schema({"id": pa.int64(), "risk": pa.string()})
    >>> feed = Listed([{"id": 1, "risk": "low"}, {"id": 2, "risk": "high"}])
    >>> feed.read({"row": "1"}, schema).batches[0].to_pylist(), feed.read({"row": "2"}, schema)
    ([{'id': 2, 'risk': 'high'}], None)
    """

    kind: str

    @abstractmethod
    def read(self, position: Mapping[str, str], schema: pa.Schema) -> Changes | None:
        """Read what came after a position, empty for the beginning; None when there is nothing new.

        Each batch has the key's columns and the others, and may have ``_deleted``: true deletes the row with this key.
        """

    def source_types(self) -> list[str]:
        """List the kinds of the streams that it reads, as in ``readStream.format``: the pipeline promises no more."""
        return []

    def start(self, folder: Path) -> None:  # noqa: B027 - most have nothing to begin, nor to end
        """Begin a run. In the folder are the files that ``files`` gave for the position to go on from."""

    def files(self, position: Mapping[str, str]) -> dict[str, bytes]:
        """Give what a checkpoint must hold, beside the position, to go on from there: bytes by relative path."""
        return {}

    def stop(self) -> None:  # noqa: B027
        """End the run, and a ``read`` that waits in another thread; a second call does nothing."""
