"""RocksDB under our rules: a write is durable when it returns, damage is an error, and one process has it.

checkpoint + write-ahead log after it = the content, always
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeAlias, cast

from ..errors import Conflict, Corrupt, InvalidInput, SlackwaterError, Unavailable, Unsupported
from ..settings import MIB
from .folders import make_folder
from .wal import find_end

if TYPE_CHECKING:
    from rocksdict import Cache, Options, Rdict, RdictIter, ReadOptions, WriteBatch, WriteOptions

# A key and its value, or None for its deletion.
Change: TypeAlias = tuple[bytes, bytes | None]

# RocksDB makes it when it first opens a folder, and never in a checkpoint.
_OPENED = "IDENTITY"
# It makes these after its first log, so that where it has opened the folder, and one of these is, there must be a log.
# MANIFEST-000001 comes before that log, and the next one after it.
_AFTER_LOG = re.compile(r"[0-9]+\.sst|OPTIONS-[0-9]+|MANIFEST-(?!0*1$)[0-9]+")
LOCK = "WRITER"
_MANIFEST = re.compile(r"MANIFEST-[0-9]{1,20}")
_LOG = re.compile(r"[0-9]+\.log")
# Sorted runs of tables. Each was new in one checkpoint, so no checkpoint refers to more objects.
MAX_RUNS = 24
_WRITE_BUFFER_BYTES = 16 * MIB
_BLOCK_CACHE_BYTES = 96 * MIB
# For how long a write waits for tables to be written, and how often it looks.
_STALL_S, _STALL_LOOK_S = 30.0, 0.002
# RocksDB's binding tells errors by words alone.
_FULL = ("No space left", "Disk quota exceeded")
# An archived log is deleted after this; RocksDB takes no word for never.
_KEPT_FOR_S = 100 * 365 * 86_400


class Rocks:
    """One database in one folder, open for writing here and nowhere else, or anywhere for reading."""

    def __init__(
        self, folder: Path, *, read_only: bool = False, archive_wal: bool = False, cached: bool = True
    ) -> None:
        self.folder = folder
        self._lock: BinaryIO | None = None
        self._errors = 0
        # Up to where the log is durable, and whether that is no longer known.
        self._synced, self._unsynced = 0, False
        self._syncing = threading.Lock()
        if read_only:
            self._database = _open_read_only(folder, cached)
            return
        with _translated(folder):
            make_folder(folder)
            self._lock = lock_folder(folder)
        try:
            with _translated(folder):
                _check_manifest(folder)
                _cut_torn_write(folder)
            self._database = _open(folder, archive_wal)
        except BaseException:
            self._lock.close()
            raise

    @property
    def position(self) -> int:
        """The number of changes that were written, ever: where the log stands."""
        return self._database.latest_sequence_number()

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Get the values of some keys, in their order."""
        with _translated(self.folder):
            return cast(list[bytes | None], self._database.get(list(keys))) if keys else []

    def write(self, changes: Iterable[Change], *, dropped: tuple[bytes, bytes] | None = None) -> None:
        """Make all of this durable, in this order, or nothing: what lies in the range ``dropped`` goes first."""
        self.sync(self.apply(changes, dropped=dropped))

    def apply(self, changes: Iterable[Change], *, dropped: tuple[bytes, bytes] | None = None) -> int:
        """Write as ``write`` does, and return the position to ``sync`` up to: before that, a power loss takes it back.

        Two steps, because RocksDB's binding lets other threads run while it syncs, and not while it writes.
        """
        from rocksdict import WriteOptions  # noqa: PLC0415 - an extra

        options = WriteOptions()
        options.no_slowdown = True
        changes = list(changes)
        with _translated(self.folder):
            began: float | None = None
            # A batch that was refused is used up, too.
            while not self._try_to_write(_batch(changes, dropped), options):
                began = began or time.monotonic()
                # RocksDB itself would wait until its tables are written: for ever, on a disk that is full.
                errors = self._database.property_int_value("rocksdb.background-errors") or 0
                if errors > self._errors or time.monotonic() - began > _STALL_S:
                    self._errors = errors
                    raise _unusable(self.folder, "No space left, or an error of the disk: its tables cannot be written")
                time.sleep(_STALL_LOOK_S)
        return self.position

    def sync(self, position: int) -> None:
        """Make all up to a position durable. Threads that wait here share the next sync."""
        with self._syncing:
            if self._synced >= position:
                return
            # What a sync has not brought to the disk, the next one does not: the kernel tells of it once.
            if self._unsynced:
                raise _unusable(self.folder, "its log could not be synced before")
            reached, self._unsynced = self.position, True
            with _translated(self.folder):
                self._database.flush_wal(sync=True)
            self._synced, self._unsynced = reached, False

    def _try_to_write(self, batch: WriteBatch, options: WriteOptions) -> bool:
        """Write, unless that had to wait for tables to be written."""
        try:
            self._database.write(batch, options)
        except Exception as error:
            if not str(error).startswith("Result incomplete"):
                raise
            return False
        return True

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Go through all keys from ``begin`` to before ``end`` that are there now, in order."""
        from rocksdict import ReadOptions  # noqa: PLC0415

        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        with _translated(self.folder):
            cursor = self._database.iter(options)
        return self._go_through(cursor, begin, options)

    def _go_through(self, cursor: RdictIter, begin: bytes, options: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
        # The cursor refers to the bytes of its bound, which are the options': these must live for as long.
        with _translated(self.folder):
            cursor.seek(begin)
            while cursor.valid():
                yield cast(bytes, cursor.key()), cast(bytes, cursor.value())
                cursor.next()
            # An iterator over a damaged block just ends; only its status tells.
            cursor.status()

    def checkpoint(self, folder: Path) -> None:
        """Make a copy of the database as it is now, of hard links where the disk is the same."""
        from rocksdict import Checkpoint  # noqa: PLC0415

        with _translated(self.folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._database).create_checkpoint(str(folder))

    def wal_bytes(self) -> int:
        """Tell how large the log is that came after the newest checkpoint."""
        return sum(path.stat().st_size for path in self.folder.glob("*.log"))

    def close(self) -> None:
        """Let the folder go, even if RocksDB cannot write what it would like to: the log has all of it."""
        if isinstance(self._database, _Closed):
            return
        try:
            if self._lock is not None and not self._unsynced:
                self.sync(self.position)  # for a thread that has written, and not synced yet
            with self._syncing, _translated(self.folder):
                self._database.close()
        finally:
            # One that could not close is closed when nobody has it any more.
            self._database = cast(Any, _Closed(self.folder))
            if self._lock is not None:
                self._lock.close()


class _Closed:
    """In the place of a database that was closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> NoReturn:
        raise InvalidInput(
            f"the database in {self._folder} was closed",
            code="pipeline.ended",
            hint="open it again: it goes on with all that was written",
        )


def _batch(changes: Iterable[Change], dropped: tuple[bytes, bytes] | None) -> WriteBatch:
    from rocksdict import WriteBatch  # noqa: PLC0415

    batch = WriteBatch(raw_mode=True)
    if dropped is not None:
        batch.delete_range(*dropped)
    for key, value in changes:
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    return batch


def _open(folder: Path, archive_wal: bool) -> Rdict:
    from rocksdict import DBRecoveryMode, Rdict  # noqa: PLC0415

    options = _options()
    options.create_if_missing(True)
    if archive_wal:
        options.set_wal_ttl_seconds(_KEPT_FOR_S)
    # Whatever is wrong with the log by now is damage: a torn write was cut off.
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    with _translated(folder):
        return Rdict(str(folder), options, column_families=_families())


def _open_read_only(folder: Path, cached: bool) -> Rdict:
    from rocksdict import AccessType, Rdict  # noqa: PLC0415

    with _translated(folder):
        return Rdict(str(folder), _options(), column_families=_families(cached), access_type=AccessType.read_only())


@cache
def _cache() -> Cache:
    """One for all databases of this process: versions of a table share most of their files, and so their blocks."""
    from rocksdict import Cache  # noqa: PLC0415

    return Cache(_BLOCK_CACHE_BYTES)


def _families(cached: bool = True) -> dict[str, Options]:
    """Name the options of the only column family: of a database that is there, its file would else say them.

    That file knows no block cache, and what an older release has chosen.
    """
    return {"default": _options(cached)}


def _options(cached: bool = True) -> Options:
    from rocksdict import (  # noqa: PLC0415
        BlockBasedOptions,
        DBCompactionStyle,
        DBCompressionType,
        Options,
        UniversalCompactOptions,
    )

    table = BlockBasedOptions()
    table.set_bloom_filter(10, block_based=False)
    if cached:
        table.set_block_cache(_cache())
    else:
        table.disable_cache()
    # Runs of like size are merged: what is new in a checkpoint stays near what has changed, however large the rest is.
    tiers = UniversalCompactOptions()
    tiers.max_size_amplification_percent = 100
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_universal_compaction_options(tiers)
    # More runs are merged less often, and a checkpoint stores what was merged: with 8, 1 % of changes costs 3 % on
    # average, with 4 it is 8 %. A restore reads at most as many as writes wait for.
    options.set_level_zero_file_num_compaction_trigger(8)
    options.set_level_zero_slowdown_writes_trigger(16)
    options.set_level_zero_stop_writes_trigger(MAX_RUNS)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    # A write looks whether its keys are there, to count them: most that are new are told from a filter alone.
    options.set_memtable_prefix_bloom_ratio(0.05)
    options.set_memtable_whole_key_filtering(True)
    options.set_max_manifest_file_size(1 * MIB)
    options.set_keep_log_file_num(2)
    options.set_max_background_jobs(2)
    return options


def lock_folder(folder: Path) -> BinaryIO:
    """Lock a folder until the file is closed, before its log is looked at; RocksDB's own lock comes only after that."""
    lock = open(folder / LOCK, "ab")  # noqa: SIM115 - it is held for as long as the database is open
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise _taken(folder) from None
    return lock


def _check_manifest(folder: Path) -> None:
    """See that the list of tables is sound: RocksDB takes a damaged length for its end, and deletes what is not listed.

    It has the form of a log. What a crash has torn off its end was never relied on.
    """
    current = folder / "CURRENT"
    if current.exists():
        # The name is ours to check: it is a path that was read from a disk.
        name = current.read_text(encoding="ascii", errors="replace").strip()
        listed = folder / name if _MANIFEST.fullmatch(name) else None
        if listed is not None and listed.exists():
            find_end(listed.read_bytes(), str(listed))


def _cut_torn_write(folder: Path) -> None:
    """Cut a write that a crash has torn off the log's end; see that all else of the log is sound."""
    names = os.listdir(folder)
    # By number: a seventh digit comes before the others in the alphabet.
    logs = sorted((folder / name for name in names if _LOG.fullmatch(name)), key=lambda log: int(log.stem))
    if not logs and _OPENED in names and any(map(_AFTER_LOG.fullmatch, names)):
        raise Corrupt(
            f"the write-ahead log in {folder} is missing",
            code="keyed.wal_missing",
            hint="restore the newest checkpoint of it, or the folder from a copy; what came after that is lost",
        )
    for log in logs:
        size = log.stat().st_size
        end = find_end(log.read_bytes(), str(log)) if size else 0
        if end < size:
            if log != logs[-1] and any(log.read_bytes()[end:]):
                raise Corrupt(
                    f"the write-ahead log {log} ends in a torn write, and another comes after it",
                    code="keyed.wal_damaged",
                    hint="restore the newest checkpoint of it, or the folder from a copy; what came after is lost",
                    offset=end,
                )
            with open(log, "r+b") as opened:
                opened.truncate(end)
                os.fsync(opened.fileno())


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Say in our own words what RocksDB has to say: its binding knows but one class of errors."""
    try:
        yield
    except SlackwaterError:
        raise
    except OSError as error:
        raise _unusable(folder, error.strerror or "unknown") from error
    except ImportError:
        raise
    except Exception as error:
        raise _translate(folder, error) from error


def _translate(folder: Path, error: Exception) -> SlackwaterError:
    text = str(error)
    if text.startswith("Corruption"):
        return Corrupt(
            f"the database in {folder} is damaged: {_first_line(text)}",
            code="keyed.damaged",
            hint="restore a checkpoint of it, or the folder from a copy",
        )
    if "lock" in text.lower() and "LOCK" in text:
        return _taken(folder)
    if text.startswith("Not implemented") or "No such file or directory" in text:
        return Unsupported(
            f"{folder} cannot be opened as a database: {_first_line(text)}",
            code="keyed.unreadable",
            hint="see that the folder is the one that a keyed state was in",
        )
    return _unusable(folder, _first_line(text))


def _first_line(text: str) -> str:
    return text.splitlines()[0][:300]


def _taken(folder: Path) -> Conflict:
    return Conflict(
        f"the database in {folder} is open in another process, or twice in this one",
        code="keyed.taken",
        hint="stop the other one; two writers would spoil each other's work",
    )


def _unusable(folder: Path, why: str) -> Unavailable:
    return Unavailable(
        f"the database in {folder} cannot be read or written: {why}",
        code="keyed.full" if any(words in why for words in _FULL) else "keyed.unavailable",
        hint="see that this user may write there and that the disk has room, then open it again",
    )


def check_size(what: str, data: Any, limit: int) -> None:
    """Refuse what is not bytes, or more of them than there may be."""
    if not isinstance(data, bytes):
        raise InvalidInput(f"a {what} must be bytes, not {type(data).__name__}", code="keyed.not_bytes")
    if len(data) > limit:
        raise InvalidInput(
            f"a {what} has {len(data)} bytes, and may have {limit}",
            code="keyed.too_large",
            hint="keep large values in objects of their own, and their addresses here",
        )
