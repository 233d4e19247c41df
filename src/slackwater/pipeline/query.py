"""The handle of a running pipeline: Spark's own, with checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.query import StreamingQuery

from ..errors import Conflict
from ..formats.records import LiveCheckpoint, Savepoint
from ..labels import create_label
from ..log import Log
from .coordinator import Coordinator

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException

_active: dict[str, PipelineQuery] = {}
_active_lock = threading.Lock()


class PipelineQuery(StreamingQuery):
    """A ``StreamingQuery`` whose micro-batches are checkpoints.

    It has ended when Spark's query has ended *and* everything that Spark committed is settled.
    """

    def __init__(self, jsq: Any, url: str, coordinator: Coordinator, open_log: Callable[[], Log]) -> None:
        super().__init__(jsq)
        self.url = url
        self._coordinator = coordinator
        self._open_log = open_log
        self._told = False

    @property
    def isActive(self) -> bool:
        return not self._coordinator.ended.is_set()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end; raise the typed error, or Spark's own, if there was one."""
        ended = self._coordinator.ended.wait(timeout)
        if not ended:
            return False
        self._raise_failure()
        if not self._coordinator.stopping:  # Else Spark may have ended on our own word to stop.
            super().awaitTermination()
        return None if timeout is None else True

    def processAllAvailable(self) -> None:
        """Wait until all that the sources have now is processed and settled."""
        try:
            super().processAllAvailable()
        except Exception:
            self._coordinator.ended.wait()
            self._raise_failure()
            raise
        self._coordinator.wait_settled()
        self._raise_failure()

    def stop(self) -> None:
        """Stop after a last checkpoint: what Spark has committed is settled when this returns."""
        self._coordinator.stop()
        super().stop()
        self._coordinator.ended.wait()
        self._raise_failure()

    def exception(self) -> StreamingQueryException | None:
        failure = self._coordinator.failure
        if failure is None and self._coordinator.stopping:
            return None
        return failure if failure is not None else super().exception()  # type: ignore[return-value]

    def checkpoints(self) -> list[LiveCheckpoint]:
        """List the live checkpoints, oldest first."""
        return list(self._coordinator.checkpointer.state.live)

    def savepoint(self, label: str) -> Savepoint:
        """Give the newest checkpoint a label; retention keeps it until the label is deleted."""
        return create_label(self._open_log(), label, "latest")

    @property
    def untold(self) -> bool:
        """Whether it runs, or has failed and nobody was told."""
        return self.isActive or (not self._told and self.exception() is not None)

    def _raise_failure(self) -> None:
        self._told = True
        if self._coordinator.failure is not None:
            raise self._coordinator.failure


def refuse_second(url: str) -> None:
    """Refuse a second driver of one pipeline in this process: it would only fence the first."""
    with _active_lock:
        running = _active.get(url)
        if running is not None and running.isActive:
            raise Conflict(
                f"the pipeline {url} is running in this process already",
                code="pipeline.running",
                hint="stop() it first",
            )


def register(query: PipelineQuery) -> None:
    with _active_lock:
        for url in [url for url, old in _active.items() if not old.untold]:
            del _active[url]
        _active[query.url] = query


def active() -> list[PipelineQuery]:
    """List the pipelines of this process that run, or whose failure nobody was told."""
    with _active_lock:
        return [query for query in _active.values() if query.untold]
