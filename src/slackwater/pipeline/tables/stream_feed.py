"""A streaming DataFrame as the feed of a reference table."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import InvalidInput, SlackwaterError, Unavailable, Unsupported
from ...spark.capture import capture
from .feeds import Changes, Feed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# Taken and not yet applied; Spark must not clean up what a capture needs.
_MOST_WAITING = 1
_POLL_S = 0.005


class StreamFeed(Feed):
    """Changes from any streaming source of Spark: a query of its own, whose position is the table's.

    The DataFrame has no state. Rows of one micro-batch are applied in no order that is promised: let it have one change
    of a key at most.
    """

    kind = "stream"

    def __init__(self, frame: DataFrame) -> None:
        if not frame.isStreaming:
            raise InvalidInput(
                "a StreamFeed takes a streaming DataFrame",
                code="feed.not_streaming",
                hint="read it with spark.readStream",
            )
        self._frame = frame
        self._waiting: deque[tuple[int, list[Any]]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._folder = Path()
        self._query: StreamingQuery | None = None

    def start(self, folder: Path) -> None:
        self._folder, self._stopping = folder, False
        self._waiting.clear()
        writer = self._frame.writeStream.foreachBatch(self._take).option("checkpointLocation", folder.as_uri())
        self._query = writer.start()

    def _take(self, frame: DataFrame, micro_batch: int) -> None:
        batches = frame.toArrow().to_batches()
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or len(self._waiting) < _MOST_WAITING)
            if self._stopping:
                raise SlackwaterError("the pipeline is stopping", code="pipeline.stopping")
            self._waiting.append((micro_batch, batches))

    def read(self, position: Mapping[str, str], schema: pa.Schema) -> Changes | None:
        with self._changed:
            self._refuse_failed()
            if not self._waiting:
                return None
            micro_batch, batches = self._waiting.popleft()
            self._changed.notify_all()
        # Spark commits a moment after it was told that the micro-batch is taken; from then on it can be gone on from.
        while not (self._folder / "commits" / str(micro_batch)).exists():
            self._refuse_failed()
            time.sleep(_POLL_S)
        return Changes(batches, f"micro-batch {micro_batch} of its stream", {"micro_batch": str(micro_batch)})

    def files(self, position: Mapping[str, str]) -> dict[str, bytes]:
        if not position:
            return {}
        cut = capture(self._folder, int(position["micro_batch"]))
        if cut.operators:
            raise Unsupported(
                "the stream that feeds a table has state",
                code="feed.stateful",
                hint="feed the table from what that query writes, or take the aggregation or deduplication away",
            )
        return {
            file.path: file.source if isinstance(file.source, bytes) else file.source.read_bytes() for file in cut.files
        }

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._query is not None:
            with suppress(Exception):  # a JVM that is gone has stopped, too
                self._query.stop()

    def processAllAvailable(self) -> None:
        """Wait until all that the stream's sources have now waits to be applied, or was."""
        if self._query is not None:
            self._query.processAllAvailable()

    def _refuse_failed(self) -> None:
        if self._query is not None and (error := self._query.exception()) is not None:
            raise Unavailable(
                f"the stream that feeds a table has failed: {str(error).splitlines()[0][:300]}",
                code="feed.failed",
                hint="mend its source, and start again",
            )
