"""The coordinator: the order of steps of one micro-batch of a Spark query.

foreachBatch: stage every sink ─ (Spark commits) ─ in the background: capture ─ checkpoint ─ delete what is old

An epoch is one micro-batch, or all that are staged within an interval; the capture is that of the last one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..errors import Code, SlackwaterError
from ..failpoints import reach
from ..formats.state import State
from ..protocol.checkpoint import CheckpointReport
from ..protocol.driver import Driver, was_fenced
from ..protocol.sinks import Attempt, Sink, describe_output
from ..sinks.function import FunctionSink
from ..sources.acknowledgement import Acknowledgements
from .epochs import Epoch, Epochs, StagedBatch
from .progress import Progress, format_report
from .workspace import Workspace

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


class Coordinator:
    """One driver's run over one pipeline. ``stage`` runs in Spark's thread, everything after it in one of its own."""

    def __init__(
        self,
        driver: Driver,
        sinks: Mapping[str, Sink],
        workspace: Workspace,
        acknowledgements: Acknowledgements,
        *,
        ahead: int,
    ) -> None:
        self._driver, self._sinks, self._workspace, self._acknowledgements = driver, sinks, workspace, acknowledgements
        pipeline, self.tables = driver.pipeline, workspace.tables
        self._clock, self._store, settings = pipeline.clock, pipeline.store, pipeline.settings
        self._epochs = Epochs(interval_s=settings.interval_s, in_flight=settings.epochs_in_flight, ahead=ahead)
        self.progress = Progress(self._clock, self.state.head, self._store.requests, lambda: len(self._epochs))
        self._at_end = ExitStack()
        self._unfinished: set[str] = set()
        self._changed = threading.Condition()
        self.stopping = False
        self.failure: BaseException | None = None
        self.ended = threading.Event()

    @property
    def state(self) -> State:
        """The newest state that the driver knows."""
        return self._driver.state

    # --- in Spark's thread

    def stage(self, frame: DataFrame, micro_batch: int) -> None:
        """Stage every sink's output for one micro-batch; the function that foreachBatch is given."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.stopping or self.failure or self._epochs.has_room(micro_batch, self._clock.monotonic())
            )
            if self.stopping or self.failure:
                raise SlackwaterError("the pipeline is stopping", code=Code.PIPELINE_STOPPING)
            before = self._epochs.newest
            checkpoint_id = self._epochs.begin(self._clock.monotonic(), self._clock.checkpoint_id)
            self._unfinished.add(checkpoint_id)
        staged = None
        try:
            self._workspace.check_followed(micro_batch, before)
            self.tables.begin(checkpoint_id, micro_batch)
            staged = StagedBatch(micro_batch, self._stage_all(frame, checkpoint_id, micro_batch))
        except BaseException as error:
            # Spark passes on the text alone; the caller of awaitTermination gets the error itself.
            with self._changed:
                if not self.stopping:
                    self.failure = self.failure or error
                    self.progress.note_failed(error)
            raise
        finally:
            with self._changed:
                self._epochs.end(staged, self._clock.monotonic())
                self._changed.notify_all()

    def _stage_all(self, frame: DataFrame, checkpoint_id: str, micro_batch: int) -> dict[str, dict[str, Any]]:
        # Functions last: they may drop the frame's cache, and what they do is seen at once.
        functions = {name: sink for name, sink in self._sinks.items() if sink.kind == FunctionSink.kind}
        ordered = {name: sink for name, sink in self._sinks.items() if name not in functions} | functions
        # A second action would run the state stage again, so two sinks, or a function, need the frame kept.
        kept = len(ordered) > 1 or bool(functions)
        if kept:
            frame.persist()
        try:
            if len(functions) == len(ordered):
                # A function may read a part, or nothing; Spark's state needs every partition.
                frame.write.format("noop").mode("overwrite").save()
            descriptors = {}
            for name, sink in ordered.items():
                descriptors[name] = sink.stage(frame, checkpoint_id, micro_batch)
                reach("stage.after")
            return descriptors
        finally:
            if kept:
                frame.unpersist()

    # --- in the background

    def start(self, query: RunningQuery) -> None:
        """Follow the query from now on, until it ends and everything that it committed is settled."""
        threading.Thread(target=self._run, args=(query,), name="slackwater-checkpoints", daemon=True).start()

    def _run(self, query: RunningQuery) -> None:
        try:
            while (epoch := self._next_committed(query)) is not None:
                self._checkpoint(epoch)
        except BaseException as error:
            self.progress.note_failed(error)
            self._fail(query, error)
        finally:
            _await_end(query)
            failed: BaseException | None = None
            try:
                self.tables.close()
            except BaseException as error:  # A feed's own, or a disk's: whoever waits for the end must be told of it.
                failed = error
            self.failure = self.failure or self.tables.error or failed
            self._finish()
            self._workspace.directory.remove()
            with self._changed:
                try:
                    self._at_end.close()
                finally:
                    self.ended.set()
                    self._changed.notify_all()

    def _next_committed(self, query: RunningQuery) -> Epoch | None:
        """Wait until the oldest epoch is closed and Spark has committed it; None when the query has ended and none is.

        At the end an epoch is cut: what Spark has not committed by then, the next run does again.
        """
        ended = False
        while True:
            oldest = self._oldest_closed(0 if ended else _ALIVE_POLL_S)
            if oldest is not None and self._is_committed(oldest.last, 0 if ended else _ALIVE_POLL_S):
                return oldest
            if ended:
                return oldest if oldest is not None and self._cut(oldest) else None
            if not query.isActive:
                _await_end(query)
                with self._changed:
                    self._epochs.close_through()
                ended = True

    def _cut(self, epoch: Epoch) -> bool:
        newest = epoch.last
        left = epoch.cut(lambda micro_batch: self._is_committed(micro_batch, 0))
        # Whoever stops a pipeline expects that; of any other end nobody has told yet.
        level = logging.INFO if self.stopping else logging.WARNING
        logger.log(level, "Spark has ended without committing micro-batch %d: the next start does it again", newest)
        return left

    def _oldest_closed(self, patience_s: float) -> Epoch | None:
        with self._changed:
            self._epochs.close_due(now := self._clock.monotonic())
            if not self._epochs.closed and patience_s:
                self._changed.wait(min(patience_s, self._epochs.due_in_s(now)))
                self._epochs.close_due(self._clock.monotonic())
            return self._epochs.closed[0] if self._epochs.closed else None

    def _is_committed(self, micro_batch: int, patience_s: float) -> bool:
        deadline = self._clock.monotonic() + patience_s
        while not self._workspace.is_committed(micro_batch):
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_COMMIT_POLL_S)
        return True

    def _checkpoint(self, epoch: Epoch) -> None:
        reach("capture.before")
        # From here on the attempt may count, whatever we see of it: only recovery may judge it.
        self._unfinished.discard(epoch.checkpoint_id)
        requests, began = self._store.requests.snapshot(), self._clock.monotonic()
        cut = self._workspace.capture(epoch, self._driver.holdings)
        cut = msgspec.structs.replace(cut, sources=self._acknowledgements.note(cut.sources))
        captured_ms = round(1000 * (self._clock.monotonic() - began))

        def settle(report: CheckpointReport) -> None:
            self.tables.settle(epoch.checkpoint_id, epoch.last)
            # Its files are stored: Spark may clean them up now.
            with self._changed:
                self._epochs.settle()
                self.progress.note_settled(report, self._store.requests.snapshot() - requests)
                self._changed.notify_all()

        report = self._driver.checkpoint(cut, self._attempt(epoch), captured_ms=captured_ms, settled=settle)
        if report.hindrance:
            self.progress.note_error(report.hindrance)
        self._acknowledgements.know(report.checkpoint_id, cut.sources)
        if error := self._acknowledgements.acknowledge(self.state):
            self.progress.note_error(error)
        logger.info(format_report(report, epoch.first, self._store.requests.snapshot() - requests))

    def _attempt(self, epoch: Epoch) -> Attempt:
        outputs = {
            name: describe_output(sink, [staged.descriptors[name] for staged in epoch.staged])
            for name, sink in self._sinks.items()
        }
        return Attempt(checkpoint_id=epoch.checkpoint_id, outputs=outputs)

    def _fail(self, query: RunningQuery, error: BaseException) -> None:
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
        self.tables.stop()
        with suppress(Exception):  # A JVM that is gone has stopped, too.
            if query.isActive:
                query.stop()

    def _finish(self) -> None:
        """End on record, and leave nothing behind."""
        hindrance: BaseException | None
        try:
            hindrance = self._driver.end(self.failure, self._unfinished)
        except BaseException as error:  # A sink's own: whoever waits for the end must be told of it.
            hindrance = error
        if hindrance is not None and was_fenced(hindrance):
            # What failed first may be the newer driver's doing; whoever starts this one again would fence that.
            hindrance.__cause__, self.failure = self.failure, hindrance
        self.failure = self.failure or hindrance

    # --- for the handle, and for tables

    def has_open_epoch(self) -> bool:
        """Tell whether the next micro-batch may belong to an epoch that has begun."""
        with self._changed:
            return self._epochs.is_open

    def stop(self) -> None:
        """Let no further micro-batch begin; wake one that waits, for a feed too, and close the open epoch."""
        with self._changed:
            # Once it has ended, however it did, there is nothing to stop.
            self.stopping = self.stopping or not self.ended.is_set()
            self._epochs.close_through()
            self._changed.notify_all()
        self.tables.stop()

    def wait_settled(self) -> None:
        """Wait until every micro-batch that is staged by now is settled, or the run has ended."""
        with self._changed:
            newest = self._epochs.newest
            self._epochs.close_through(newest)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._epochs.settled >= newest or self.failure or self.ended.is_set())

    def at_end(self, act: Callable[[], None]) -> None:
        """Do this as the last thing of the run; at once, when it has ended."""
        with self._changed:
            if not self.ended.is_set():
                self._at_end.callback(act)
                return
        act()


def _await_end(query: RunningQuery) -> None:
    """Wait for Spark's thread: a query that is being stopped is inactive long before it has ended."""
    with suppress(Exception):  # How it ended is for the handle to tell.
        query.awaitTermination()
