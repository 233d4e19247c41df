"""RocksDB under our rules: a write is durable when it returns, damage is an error, and one process has it.

checkpoint + write-ahead log after it = the content, always
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeAlias, cast

from ..extras import needed_for
from ..settings import MIB
from ..store.files import make_folder
from .errors import Owner, taken, translated
from .logs import check_manifest, cut_torn_write

if TYPE_CHECKING:
    from rocksdict import Cache, Options, Rdict, RdictIter, ReadOptions, WriteBatch, WriteOptions

# A key and its value, or None for its deletion.
Change: TypeAlias = tuple[bytes, bytes | None]

LOCK = "WRITER"
# Sorted runs of tables. Each was new in one checkpoint, so no checkpoint refers to more objects.
MAX_RUNS = 24
_WRITE_BUFFER_BYTES = 16 * MIB
_BLOCK_CACHE_BYTES = 96 * MIB
# For how long a write waits for tables to be written, and how often it looks.
_STALL_S, _STALL_LOOK_S = 30.0, 0.002
# An archived log is deleted after this; RocksDB takes no word for never.
_KEPT_FOR_S = 100 * 365 * 86_400


def require_library(what: str) -> None:
    """Refuse what needs the database, before anything is begun, where its library is not installed."""
    with needed_for(what, "keyed"):
        import rocksdict  # noqa: F401, PLC0415


class Rocks:
    """One database in one folder, open for writing here and nowhere else, or anywhere for reading."""

    def __init__(
        self, folder: Path, owner: Owner, *, read_only: bool = False, archive_wal: bool = False, cached: bool = True
    ) -> None:
        self.folder, self._owner = folder, owner
        self._lock: BinaryIO | None = None
        self._errors = 0
        # Up to where the log is durable, and whether that is no longer known.
        self._synced, self._unsynced = 0, False
        self._syncing = threading.Lock()
        if read_only:
            self._database = _open_read_only(folder, owner, cached)
            return
        with translated(folder, owner):
            make_folder(folder)
            self._lock = lock_folder(folder, owner)
        try:
            with translated(folder, owner):
                check_manifest(folder, owner)
                cut_torn_write(folder, owner)
            self._database = _open(folder, owner, archive_wal)
        except BaseException:
            self._lock.close()
            raise

    @property
    def position(self) -> int:
        """The number of changes that were written, ever: where the log stands."""
        return self._database.latest_sequence_number()

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Get the values of some keys, in their order."""
        with translated(self.folder, self._owner):
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
        with translated(self.folder, self._owner):
            began: float | None = None
            # A batch that was refused is used up, too.
            while not self._try_to_write(_batch(changes, dropped), options):
                began = began or time.monotonic()
                # RocksDB itself would wait until its tables are written: for ever, on a disk that is full.
                errors = self._database.property_int_value("rocksdb.background-errors") or 0
                if errors > self._errors or time.monotonic() - began > _STALL_S:
                    self._errors = errors
                    room = shutil.disk_usage(self.folder).free
                    full = room < _WRITE_BUFFER_BYTES
                    raise self._owner.unusable(self.folder, "its tables cannot be written", full=full)
                time.sleep(_STALL_LOOK_S)
        return self.position

    def sync(self, position: int) -> None:
        """Make all up to a position durable. Threads that wait here share the next sync."""
        with self._syncing:
            if self._synced >= position:
                return
            # What a sync has not brought to the disk, the next one does not: the kernel tells of it once.
            if self._unsynced:
                raise self._owner.unusable(self.folder, "its log could not be synced before", full=False)
            reached, self._unsynced = self.position, True
            with translated(self.folder, self._owner):
                self._database.flush_wal(sync=True)
            self.refuse_removed()
            self._synced, self._unsynced = reached, False

    def refuse_removed(self) -> None:
        """See that the folder is where it was: a disk goes on taking writes to files that nobody will find again."""
        with suppress(OSError):
            if self._lock is None or os.path.samestat(os.stat(self.folder / LOCK), os.fstat(self._lock.fileno())):
                return
        raise self._owner.removed(
            f"the folder {self.folder} was removed, moved or replaced while its database was open"
        )

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
        with translated(self.folder, self._owner):
            cursor = self._database.iter(options)
        return self._go_through(cursor, begin, options)

    def _go_through(self, cursor: RdictIter, begin: bytes, options: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
        # The cursor refers to the bytes of its bound, which are the options': these must live for as long.
        with translated(self.folder, self._owner):
            cursor.seek(begin)
            while cursor.valid():
                yield cast(bytes, cursor.key()), cast(bytes, cursor.value())
                cursor.next()
            # An iterator over a damaged block just ends; only its status tells.
            cursor.status()

    def checkpoint(self, folder: Path) -> None:
        """Make a copy of the database as it is now, of hard links where the disk is the same."""
        from rocksdict import Checkpoint  # noqa: PLC0415

        with translated(self.folder, self._owner):
            folder.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._database).create_checkpoint(str(folder))

    def close(self) -> None:
        """Let the folder go, even if RocksDB cannot write what it would like to: the log has all of it."""
        if isinstance(self._database, _Closed):
            return
        try:
            if self._lock is not None and not self._unsynced:
                self.sync(self.position)  # for a thread that has written, and not synced yet
            with self._syncing, translated(self.folder, self._owner):
                self._database.close()
        finally:
            # One that could not close is closed when nobody has it any more.
            self._database = cast(Any, _Closed(self.folder, self._owner))
            if self._lock is not None:
                self._lock.close()


class _Closed:
    """In the place of a database that was closed."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self._folder, self._owner = folder, owner

    def __getattr__(self, name: str) -> NoReturn:
        raise self._owner.closed(f"the database in {self._folder} was closed")


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


def _open(folder: Path, owner: Owner, archive_wal: bool) -> Rdict:
    from rocksdict import DBRecoveryMode, Rdict  # noqa: PLC0415

    options = _options()
    options.create_if_missing(True)
    if archive_wal:
        options.set_wal_ttl_seconds(_KEPT_FOR_S)
    # Whatever is wrong with the log by now is damage: a torn write was cut off.
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    with translated(folder, owner):
        return Rdict(str(folder), options, column_families=_families())


def _open_read_only(folder: Path, owner: Owner, cached: bool) -> Rdict:
    from rocksdict import AccessType, Rdict  # noqa: PLC0415

    with translated(folder, owner):
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


def lock_folder(folder: Path, owner: Owner) -> BinaryIO:
    """Lock a folder until the file is closed, before its log is looked at; RocksDB's own lock comes only after that."""
    lock = open(folder / LOCK, "ab")  # noqa: SIM115 - it is held for as long as the database is open
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise taken(folder, owner) from None
    return lock
