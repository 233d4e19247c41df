"""``KeyedCheckpoints``, the handle of an open keyed pipeline: read and write keys, make checkpoints.

open (``opening.py``) ─ sweep ─ write, again and again ─ note the attempt ─ cut ─ checkpoint ─ release

The local database is the checkpoint that it goes on from, with all that was written since.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import cast

import msgspec

from ..errors import InvalidInput, SlackwaterError
from ..failpoints import reach
from ..formats.manifest import KEYED_FILE
from ..formats.positions import text_position
from ..formats.state import LiveCheckpoint, Savepoint
from ..protocol.cut import Cut, CutFile
from ..protocol.driver import Driver, may_release, was_fenced
from ..protocol.labels import label_checkpoint
from ..protocol.pipeline import Pipeline
from ..protocol.sinks import Attempt
from ..rocks.database import Change
from .capture import STATE, capture_keyed, check_tables
from .config import CheckpointConfig
from .documents import Lineage, Snapshot, encode, figures_of
from .local_folder import LocalFolder
from .metadata import OUTSIDE_FILE, CheckpointMetadata, draw_up
from .state import KeyedState, Offsets, check_size

# What a program gives from outside is held in memory when it is stored and when it is read.
MAX_OUTSIDE_BYTES = 1024**3


class KeyedPipeline(Pipeline, frozen=True, kw_only=True):
    """Where a keyed pipeline is: in its store, and in the local folder of its database."""

    config: CheckpointConfig
    local: LocalFolder


class OpenedState(msgspec.Struct, frozen=True, kw_only=True):
    """The database that a run goes on with, once that is in its place.

    ``saved_at`` is where the database stood in the newest checkpoint; None when there is none, or nothing says it.
    """

    state: KeyedState | None
    saved_at: int | None = None


class KeyedCheckpoints:
    """A keyed state that this program writes, and its checkpoints. ``with`` it, or call ``close`` at the end.

    Any thread may call it. Writes of several threads share syncs. A write waits for the moment in which a checkpoint is
    cut, but not until that is stored.
    """

    config: CheckpointConfig
    url: str

    def __init__(self, pipeline: KeyedPipeline, driver: Driver, opened: OpenedState) -> None:
        self.config, self.url = pipeline.config, pipeline.store.url
        self._pipeline, self._clock, self._driver = pipeline, pipeline.clock, driver
        self._local, self._state = pipeline.local, cast(KeyedState, opened.state)
        self._tables = frozenset(driver.holdings)
        self._saved_at, self._saved_time = opened.saved_at, self._clock.monotonic()
        self._unsaved_bytes = self._local.measure(self._tables) if self._is_changed() else 0
        self._failure: BaseException | None = None
        self._closed = False
        # Whether tables that no checkpoint holds were read whole: those that come later are made of what was.
        self._tables_read = False
        self._writing, self._checkpointing = threading.RLock(), threading.RLock()

    # --- the state

    @property
    def epoch(self) -> int:
        """The epoch of the newest checkpoint; it never goes back, not with a restart and not with a rollback."""
        return self._driver.state.epoch

    @property
    def key_count(self) -> int:
        return self._state.key_count

    @property
    def offsets(self) -> dict[str, dict[str, str]]:
        """Where each source stands: what came up to there is in the state, and nothing of what comes after."""
        return self._state.offsets

    @property
    def watermark_ms(self) -> int | None:
        return self._state.watermark_ms

    @property
    def wal_position(self) -> int:
        """The number of changes that the log has taken, those of its own notes among them."""
        return self._state.wal_position

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Get the values of some keys, in their order; None for one that is not there."""
        self._refuse_closed()
        return self._state.get_many(keys)

    def scan(self, vnode: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Go through all keys and values, or those of one virtual node: by virtual node, then by key."""
        self._refuse_closed()
        with self._writing:
            return self._state.scan(vnode)

    def put(self, key: bytes, value: bytes) -> None:
        self.write([(key, value)])

    def delete(self, key: bytes) -> None:
        self.write([(key, None)])

    def write(
        self, changes: Iterable[Change], *, offsets: Offsets | None = None, watermark_ms: int | None = None
    ) -> None:
        """Make a batch of changes durable, all or nothing, with where it brings the sources and the watermark.

        A value of None deletes; of one key's changes the last one counts.
        """
        batch = self._state.prepare(changes, offsets=offsets, watermark_ms=watermark_ms)
        with self._writing, self._unless_ended():
            position = self._state.apply(batch)
            self._unsaved_bytes += batch.size_bytes
        # Not one at a time: threads that wait here share a sync. What was applied may be durable although another
        # thread has ended the pipeline since, so only the sync itself says whether it is.
        with self._or_end():
            reach("keyed.sync.before")
            self._state.sync(position)

    # --- its checkpoints

    def should_checkpoint(self) -> bool:
        """Tell whether a checkpoint is due: something has changed since the newest, and that is long ago, or much.

        Where there is none yet, one is due.
        """
        if self._saved_at is None:
            return True
        late = self._clock.monotonic() - self._saved_time >= self.config.interval_s
        return self._is_changed() and (late or self._unsaved_bytes >= self.config.min_wal_size_for_checkpoint)

    def create_checkpoint(
        self, state: bytes | None = None, *, offsets: Offsets | None = None, watermark_ms: int | None = None
    ) -> CheckpointMetadata:
        """Make the state as it is now the next epoch. When it returns, that is durable in the store.

        ``state`` are bytes from outside that are kept with it; ``offsets`` and ``watermark_ms`` are written first. An
        error while it is stored ends the pipeline, and the next call is ``pipeline.ended``: open it again, and it goes
        on with all that was written, whether that checkpoint has counted or not.
        """
        if state is not None:
            check_size("state", state, MAX_OUTSIDE_BYTES)
        with self._checkpointing:
            began, attempt = self._clock.monotonic(), Attempt(checkpoint_id=self._clock.checkpoint_id(), outputs={})
            with self._writing, self._unless_ended():
                # The cut writes all that was applied into synced tables, be it synced in the log or not.
                if offsets is not None or watermark_ms is not None:
                    self._state.apply(self._state.prepare([], offsets=offsets, watermark_ms=watermark_ms))
                snapshot, unsaved = self._cut(attempt.checkpoint_id), self._unsaved_bytes
            figures = figures_of(snapshot)
            with self._unless_ended():
                operator, files = capture_keyed(self._local.cut, STATE, self._tables if self.config.incremental else ())
                tables = [file for part in operator.partitions for file in part.files]
                files += [CutFile(KEYED_FILE, data := encode(figures), len(data))]
                if state is not None:
                    files.append(CutFile(OUTSIDE_FILE, state, len(state)))
                cut = Cut(
                    micro_batch=self.epoch + 1,
                    watermark_ms=figures.watermark_ms or 0,
                    sources={name: text_position("keyed", pairs) for name, pairs in snapshot.state.offsets.items()},
                    operators=[operator],
                    files=files,
                    vnode_count=snapshot.state.vnode_count,
                )
                if not self.config.incremental:
                    check_tables(self._local.cut, tables, self._driver.holdings, read_new=not self._tables_read)
                    self._tables_read = True
                    self._driver.store_all_again()
                captured_ms = round(1000 * (self._clock.monotonic() - began))
                report = self._driver.checkpoint(cut, attempt, captured_ms=captured_ms)
                self._local.remove_cut()
            with self._writing:
                self._saved_at, self._saved_time = figures.wal_position, self._clock.monotonic()
                self._unsaved_bytes -= unsaved
            self._tables = frozenset(table.path for table in tables)
            return draw_up(
                cast(LiveCheckpoint, self._driver.state.find(report.epoch)),
                figures,
                offsets={name: dict(pairs) for name, pairs in snapshot.state.offsets.items()},
                size_bytes=report.full_bytes,
                objects=report.objects,
                tables=self._tables,
                has_state=state is not None,
            )

    def savepoint(self, label: str) -> Savepoint:
        """Label the newest checkpoint, so that retention keeps it."""
        with self._checkpointing:
            self._refuse_ended()
            return label_checkpoint(self._pipeline.log, label)

    # --- the end

    def close(self) -> None:
        """End this run on record, and let go of the folder. What is not checkpointed is in it, and goes on from there.

        A second call does nothing; one that was fenced leaves all to the other.
        """
        with self._checkpointing, self._writing:
            if self._closed:
                return
            self._closed = True
            try:
                hindrance = self._driver.end(self._failure)
                if hindrance is not None and not was_fenced(hindrance):
                    raise hindrance
            finally:
                self._local.close()

    def __enter__(self) -> KeyedCheckpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(SlackwaterError):  # the first error is the one to tell
            self.close()

    def _cut(self, checkpoint_id: str) -> Snapshot:
        """Say in the database which checkpoint is about to be made of it, and make a copy of it as it is then."""
        head = self._driver.state.head
        self._state.note_lineage(
            Lineage(
                uid=self._driver.state.uid,
                base_id=head.checkpoint_id if head else None,
                base_epoch=head.epoch if head else 0,
                attempt_id=checkpoint_id,
            )
        )
        reach("keyed.lineage.after")
        self._local.remove_cut()
        snapshot = self._state.checkpoint(self._local.cut)
        reach("keyed.cut.after")
        return snapshot

    def _is_changed(self) -> bool:
        return self._saved_at is None or self._state.wal_position != self._saved_at

    @contextmanager
    def _unless_ended(self) -> Iterator[None]:
        self._refuse_ended()
        with self._or_end():
            yield

    @contextmanager
    def _or_end(self) -> Iterator[None]:
        """End the pipeline with an error whose outcome only the next start can tell; refused input does not end it."""
        try:
            yield
        except InvalidInput:
            raise
        except BaseException as error:
            if may_release(self._failure):  # otherwise the first failure decides how this run ends
                self._failure = error
            raise

    def _refuse_ended(self) -> None:
        if self._closed or self._failure is not None:
            raise self._ended()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise self._ended()

    def _ended(self) -> InvalidInput:
        return InvalidInput(
            f"the keyed pipeline {self.config.url} was closed, or has failed before",
            code="pipeline.ended",
            hint="open it again: it goes on with all that was written",
        )
