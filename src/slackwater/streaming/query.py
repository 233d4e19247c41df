"""The handle of a running pipeline: Spark's own, with checkpoints."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from ..errors import Conflict, NotFound
from ..formats.state import LiveCheckpoint, Savepoint
from ..ops.savepoint import create_label
from ..protocol.labels import check_label, find_label
from ..protocol.log import Log
from ..protocol.pipeline import Pipeline
from .coordinator import Coordinator
from .metrics import Endpoint

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.listener import StreamingQueryProgress

logger = logging.getLogger("slackwater")

_active: dict[str, PipelineQuery] = {}
_active_lock = threading.Lock()


class PipelineQuery(StreamingQuery):
    """A ``StreamingQuery`` whose micro-batches are checkpoints.

    It has ended when Spark's query has ended *and* everything that Spark committed is settled.
    """

    def __init__(self, jsq: Any, pipeline: Pipeline, coordinator: Coordinator) -> None:
        super().__init__(jsq)
        self.url, self._pipeline = pipeline.url, pipeline
        self._coordinator = coordinator
        self._told = False
        # Where Prometheus finds this pipeline's metrics, as host:port; None when they are not asked for.
        self.metrics_address: str | None = None

    @property
    def isActive(self) -> bool:
        return not self._coordinator.ended.is_set()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end; raise the typed error, or Spark's own, if there was one."""
        ended = self._coordinator.ended.wait(timeout)
        if not ended:
            return False
        self._raise_failure()
        if not self._coordinator.stopping:  # Otherwise Spark may have ended because we told it to.
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

    def stop(self, savepoint: str | None = None) -> None:
        """Stop after a last checkpoint: what Spark has committed is settled when this returns.

        With a label for a savepoint, that last checkpoint gets it. A run that has failed raises and gives no label.
        """
        if savepoint is not None:
            self._check_free(savepoint)
        self._coordinator.stop()
        super().stop()
        self._coordinator.ended.wait()
        self._raise_failure()
        if savepoint is not None:
            if (failure := self.exception()) is not None:
                raise failure
            self._label_last(savepoint)

    def _open_log(self) -> Log:
        """Open the log anew: that of the pipeline is in the hands of the thread that checkpoints."""
        return Log(self._pipeline.store, self._pipeline.clock, self._pipeline.settings)

    def _check_free(self, label: str) -> None:
        """Refuse, while everything still runs, a label that could not be given."""
        check_label(label)
        state = self._open_log().read()
        if state is not None and find_label(state, label) is not None:
            raise Conflict(
                f"there is a savepoint {label!r} already; the pipeline was not stopped",
                code="label.taken",
                hint="choose another label; slackwater savepoint list URL shows those that are there",
            )

    def _label_last(self, label: str) -> None:
        # By its id: another driver may have started since, and have made a newer one.
        last = self._coordinator.state.head
        if last is None:
            raise NotFound(
                f"the pipeline has stopped, but has no checkpoint yet that could be the savepoint {label!r}",
                code="checkpoint.none",
                hint="start it again: a micro-batch makes one",
            )
        create_label(self._open_log(), label, last.checkpoint_id)

    def exception(self) -> StreamingQueryException | None:
        failure = self._coordinator.failure
        if failure is None and self._coordinator.stopping:
            return None
        return failure if failure is not None else super().exception()  # type: ignore[return-value]

    def checkpoints(self) -> list[LiveCheckpoint]:
        """List the live checkpoints, oldest first."""
        return list(self._coordinator.state.live)

    def savepoint(self, label: str) -> Savepoint:
        """Give the newest checkpoint a label; retention keeps it until the label is deleted."""
        return create_label(self._open_log(), label)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Spark's newest progress, with what is known of the checkpoints by now as ``["slackwater"]``."""
        progress = super().lastProgress
        return None if progress is None else self._add(progress)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Spark's recent progress; the newest one has what ``lastProgress`` has."""
        recent = super().recentProgress
        return recent and [*recent[:-1], self._add(recent[-1])]

    def _add(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        told = self._coordinator.progress.describe(self.exception())
        progress["slackwater"] = told
        if progress._jdict is not None:  # its JSON is made of this
            progress._jdict["slackwater"] = told
        return progress

    def serve_metrics(self, endpoint: Endpoint) -> None:
        """Show this run at an address until it has ended."""
        endpoint.show(self._coordinator.progress)
        self.metrics_address = endpoint.address
        logger.info("pipeline %s: metrics at http://%s/metrics", self.name, endpoint.address)
        self._coordinator.at_end(endpoint.close)

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


def register(url: str, query: PipelineQuery) -> None:
    """Remember a query by the one spelling of its pipeline's URL that every store has."""
    with _active_lock:
        for known in [known for known, old in _active.items() if not old.untold]:
            del _active[known]
        _active[url] = query


def hush_spark() -> None:
    """Let Spark log nothing more: the end that it is asked for looks like a failure to it."""
    if (context := SparkContext._active_spark_context) is not None:
        context.setLogLevel("OFF")


def active() -> list[PipelineQuery]:
    """List the pipelines of this process that run, or whose failure nobody was told."""
    with _active_lock:
        return [query for query in _active.values() if query.untold]
