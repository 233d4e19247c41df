"""Forward: the order of steps that makes a captured cut the next checkpoint.

put artifacts ─ manifest ─ APPEND ─ commit sinks ─ ``_latest``

``recovery.py`` is this page mirrored. What a crash right after each step means is in ``docs/spec/log.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ..clock import Clock
from ..errors import SlackwaterError
from ..failpoints import reach
from ..formats import manifest as manifests
from ..formats.change import Checkpoint, Settlement
from ..formats.keys import LATEST, manifest_key
from ..formats.manifest import Manifest, references
from ..formats.query import Query
from ..formats.state import State
from .artifacts import Holdings, Stored, put_artifacts
from .cut import Cut
from .keep_rules import plan_retire
from .log import Permit
from .pipeline import Pipeline
from .sinks import Attempt, CommittingSink, drive_sinks


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one checkpoint was and cost. ``new_files`` are the state files that it stored, before they were packed.

    ``hindrance`` is why old checkpoints were not deleted yet; the next checkpoint tries again.
    """

    epoch: int
    checkpoint_id: str
    micro_batch: int
    new_files: int
    new_file_bytes: int
    new_bytes: int
    full_bytes: int
    durations_ms: dict[str, int]
    objects: frozenset[str]
    hindrance: SlackwaterError | None = None


class Checkpointer:
    """Makes one epoch after the other. It remembers what the next record and manifest need of the ones before."""

    def __init__(
        self,
        pipeline: Pipeline,
        permit: Permit,
        sinks: Mapping[str, CommittingSink],
        *,
        holdings: Holdings,
        settlement: Settlement | None,
        query: Query | None = None,
        pipeline_hash: str | None = None,
    ) -> None:
        self._pipeline, self._permit, self._sinks = pipeline, permit, sinks
        self._query, self._pipeline_hash = query, pipeline_hash
        # What the newest checkpoint holds, and the next one may refer to.
        self.holdings = holdings
        # How the newest epoch was settled, and which retired epochs' bytes are gone: both go into the next record.
        self.settlement = settlement
        self.deleted: list[int] = []
        self._counted = pipeline.store.requests.snapshot()

    def note_deleted(self, epochs: Iterable[int]) -> None:
        """Say with the next record that the bytes of these retired epochs are gone."""
        self.deleted = sorted({*self.deleted, *epochs})

    def checkpoint(self, cut: Cut, attempt: Attempt, *, captured_ms: int = 0) -> CheckpointReport:
        """Make the cut the next epoch and commit the sinks. When this returns, the epoch is settled."""
        pipeline, store = self._pipeline, self._pipeline.store
        laps = _Stopwatch(pipeline.clock, captured_ms)
        stored = put_artifacts(store, cut, attempt.checkpoint_id, self.holdings, pipeline.settings)
        reach("artifacts.after")
        laps.lap("artifacts")
        document = self._draw_up(cut, attempt, stored)
        data = manifests.encode(document)
        store.put(manifest_key(attempt.checkpoint_id), data)
        reach("manifest.after")
        laps.lap("manifest")
        self._append(document, data)
        reach("append.after")
        laps.lap("append")
        self.holdings = stored.holdings
        self.settlement = drive_sinks(document, self._sinks)
        laps.lap("commit")
        store.put(LATEST, attempt.checkpoint_id.encode())
        reach("latest.after")
        laps.lap("latest")
        # All since the settlement before, so that the deletes after it are on record too.
        before, self._counted = self._counted, store.requests.snapshot()
        new_bytes = stored.new_bytes + len(data)
        self.settlement = msgspec.structs.replace(
            self.settlement,
            durations_ms=laps.laps_ms,
            requests=msgspec.structs.asdict(self._counted - before),
            packed=stored.packed,
            new_bytes=new_bytes,
            full_bytes=document.total_size_bytes,
        )
        return CheckpointReport(
            epoch=document.epoch,
            checkpoint_id=attempt.checkpoint_id,
            micro_batch=cut.micro_batch,
            new_files=stored.new_files,
            new_file_bytes=stored.new_file_bytes,
            new_bytes=new_bytes,
            full_bytes=document.total_size_bytes,
            durations_ms=laps.laps_ms,
            objects=references(document),
        )

    def _draw_up(self, cut: Cut, attempt: Attempt, stored: Stored) -> Manifest:
        state = self._pipeline.state
        return Manifest(
            version=manifests.VERSION,
            checkpoint_id=attempt.checkpoint_id,
            epoch=state.epoch + 1,
            parent_id=state.head.checkpoint_id if state.head else None,
            pipeline=self._pipeline.name,
            uid=state.uid,
            created_at_ms=self._pipeline.clock.now_ms(),
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
        vouched, settled, deleted = manifests.vouch(document, data), self.settlement, self.deleted
        keep_last = self._pipeline.settings.keep_last

        def decide(state: State | None) -> Checkpoint:
            # Retirement is computed anew on each state: a label may have come in between.
            return Checkpoint(
                **vouched,
                generation=self._permit.generation,
                settled=settled,
                retire=plan_retire(state, keep_last, deleted) if state else [],
                deleted=deleted,
            )

        self._pipeline.log.append(decide, permit=self._permit)
        self.settlement, self.deleted = None, []


class _Stopwatch:
    def __init__(self, clock: Clock, captured_ms: int) -> None:
        self._clock, self._last = clock, clock.monotonic()
        self.laps_ms = {"capture": captured_ms}

    def lap(self, name: str) -> None:
        now = self._clock.monotonic()
        self.laps_ms[name] = round(1000 * (now - self._last))
        self._last = now
