"""Forward: make a captured cut a checkpoint that counts.

put artifacts ─ manifest ─ APPEND ─ commit sinks ─ ``_latest``

``recovery.py`` is this page mirrored. What a crash right after each step means is in ``docs/spec/log.md``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import cast

import msgspec

from ..clock import Clock
from ..errors import Conflict, SlackwaterError, Unavailable
from ..failpoints import reach
from ..formats import manifest as manifests
from ..formats.change import Checkpoint, Release, Settlement
from ..formats.keys import LATEST, manifest_key
from ..formats.manifest import Manifest, references
from ..formats.query import Query
from ..formats.state import State
from ..settings import Settings
from ..store import Store
from .artifacts import Holdings, Stored, put_artifacts
from .cut import Cut
from .keep import plan_retire
from .log import Log
from .sinks import Attempt, CommittingSink, SinkFailed, drive_sinks


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one checkpoint was and cost. ``new_files`` are the state files that it stored, before they were packed."""

    epoch: int
    checkpoint_id: str
    micro_batch: int
    new_files: int
    new_file_bytes: int
    new_bytes: int
    full_bytes: int
    durations_ms: dict[str, int]
    objects: frozenset[str]


class Checkpointer:
    """A driver's hand on its pipeline: one epoch after the other."""

    def __init__(
        self,
        *,
        store: Store,
        log: Log,
        clock: Clock,
        settings: Settings,
        pipeline: str,
        pipeline_hash: str | None = None,
        query: Query | None = None,
        sinks: Mapping[str, CommittingSink] | None = None,
        holdings: Holdings | None = None,
        settlement: Settlement | None = None,
    ) -> None:
        self._store, self._log, self._clock, self._settings = store, log, clock, settings
        self._pipeline, self._pipeline_hash, self._query, self._sinks = pipeline, pipeline_hash, query, sinks or {}
        self._holdings = holdings or {}
        # How the newest epoch was settled: it goes into the next record.
        self._settlement = settlement
        self._deleted: list[int] = []
        self._counted = store.requests.snapshot()
        self.generation = self.state.generation

    @property
    def state(self) -> State:
        """The newest state that this driver knows; there is one, because a driver has claimed."""
        return cast(State, self._log.state)

    def checkpoint(self, cut: Cut, attempt: Attempt, *, captured_ms: int = 0) -> Report:
        """Make the cut the next epoch and commit the sinks. When this returns, the epoch is settled."""
        clock = _Stopwatch(self._clock, captured_ms)
        stored = put_artifacts(self._store, cut, attempt.checkpoint_id, self._holdings, self._settings)
        reach("artifacts.after")
        clock.lap("artifacts")
        document = self._draw_up(cut, attempt, stored)
        data = manifests.encode(document)
        self._store.put(manifest_key(attempt.checkpoint_id), data)
        reach("manifest.after")
        clock.lap("manifest")
        self._append(document, data)
        reach("append.after")
        clock.lap("append")
        self._holdings = stored.holdings
        self._settlement = drive_sinks(document, self._sinks)
        clock.lap("commit")
        self._store.put(LATEST, attempt.checkpoint_id.encode())
        reach("latest.after")
        clock.lap("latest")
        # All since the settlement before, so that the deletes after it are on record too.
        before, self._counted = self._counted, self._store.requests.snapshot()
        requests = msgspec.structs.asdict(self._counted - before)
        new_bytes = stored.new_bytes + len(data)
        self._settlement = msgspec.structs.replace(
            self._settlement,
            durations_ms=clock.laps_ms,
            requests=requests,
            packed=stored.packed,
            new_bytes=new_bytes,
            full_bytes=document.total_size_bytes,
        )
        return Report(
            epoch=document.epoch,
            checkpoint_id=attempt.checkpoint_id,
            micro_batch=cut.micro_batch,
            new_files=stored.new_files,
            new_file_bytes=stored.new_file_bytes,
            new_bytes=new_bytes,
            full_bytes=document.total_size_bytes,
            durations_ms=clock.laps_ms,
            objects=references(document),
        )

    @property
    def holdings(self) -> Holdings:
        """What the newest checkpoint holds, and the next one may refer to."""
        return self._holdings

    def store_all_again(self) -> None:
        """Let the next checkpoint refer to nothing that older ones have stored."""
        self._holdings = {}

    def note_deleted(self, epochs: Iterable[int]) -> None:
        """Say with the next record that the bytes of these retired epochs are gone."""
        self._deleted = sorted({*self._deleted, *epochs})

    def release(self, failure: SinkFailed | None = None) -> None:
        """End this generation on record; a sink that could not commit the newest epoch is named with the reason."""
        settled = failure.settlement if failure else self._settlement
        reach("release.before")
        release(self._log, self.generation, settled, self._deleted)
        reach("release.after")

    def _draw_up(self, cut: Cut, attempt: Attempt, stored: Stored) -> Manifest:
        state = self.state
        return Manifest(
            version=manifests.VERSION,
            checkpoint_id=attempt.checkpoint_id,
            epoch=state.epoch + 1,
            parent_id=state.head.checkpoint_id if state.head else None,
            pipeline=self._pipeline,
            uid=state.uid,
            created_at_ms=self._clock.now_ms(),
            micro_batch=cut.micro_batch,
            watermark_ms=cut.watermark_ms,
            pipeline_hash=self._pipeline_hash,
            query=self._query,
            rollback=None,
            origin=cut.origin,
            source_names=list(cut.sources),
            sink_names=list(self._sinks),
            source_offsets=cut.sources,
            source_watermarks=cut.source_watermarks,
            table_offsets=cut.table_offsets,
            table_store_path=cut.table_store_path,
            sinks=attempt.outputs,
            sink_epochs=cut.sink_epochs,
            vnode_count=cut.vnode_count,
            operators=stored.operators,
            files=stored.files,
            objects=stored.objects,
            total_size_bytes=stored.total_size_bytes,
        )

    def _append(self, document: Manifest, data: bytes) -> None:
        sha256, settled, deleted = hashlib.sha256(data).hexdigest(), self._settlement, self._deleted

        def decide(state: State | None) -> Checkpoint:
            # Retirement is computed anew on each state: a label may have come in between.
            return Checkpoint(
                generation=self.generation,
                epoch=document.epoch,
                checkpoint_id=document.checkpoint_id,
                manifest_sha256=sha256,
                manifest_size_bytes=len(data),
                parent_id=document.parent_id,
                settled=settled,
                retire=plan_retire(state, self._settings.keep_last, deleted) if state else [],
                deleted=deleted,
            )

        self._log.append(decide, generation=self.generation)
        self._settlement, self._deleted = None, []


def make_first(store: Store, log: Log, clock: Clock, settings: Settings, *, pipeline: str, cut: Cut) -> State:
    """Make a cut from elsewhere the first checkpoint of a pipeline, and release the claim that the caller has.

    What its query will be is not known, and it has no sinks yet: the first start says both.
    """
    checkpointer = Checkpointer(store=store, log=log, clock=clock, settings=settings, pipeline=pipeline)
    checkpointer.checkpoint(cut, Attempt(checkpoint_id=clock.checkpoint_id(), outputs={}))
    checkpointer.release()
    return checkpointer.state


def release(log: Log, generation: int, settled: Settlement | None = None, deleted: Iterable[int] = ()) -> None:
    """End a generation on record, and say how the newest epoch was settled if that is news.

    Who was interrupted once a newer epoch counted knows only of the one before, which that epoch's record has settled.
    """

    def decide(state: State | None) -> Release:
        news = settled if settled and state and settled.epoch == state.epoch else None
        return Release(generation=generation, settled=news, deleted=list(deleted))

    log.append(decide, generation=generation)


def release_failed(log: Log, generation: int, error: BaseException) -> None:
    """End on record a start that failed; not when the store is away, nor when another driver has taken over."""
    if isinstance(error, Exception) and not isinstance(error, Conflict | Unavailable):
        with suppress(SlackwaterError):  # the first error is the one to tell
            release(log, generation, error.settlement if isinstance(error, SinkFailed) else None)


class _Stopwatch:
    def __init__(self, clock: Clock, captured_ms: int) -> None:
        self._clock, self._last = clock, clock.monotonic()
        self.laps_ms = {"capture": captured_ms}

    def lap(self, name: str) -> None:
        now = self._clock.monotonic()
        self.laps_ms[name] = round(1000 * (now - self._last))
        self._last = now
