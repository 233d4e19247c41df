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

from ..errors import Code, InvalidInput, SlackwaterError, Unavailable, Unsupported
from ..formats.positions import KIND as INBOX
from ..spark.capture import capture
from ..spark.hydrate import checkpoint_location
from ..spark.plan import source_types
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
                code="table.invalid",
                hint="read it with spark.readStream",
            )
        self._frame = frame
        if INBOX in self.source_types():
            raise Unsupported(
                "an inbox cannot feed a table: it would never be told what the table's checkpoints cover, and grow",
                code="table.unsupported",
                hint="let a pipeline of its own write its messages through sw.FileSink, one file an epoch "
                "(coalesce(1)), and feed the table from that folder by sw.FileFeed",
            )
        self._waiting: deque[tuple[int, list[Any]]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._folder = Path()
        self._query: StreamingQuery | None = None

    def source_types(self) -> list[str]:
        return source_types(self._frame)

    def start(self, folder: Path) -> None:
        self._folder, self._stopping = folder, False
        self._waiting.clear()
        writer = self._frame.writeStream.foreachBatch(self._take)
        self._query = writer.option("checkpointLocation", checkpoint_location(folder)).start()

    def _take(self, frame: DataFrame, micro_batch: int) -> None:
        batches = frame.toArrow().to_batches()
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or len(self._waiting) < _MOST_WAITING)
            if self._stopping:
                raise SlackwaterError("the pipeline is stopping", code=Code.PIPELINE_STOPPING)
            self._waiting.append((micro_batch, batches))

    def read(self, position: Mapping[str, str], schema: pa.Schema) -> Changes | None:
        with self._changed:
            self._refuse_ended()
            if not self._waiting:
                return None
            micro_batch, batches = self._waiting.popleft()
            self._changed.notify_all()
        # Spark commits a moment after it was told that the micro-batch is taken; from then on it can be gone on from.
        while not (self._folder / "commits" / str(micro_batch)).exists():
            if self._stopping:
                return None  # the next run takes it again
            self._refuse_ended()
            time.sleep(_POLL_S)
        return Changes(batches, f"micro-batch {micro_batch} of its stream", {"micro_batch": str(micro_batch)})

    def files(self, position: Mapping[str, str]) -> dict[str, bytes]:
        if not position:
            return {}
        cut = capture(self._folder, int(position["micro_batch"]))
        if cut.operators:
            raise Unsupported(
                "the stream that feeds a table has state",
                code="table.unsupported",
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

    def _refuse_ended(self) -> None:
        """Refuse to go on with a table that nothing feeds any more, whoever has ended its stream."""
        # In this order: we say that we stop it before we do.
        if self._query is None or self._query.isActive or self._stopping:
            return
        error = self._query.exception()
        raise Unavailable(
            f"the stream that feeds a table has failed: {str(error).splitlines()[0][:300]}"
            if error is not None
            else "the stream that feeds a table was stopped",
            code="table.unavailable",
            hint="fix its source, and start again"
            if error is not None
            else "start the pipeline again, which starts it",
        )
