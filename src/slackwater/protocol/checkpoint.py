"""Forward: make a captured cut a checkpoint that counts.

put artifacts ─ manifest ─ APPEND ─ commit sinks ─ ``_latest``

``recovery.py`` is this page mirrored. What a crash right after each step means is in ``docs/spec/log.md``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, cast

import msgspec

from ..clock import Clock
from ..errors import Conflict, SlackwaterError, Unavailable
from ..failpoints import reach
from ..formats import manifest as manifests
from ..formats.change import MAX_REASON, NOTHING_PACKED, Checkpoint, Release, Settlement, SinkStatus
from ..formats.keys import LATEST, manifest_key
from ..formats.manifest import Manifest, RolledBack, SinkOutput, references
from ..formats.query import Query
from ..formats.state import State
from ..settings import Settings
from ..store import Store
from .artifacts import Cut, Holdings, Stored, put_artifacts
from .keep import plan_retire
from .log import Log


class CommittingSink(Protocol):
    """What the protocol asks of a sink; ``docs/spec/sinks.md`` says what it must hold to."""

    @property
    def kind(self) -> str: ...

    @property
    def address(self) -> str:
        """Where the output goes, without secrets: it is kept in manifests and shown."""
        ...

    def bind(self, pipeline: str, sink: str, uid: str) -> None:
        """Take the identity under which epochs are remembered; refuse output that knows another uid."""
        ...

    def epoch(self) -> int:
        """Tell the newest epoch that was committed under this identity, 0 for none."""
        ...

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        """Make staged output visible in one atomic step with the epoch; ignore an epoch that was passed."""
        ...

    def staged(self) -> list[str]:
        """List the attempts whose staged output is there and not committed."""
        ...

    def discard(self, attempts: Iterable[str]) -> None: ...

    def undo(self, to_epoch: int, epoch: int) -> None:
        """Take back all that was committed after ``to_epoch``, in one atomic step that also remembers ``epoch``."""
        ...

    def keep(self, epoch: int) -> None:
        """Remember ``epoch`` and leave every row as it is."""
        ...

    def plan_undo(self, to_epoch: int) -> str:
        """Say in a few words what an undo would take back; refuse, as it would, what it cannot."""
        ...

    @property
    def can_undo(self) -> bool: ...


def describe_output(sink: CommittingSink, descriptors: list[dict[str, Any]]) -> SinkOutput:
    """Put what a sink has staged into a manifest's words."""
    return SinkOutput(kind=sink.kind, address=sink.address, can_undo=sink.can_undo, descriptors=descriptors)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What the sinks have staged for one epoch, under the id that its checkpoint will have."""

    checkpoint_id: str
    outputs: dict[str, SinkOutput]


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


_GIVEN_UP = SinkStatus(status="Dropped", reason="the user gave its output up")


class SinkFailed(SlackwaterError):
    """A sink did not commit an epoch that counts, or not undo what it undoes; the next start drives it again."""

    @classmethod
    def because(cls, cause: Exception, document: Manifest, name: str, statuses: dict[str, SinkStatus]) -> SinkFailed:
        # Only our own words go on record: a foreign message may hold credentials.
        reason = str(cause) if isinstance(cause, SlackwaterError) else type(cause).__name__
        undo = document.rollback
        what = f"follow the rollback to epoch {undo.to_epoch}" if undo else f"commit epoch {document.epoch}"
        failed = SinkStatus(status="Failed", reason=reason[:MAX_REASON])
        return cls(
            f"the sink {name!r} did not {what}: {reason}",
            code="sink.commit_failed",
            hint="mend the cause and start again: the epoch counts, and the start drives it into the sink first",
            settlement=_settlement(document, {**statuses, name: failed}),
            exit_code=getattr(cause, "exit_code", 1),
        )

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return int(self.details["exit_code"])

    @property
    def settlement(self) -> Settlement:
        return cast(Settlement, self.details["settlement"])


def drive_sinks(document: Manifest, sinks: Mapping[str, CommittingSink]) -> Settlement:
    """Commit the epoch in every sink, one after the other, or undo what a rollback undoes; again does nothing.

    A sink of the manifest that is absent was given up by the user.
    """
    names, rollback = list(document.sinks), document.rollback
    if rollback is not None:
        # One that no manifest of the branch names may have rows of an undone epoch all the same, or be about to get
        # them from a driver that does not know yet that it was fenced.
        names += [name for name in sinks if name not in names]
    absent = find_absent(document, sinks)
    statuses = dict.fromkeys(names, SinkStatus(status="Pending"))
    for name in names:
        if name not in sinks or (rollback is None and name in absent):
            statuses[name] = _GIVEN_UP
            continue
        try:
            if rollback is None:
                sinks[name].commit(document.sinks[name].descriptors, document.epoch)
            else:
                if rollback.unsettled and name not in absent and (target := document.sinks.get(name)) is not None:
                    sinks[name].commit(target.descriptors, rollback.to_epoch)
                undo_sink(sinks[name], rollback, name, document.epoch)
            reach("commit.after")
        except Conflict as error:
            message, details = f"the sink {name!r}: {error.message}", {**error.details, "sink": name}
            raise Conflict(message, code=error.code, hint=error.hint, **details) from error
        except Exception as error:
            raise SinkFailed.because(error, document, name, statuses) from error
        statuses[name] = _GIVEN_UP if name in absent else SinkStatus(status="Committed")
    return _settlement(document, statuses)


def find_absent(document: Manifest, sinks: Mapping[str, CommittingSink]) -> set[str]:
    """Name the manifest's sinks that the program lacks, or has at another place than the epoch's rows are."""
    absent, rollback = document.sinks.keys() - sinks.keys(), document.rollback
    for name, output in document.sinks.items():
        # One that cannot undo, like a function, keeps no rows of its own: what it is called says nothing.
        concerned = output.can_undo and (output.descriptors if rollback is None else name not in rollback.keep)
        if name in sinks and concerned and (sinks[name].kind, sinks[name].address) != (output.kind, output.address):
            absent.add(name)
    return absent


def _settlement(document: Manifest, statuses: dict[str, SinkStatus]) -> Settlement:
    return Settlement(
        epoch=document.epoch,
        sinks=statuses,
        durations_ms={},
        requests={},
        packed=NOTHING_PACKED,
        new_bytes=0,
        full_bytes=0,
    )


def undo_sink(sink: CommittingSink, rollback: RolledBack, name: str, epoch: int) -> None:
    """Undo in one sink what a rollback undoes, or keep it where the user or the sink's nature says so."""
    if name in rollback.keep or not sink.can_undo:
        sink.keep(epoch)
    else:
        sink.undo(rollback.to_epoch, epoch)


class _Stopwatch:
    def __init__(self, clock: Clock, captured_ms: int) -> None:
        self._clock, self._last = clock, clock.monotonic()
        self.laps_ms = {"capture": captured_ms}

    def lap(self, name: str) -> None:
        now = self._clock.monotonic()
        self.laps_ms[name] = round(1000 * (now - self._last))
        self._last = now
