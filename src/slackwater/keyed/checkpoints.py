"""Checkpoints of a keyed state that a program keeps: it writes locally, and checkpoints what has changed.

open (``opening.py``) ─ sweep ─ write, again and again ─ note the attempt ─ cut ─ checkpoint ─ release

The local database is the checkpoint that it goes on from, with all that was written since.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import cast

import msgspec

from ..clock import Clock
from ..errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable
from ..failpoints import reach
from ..formats.change import Settlement
from ..formats.manifest import KEYED_FILE
from ..formats.positions import text_position
from ..formats.state import LiveCheckpoint, Savepoint, State
from ..ops.forget import by_ref, by_rules, forget_chosen
from ..ops.pipelines import Problem
from ..ops.refs import resolve
from ..ops.savepoint import create_label
from ..protocol.address import pipeline_name
from ..protocol.artifacts import Held
from ..protocol.checkpoint import Checkpointer
from ..protocol.cut import Cut, CutFile, CutOperator
from ..protocol.directory import refuse_inside, write_directory
from ..protocol.keep import KeepRules
from ..protocol.log import Log
from ..protocol.pipeline import Pipeline
from ..protocol.recovery import DAMAGE, Claimed, load_manifest
from ..protocol.retention import References, delete_old, sweep
from ..protocol.sinks import Attempt
from ..rocks.database import Change
from ..settings import Settings
from ..store import Store, local_folder
from .capture import STATE, capture_keyed, check_restored, folder_of
from .config import CheckpointConfig
from .format import Figures, Lineage, encode
from .local_folder import LocalFolder
from .metadata import OUTSIDE_FILE, CheckpointMetadata, describe, describe_damaged, draw_up, read_file
from .state import KeyedState, Prepared, check_size
from .together import Together

# What a program gives from outside is held in memory, here and there.
MAX_OUTSIDE_BYTES = 1024**3

Offsets = Mapping[str, Mapping[str, str]]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a keyed pipeline is: its store and its log, and the local folder of its database."""

    config: CheckpointConfig
    settings: Settings
    clock: Clock
    store: Store
    log: Log
    local: LocalFolder

    @property
    def name(self) -> str:
        return pipeline_name(self.config.url)


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline goes on with: its database, and what the newest checkpoint holds of it.

    ``saved_at`` is where the database stood in that checkpoint; None when there is none, or nothing says it.
    """

    state: KeyedState
    held: dict[str, Held]
    settlement: Settlement | None = None
    saved_at: int | None = None


class KeyedCheckpoints:
    """A keyed state that this program writes, and its checkpoints. ``with`` it, or call ``close`` at the end.

    Any thread may call it. Writes of several threads become durable together, with one sync. A write waits for the
    moment in which a checkpoint is cut, but not until that is stored.
    """

    config: CheckpointConfig
    url: str

    def __init__(self, place: Place, claimed: Claimed, opened: Opened) -> None:
        self.config, self.url = place.config, place.store.url
        self._store, self._log, self._clock, self._settings = place.store, place.log, place.clock, place.settings
        self._local, self._state, self._tables = place.local, opened.state, frozenset(opened.held)
        self._pipeline = Pipeline(
            name=place.name,
            url=place.config.url,
            store=self._store,
            log=self._log,
            clock=self._clock,
            settings=self._settings,
        )
        self._references = References(self._store, self._settings)
        sweep(self._store, self._log, claimed, {}, self._references)
        self._checkpointer = Checkpointer(
            store=self._store,
            log=self._log,
            clock=self._clock,
            settings=self._settings,
            pipeline=place.name,
            holdings=opened.held,
            settlement=opened.settlement,
        )
        delete_old(self._store, self._log, self._checkpointer, self._references)
        self._saved_at, self._saved_time = opened.saved_at, self._clock.monotonic()
        self._unsaved_bytes = _measure(self._local.database, self._tables) if self._is_changed() else 0
        self._failure: BaseException | None = None
        self._closed = self._scanned = False
        self._writing, self._checkpointing = threading.RLock(), threading.RLock()
        self._together = Together(self._write_all)

    # --- the state

    @property
    def epoch(self) -> int:
        """The epoch of the newest checkpoint; it never goes back, not with a restart and not with a rollback."""
        return self._checkpointer.state.epoch

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
        self._refuse_ended()
        prepared = self._state.prepare(changes, offsets=offsets, watermark_ms=watermark_ms)
        self._together.do(prepared, len(prepared.stored))

    def _write_all(self, batches: Sequence[Prepared]) -> None:
        with self._writing, self._unless_ended():
            position = self._state.apply_all(batches)
            self._unsaved_bytes += sum(batch.size_bytes for batch in batches)
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
                if offsets is not None or watermark_ms is not None:
                    self._state.write([], offsets=offsets, watermark_ms=watermark_ms)
                self._cut(attempt.checkpoint_id)
                description, unsaved = self._state.description, self._unsaved_bytes
                figures = Figures(
                    key_count=description.key_count,
                    wal_position=self._state.wal_position,
                    watermark_ms=description.watermark_ms,
                )
            with self._unless_ended():
                operator, files = capture_keyed(self._local.cut, STATE, self._tables if self.config.incremental else ())
                files += [CutFile(KEYED_FILE, data := encode(figures), len(data))]
                if state is not None:
                    files.append(CutFile(OUTSIDE_FILE, state, len(state)))
                cut = Cut(
                    micro_batch=self.epoch + 1,
                    watermark_ms=description.watermark_ms or 0,
                    sources={source: text_position("keyed", pairs) for source, pairs in description.offsets.items()},
                    operators=[operator],
                    files=files,
                    vnode_count=description.vnode_count,
                )
                if not self.config.incremental:
                    self._check_tables(operator)
                    self._checkpointer.store_all_again()
                captured_ms = round(1000 * (self._clock.monotonic() - began))
                report = self._checkpointer.checkpoint(cut, attempt, captured_ms=captured_ms)
                self._local.remove_cut()
                self._references.know(report.checkpoint_id, report.objects)
                delete_old(self._store, self._log, self._checkpointer, self._references)
            with self._writing:
                self._saved_at, self._saved_time = figures.wal_position, self._clock.monotonic()
                self._unsaved_bytes -= unsaved
            tables = [file.path for part in operator.partitions for file in part.files]
            self._tables = frozenset(tables)
            return draw_up(
                cast(LiveCheckpoint, self._checkpointer.state.find(report.epoch)),
                figures,
                offsets={source: dict(pairs) for source, pairs in description.offsets.items()},
                size_bytes=report.full_bytes,
                objects=report.objects,
                tables=tables,
                has_state=state is not None,
            )

    def list_checkpoints(self) -> list[CheckpointMetadata]:
        """List all checkpoints, newest first. One whose manifest cannot be read is among them, with its problem."""
        with self._checkpointing:
            told = [self._describe_any(entry) for entry in reversed(self._read().live)]
            return [metadata for metadata in told if metadata is not None]

    def find_latest(self) -> CheckpointMetadata | None:
        """Tell what the newest checkpoint is, the one that a restore goes on from; None when there is none."""
        with self._checkpointing:
            head = self._read().head
            return self._describe(head) if head else None

    def load_metadata(self, ref: int | str) -> CheckpointMetadata:
        """Tell what a checkpoint is: by its epoch, its id or the beginning of it, or the label of a savepoint."""
        with self._checkpointing:
            return self._describe(resolve(self._read(), str(ref)))

    def load_state(self, ref: int | str) -> bytes:
        """Load the bytes from outside that were given to ``create_checkpoint``, verified."""
        with self._checkpointing:
            entry = resolve(self._read(), str(ref))
            with self._log.unless_retired(entry):
                manifest = load_manifest(self._store, entry)
                if all(file.path != OUTSIDE_FILE for file in manifest.files):
                    raise NotFound(
                        f"epoch {entry.epoch} has no state from outside",
                        code="keyed.no_outside_state",
                        hint="it was made by create_checkpoint() without state; restore(epoch, directory) has its keys",
                    )
                return read_file(self._store, manifest, OUTSIDE_FILE)

    def restore(self, ref: int | str, directory: str | Path) -> Path:
        """Write a checkpoint into a directory that is new or empty, every byte verified; return its database's folder.

        This pipeline is not changed. ``KeyedState(folder, read_only=True)`` reads what was restored.
        """
        target = Path(directory).absolute()
        with self._checkpointing:
            root = local_folder(self.config.url)
            refuse_inside(target, self._local.folder, *([root] if root else []))
            entry = resolve(self._read(), str(ref))
            with self._log.unless_retired(entry):
                manifest = load_manifest(self._store, entry)
                write_directory(self._store, manifest, target, self._settings, durable=True, check=check_restored)
        return target / folder_of(STATE)

    def cleanup(self, keep: int | None = None) -> list[int]:
        """Forget all but the newest ``keep`` checkpoints (``max_retained`` if not given), and savepoints."""
        keep = self.config.max_retained if keep is None else keep
        if type(keep) is not int or keep < 1:
            raise InvalidInput(
                f"keep is {keep!r}, and must be at least 1",
                code="option.out_of_bounds",
                hint="the newest checkpoint stays in any case: the pipeline goes on from it",
            )
        with self._checkpointing:
            self._refuse_ended()
            return forget_chosen(self._pipeline, by_rules(KeepRules(last=keep))).forgotten_epochs

    def delete_checkpoint(self, ref: int | str) -> None:
        """Forget one checkpoint, and delete what no other one needs. The newest and savepoints are refused."""
        with self._checkpointing:
            self._refuse_ended()
            forget_chosen(self._pipeline, by_ref(str(ref)))

    def savepoint(self, label: str, ref: int | str | None = None) -> Savepoint:
        """Label a checkpoint, the newest if none is named, so that retention keeps it."""
        with self._checkpointing:
            self._refuse_ended()
            return create_label(self._log, label, "latest" if ref is None else str(ref))

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
                if not isinstance(self._failure, Conflict | Unavailable):
                    self._checkpointer.release()
            except Conflict as error:
                if error.code != "driver.fenced":
                    raise
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

    def _cut(self, checkpoint_id: str) -> None:
        """Say in the database which checkpoint is about to be made of it, and make a copy of it as it is then."""
        head = self._checkpointer.state.head
        self._state.note_lineage(
            Lineage(
                uid=self._checkpointer.state.uid,
                base_id=head.checkpoint_id if head else None,
                base_epoch=head.epoch if head else 0,
                attempt_id=checkpoint_id,
            )
        )
        reach("keyed.lineage.after")
        self._local.remove_cut()
        self._state.checkpoint(self._local.cut)
        reach("keyed.cut.after")

    def _check_tables(self, operator: CutOperator) -> None:
        """See that tables which are stored again are what they were: a bit that has rotted here would be stored, too.

        Those that the newest checkpoint holds have a digest. Others were read whole once, or are made of such since.
        """
        tables = [file for part in operator.partitions for file in part.files]
        held = self._checkpointer.holdings
        for table in tables:
            if table.path in held and _digest(cast(Path, table.source)) != held[table.path].sha256:
                raise Corrupt(
                    f"the local table {table.path} is not the one that was stored before",
                    code="keyed.damaged",
                    hint="move the folder away: then the newest checkpoint is restored",
                )
        if not self._scanned and any(table.path not in held for table in tables):
            vnodes = self._state.description.vnode_count
            cut = KeyedState(self._local.cut, vnode_count=vnodes, read_only=True, cached=False)
            try:
                for _ in cut.scan():
                    pass
            finally:
                cut.close()
        self._scanned = True

    def _is_changed(self) -> bool:
        return self._saved_at is None or self._state.wal_position != self._saved_at

    def _read(self) -> State:
        """Read the newest state: a tool may have labelled or forgotten something."""
        self._refuse_closed()
        return cast(State, self._log.read())

    def _describe(self, entry: LiveCheckpoint) -> CheckpointMetadata:
        with self._log.unless_retired(entry):
            return describe(self._store, entry, load_manifest(self._store, entry))

    def _describe_any(self, entry: LiveCheckpoint) -> CheckpointMetadata | None:
        try:
            return self._describe(entry)
        except NotFound:
            return None  # retired meanwhile
        except DAMAGE as error:
            return describe_damaged(entry, Problem(error.code, error.message))

    @contextmanager
    def _unless_ended(self) -> Iterator[None]:
        """End the pipeline with an error whose outcome only the next start can tell; refused input is none."""
        self._refuse_ended()
        try:
            yield
        except InvalidInput:
            raise
        except BaseException as error:
            self._failure = error
            raise

    def _refuse_ended(self) -> None:
        self._refuse_closed()
        if self._failure is not None:
            raise _ended(self.config)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise _ended(self.config)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _measure(database: Path, held: Collection[str]) -> int:
    """Tell how many bytes a database has, in its log and in its tables, that the newest checkpoint does not hold."""
    names = {path.rpartition("/")[2] for path in held}
    files = [*database.glob("*.log"), *(path for path in database.glob("*.sst") if path.name not in names)]
    return sum(path.stat().st_size for path in files)


def _ended(config: CheckpointConfig) -> InvalidInput:
    return InvalidInput(
        f"the keyed pipeline {config.url} was closed, or has failed before",
        code="pipeline.ended",
        hint="open it again: it goes on with all that was written",
    )
