"""The coordinator: takes each micro-batch of one Spark query along the path.

foreachBatch: stage every sink ─ (Spark commits) ─ in the background: capture ─ checkpoint ─ delete what was retired
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from ..checkpointer import Attempt, Checkpointer, Report, SinkFailed
from ..errors import Conflict, SlackwaterError, Unavailable
from ..failpoints import reach
from ..formats.manifest import SinkOutput
from ..retention import References, delete_retired
from ..settings import Settings
from ..spark.capture import capture
from ..store import Store
from ..world import World
from .sinks import Sink
from .workdir import WorkingDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("slackwater")

_COMMIT_POLL_S = 0.01  # Spark commits some milliseconds after foreachBatch returns.
_ALIVE_POLL_S = 0.25
_LOOKS = 3


class RunningQuery(Protocol):
    """What the coordinator needs of Spark's query."""

    @property
    def isActive(self) -> bool: ...

    def stop(self) -> None: ...


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
        references: References,
        world: World,
        settings: Settings,
        sinks: Mapping[str, Sink],
        work: WorkingDirectory,
        source_types: Sequence[str],
    ) -> None:
        self._checkpointer, self._store, self._references = checkpointer, store, references
        self._world, self._settings, self._sinks = world, settings, sinks
        self._work, self._source_types = work, source_types
        self._in_flight: deque[_Staged] = deque()
        self._unfinished: set[str] = set()
        self._changed = threading.Condition()
        self.stopping = False
        self._query: RunningQuery | None = None
        self.failure: BaseException | None = None
        self.ended = threading.Event()
        self.reports: deque[Report] = deque(maxlen=100)

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
            self._finish()
            self._work.remove()
            self.ended.set()
            with self._changed:
                self._changed.notify_all()

    def _next_committed(self) -> _Staged | None:
        """Wait for Spark to commit the oldest micro-batch in flight; None when the query has ended and none is left."""
        while True:
            active = self._query is not None and self._query.isActive
            with self._changed:
                if not self._in_flight and active:
                    self._changed.wait(_ALIVE_POLL_S)
                oldest = self._in_flight[0] if self._in_flight else None
            if oldest is None:
                if not active:
                    return None
                continue
            commit = self._work.checkpoint / "commits" / str(oldest.micro_batch)
            waited = 0.0
            while not commit.exists():
                if not active:
                    return None  # Spark will not commit it any more: the next run does it again.
                if waited >= _ALIVE_POLL_S:
                    break
                self._world.sleep(_COMMIT_POLL_S)
                waited += _COMMIT_POLL_S
            else:
                return oldest

    def _checkpoint(self, staged: _Staged) -> None:
        reach("capture.before")
        # From here on the attempt may count, whatever we see of it: only recovery may judge it.
        self._unfinished.discard(staged.attempt.checkpoint_id)
        report = self._capture_and_store(staged)
        with self._changed:
            self._in_flight.popleft()
            self._changed.notify_all()
        self.reports.append(report)
        logger.info(describe(report))
        self._delete_retired()

    def _capture_and_store(self, staged: _Staged) -> Report:
        for look in range(_LOOKS):
            started = self._world.monotonic()
            cut = capture(self._work.checkpoint, staged.micro_batch, self._source_types)
            captured_ms = round(1000 * (self._world.monotonic() - started))
            try:
                report = self._checkpointer.checkpoint(cut, staged.attempt)
            except Unavailable as error:
                # Spark may have put a newer snapshot in the place of files that were found a moment ago.
                if error.code != "artifact.gone" or look == _LOOKS - 1:
                    raise
            else:
                report.durations_ms["capture"] = captured_ms
                return report
        raise AssertionError("unreachable")

    def _delete_retired(self) -> None:
        try:
            self._checkpointer.note_deleted(delete_retired(self._store, self._checkpointer.state, self._references))
        except Conflict:
            raise
        except SlackwaterError as error:
            # The checkpoint counts all the same, and the deletes are done again with the next one.
            logger.warning("old checkpoints were not deleted yet: %s", error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
        if self._query is not None and self._query.isActive:
            self._query.stop()

    def _finish(self) -> None:
        """End on record, and leave nothing behind; a fenced driver leaves everything to the other,
        one whose store is away to its next start.
        """
        if isinstance(self.failure, Conflict | Unavailable):
            return
        try:
            for sink in self._sinks.values():
                sink.discard(self._unfinished)
            self._checkpointer.release(self.failure if isinstance(self.failure, SinkFailed) else None)
        except BaseException as error:
            self.failure = self.failure or error

    # --- for the handle

    def stop(self) -> None:
        """Let no further micro-batch begin; wake one that waits."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def wait_settled(self) -> None:
        """Wait until every staged micro-batch is settled, or the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight or self.failure or self.ended.is_set())

    @property
    def checkpointer(self) -> Checkpointer:
        return self._checkpointer


def describe(report: Report) -> str:
    """Format a checkpoint's one log line."""
    total_ms = sum(report.durations_ms.values())
    phases = ", ".join(f"{name} {ms}" for name, ms in report.durations_ms.items())
    requests = ", ".join(f"{report.requests[name]} {name}" for name in ("puts", "lists", "gets", "deletes"))
    return (
        f"epoch {report.epoch}, micro-batch {report.micro_batch}: {report.new_files} state files "
        f"({report.new_file_bytes} bytes) stored as {report.new_bytes} bytes, {report.full_bytes} in all; "
        f"{total_ms} ms ({phases}); {requests}"
    )
