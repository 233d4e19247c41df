"""The coordinator: takes each micro-batch of one Spark query along the path.

foreachBatch: stage every sink ─ (Spark commits) ─ in the background: capture ─ checkpoint ─ delete what was retired
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from ..checkpointer import Attempt, Checkpointer, Report, SinkFailed
from ..errors import Conflict, SlackwaterError, Unavailable
from ..failpoints import reach
from ..formats.manifest import SinkOutput
from ..log import Log
from ..retention import References, delete_retired
from ..settings import Settings
from ..spark.capture import capture
from ..store import Requests, Store
from ..world import World
from .sinks import Sink
from .workdir import WorkingDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("slackwater")

_COMMIT_POLL_S = 0.01  # Spark commits some milliseconds after foreachBatch returns.
_ALIVE_POLL_S = 0.25


class RunningQuery(Protocol):
    """What the coordinator needs of Spark's query."""

    @property
    def isActive(self) -> bool: ...

    def stop(self) -> None: ...

    def awaitTermination(self) -> object: ...


class _Staged(msgspec.Struct, frozen=True):
    micro_batch: int
    attempt: Attempt


class Stopping(SlackwaterError):
    """Ends Spark's query from inside foreachBatch; not a failure of its own."""


class Coordinator:
    """One driver's run over one pipeline. ``stage`` runs in Spark's thread, everything after it in one of its own."""

    def __init__(
        self,
        *,
        checkpointer: Checkpointer,
        store: Store,
        log: Log,
        references: References,
        world: World,
        settings: Settings,
        sinks: Mapping[str, Sink],
        work: WorkingDirectory,
        source_types: Sequence[str],
    ) -> None:
        self._checkpointer, self._store, self._log, self._references = checkpointer, store, log, references
        self._world, self._settings, self._sinks = world, settings, sinks
        self._work, self._source_types = work, source_types
        self._in_flight: deque[_Staged] = deque()
        self._unfinished: set[str] = set()
        self._changed = threading.Condition()
        self.stopping = False
        self._query: RunningQuery | None = None
        self.failure: BaseException | None = None
        self.ended = threading.Event()

    # --- in Spark's thread

    def stage(self, frame: DataFrame, micro_batch: int) -> None:
        """Stage every sink's output for one micro-batch; the function that foreachBatch is given."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.stopping or self.failure or len(self._in_flight) < self._settings.epochs_in_flight
            )
            if self.stopping or self.failure:
                raise Stopping("the pipeline is stopping", code="pipeline.stopping")
            checkpoint_id = self._world.checkpoint_id()
            self._unfinished.add(checkpoint_id)
        try:
            attempt = Attempt(checkpoint_id=checkpoint_id, outputs=self._stage_all(frame, checkpoint_id))
        except BaseException as error:
            # Spark passes on the text alone; the caller of awaitTermination gets the error itself.
            with self._changed:
                if not self.stopping:
                    self.failure = self.failure or error
            raise
        with self._changed:
            self._in_flight.append(_Staged(micro_batch, attempt))
            self._changed.notify_all()

    def _stage_all(self, frame: DataFrame, checkpoint_id: str) -> dict[str, SinkOutput]:
        # A second action would run the state stage again, so two sinks need the frame kept.
        kept = len(self._sinks) > 1
        if kept:
            frame.persist()
        try:
            outputs = {}
            for name, sink in self._sinks.items():
                descriptor = sink.stage(frame, checkpoint_id)
                reach("stage.after")
                outputs[name] = SinkOutput(
                    kind=sink.kind, address=sink.address, can_undo=sink.can_undo, descriptors=[descriptor]
                )
            return outputs
        finally:
            if kept:
                frame.unpersist()

    # --- in the background

    def start(self, query: RunningQuery) -> None:
        """Follow the query from now on, until it ends and everything that it committed is settled."""
        self._query = query
        threading.Thread(target=self._run, name="slackwater-checkpoints", daemon=True).start()

    def _run(self) -> None:
        try:
            while (staged := self._next_committed()) is not None:
                self._checkpoint(staged)
        except BaseException as error:
            self._fail(error)
        finally:
            self._await_spark()
            self._finish()
            self._work.remove()
            self.ended.set()
            with self._changed:
                self._changed.notify_all()

    def _next_committed(self) -> _Staged | None:
        """Wait for Spark to commit the oldest micro-batch in flight; None when the query has ended and none is left."""
        ended = False
        while True:
            with self._changed:
                if not self._in_flight and not ended:
                    self._changed.wait(_ALIVE_POLL_S)
                oldest = self._in_flight[0] if self._in_flight else None
            if oldest is not None and self._is_committed(oldest, 0 if ended else _ALIVE_POLL_S):
                return oldest
            if ended:
                return None  # What Spark has not committed by now, the next run does again.
            if self._query is None or not self._query.isActive:
                self._await_spark()
                ended = True

    def _is_committed(self, staged: _Staged, patience_s: float) -> bool:
        commit = self._work.checkpoint / "commits" / str(staged.micro_batch)
        deadline = self._world.monotonic() + patience_s
        while not commit.exists():
            if self._world.monotonic() >= deadline:
                return False
            self._world.sleep(_COMMIT_POLL_S)
        return True

    def _await_spark(self) -> None:
        """Wait for Spark's thread: a query that is being stopped is inactive long before it has ended."""
        with suppress(Exception):  # How it ended is for the handle to tell.
            if self._query is not None:
                self._query.awaitTermination()

    def _checkpoint(self, staged: _Staged) -> None:
        reach("capture.before")
        # From here on the attempt may count, whatever we see of it: only recovery may judge it.
        self._unfinished.discard(staged.attempt.checkpoint_id)
        requests, began = self._store.requests.snapshot(), self._world.monotonic()
        cut = capture(self._work.checkpoint, staged.micro_batch, self._source_types)
        captured_ms = round(1000 * (self._world.monotonic() - began))
        report = self._checkpointer.checkpoint(cut, staged.attempt, captured_ms=captured_ms)
        self._references.know(report.checkpoint_id, report.objects)
        with self._changed:
            self._in_flight.popleft()
            self._changed.notify_all()
        self._delete_retired()
        logger.info(describe(report, self._store.requests.snapshot() - requests))

    def _delete_retired(self) -> None:
        try:
            with self._log.unless_fenced(self._checkpointer.generation):
                gone = delete_retired(self._store, self._checkpointer.state, self._references)
            self._checkpointer.note_deleted(gone)
        except Conflict:
            raise
        except SlackwaterError as error:
            # The checkpoint counts all the same, and the deletes are done again with the next one.
            logger.warning("old checkpoints were not deleted yet: %s", error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
        with suppress(Exception):  # A JVM that is gone has stopped, too.
            if self._query is not None and self._query.isActive:
                self._query.stop()

    def _finish(self) -> None:
        """End on record and leave nothing behind.

        A fenced driver leaves everything to the other one, one whose store is away to its next start.
        """
        if isinstance(self.failure, Conflict | Unavailable):
            return
        try:
            # Before the discard: a driver that was fenced, and learns it here, must not touch even its own output.
            self._checkpointer.release(self.failure if isinstance(self.failure, SinkFailed) else None)
            for sink in self._sinks.values():
                sink.discard(self._unfinished)
        except BaseException as error:
            self.failure = self.failure or error

    # --- for the handle

    def stop(self) -> None:
        """Let no further micro-batch begin; wake one that waits."""
        with self._changed:
            # Once it has ended, however it did, there is nothing to stop.
            self.stopping = self.stopping or not self.ended.is_set()
            self._changed.notify_all()

    def wait_settled(self) -> None:
        """Wait until every staged micro-batch is settled, or the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight or self.failure or self.ended.is_set())

    @property
    def checkpointer(self) -> Checkpointer:
        return self._checkpointer


def describe(report: Report, spent: Requests) -> str:
    """Format a checkpoint's one log line."""
    total_ms = sum(report.durations_ms.values())
    phases = ", ".join(f"{name} {ms}" for name, ms in report.durations_ms.items())
    requests = f"{spent.puts} puts, {spent.lists} lists, {spent.gets} gets, {spent.deletes} deletes"
    return (
        f"epoch {report.epoch}, micro-batch {report.micro_batch}: {report.new_files} state files "
        f"({report.new_file_bytes} bytes) stored as {report.new_bytes} bytes, {report.full_bytes} in all; "
        f"{total_ms} ms ({phases}); {requests}"
    )
