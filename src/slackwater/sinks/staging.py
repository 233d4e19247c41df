"""Staged Parquet: what a sink leaves behind, durable but invisible, before it commits.

Spark's executors write the data; the driver makes it durable, counts it and describes it. A ticket, made before the
data and removed before the commit, tells which attempts are staged only: nothing that was committed is ever discarded.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import Corrupt, InvalidInput
from ..formats.ids import CheckpointId, parse_checkpoint_id
from ..formats.keys import check_path, format_name
from ..parallel import in_parallel
from ..store import Listed, Store
from .descriptors import Mode, Staged, StagedFile, decode, plain_schema
from .target import CONCURRENCY, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOME = "_slackwater/"
_FOOTER_GUESS_BYTES = 64 * 1024
_NOTE = re.compile(r"[0-9]{20}")
_MAX_NOTE_BYTES = 16 * 1024 * 1024
# What is written must mean the same to every reader, whatever the session says about older ones.
_PARQUET_AS_ALL_READ_IT = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}

# Hadoop makes each of these folders by itself, and starts a chmod for it: before the job, one after the other.
_OF_THE_COMMITTER = "_temporary/0/_temporary"

# Hadoop's usual file system keeps a checksum beside each file, which nobody reads here, and starts a chmod for each of
# both, which costs more than the write. Only for this write: others share what is cached.
_ON_A_DISK = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}


class Staging:
    """The attempts that one sink of one pipeline has staged in a target: data below ``data``, tickets at home."""

    def __init__(self, target: Target, uid: str, sink: str, data: str | None = None) -> None:
        self._target, self._store = target, target.store
        self.home = f"{HOME}{format_name(uid)}/{format_name(sink)}/"
        self._data = data or f"{self.home}data/"
        self._tickets = f"{self.home}staged/"
        self.used = False

    def folder(self, attempt: str) -> str:
        return f"{self._data}{parse_checkpoint_id(attempt)}/"

    def tick(self, attempt: str) -> None:
        """Note that the attempt is about to have staged data."""
        self.used = True
        self._store.create(self._tickets + parse_checkpoint_id(attempt), b"")

    def untick(self, attempts: Iterable[str]) -> None:
        """Say that these attempts count. Durable: a ticket that came back could cost committed data."""
        self.used = True
        self._store.delete([self._tickets + parse_checkpoint_id(attempt) for attempt in attempts])
        self._target.sync(self._tickets)

    def staged(self) -> list[str]:
        """List the attempts with a ticket; what somebody else put into the folder is not ours."""
        attempts: list[str] = []
        for listed in self._store.list(self._tickets):
            with suppress(InvalidInput):
                attempts.append(parse_checkpoint_id(listed.key.removeprefix(self._tickets)))
        return attempts

    def discard(self, attempts: Iterable[str]) -> None:
        """Delete what these attempts staged, if they are staged only; then their tickets."""
        wanted = {parse_checkpoint_id(attempt) for attempt in attempts}
        # A ticket stays while its data does: the next start then tries again.
        gone = [attempt for attempt in sorted(wanted & set(self.staged())) if self._target.clear(self.folder(attempt))]
        self._store.delete([self._tickets + attempt for attempt in gone])

    def attempts(self) -> list[str]:
        """List the attempts with data, whether they have a ticket or not."""
        found: set[str] = set()
        for listed in self._store.list(self._data):
            with suppress(InvalidInput):
                found.add(parse_checkpoint_id(listed.key.removeprefix(self._data).partition("/")[0]))
        return sorted(found)

    def note_undone(self, epoch: int, attempts: list[str]) -> list[str]:
        """Note, once for a rollback's epoch, which attempts it gives up; return what the first note says."""
        key = f"{self.home}undone/{epoch:020d}"
        if self._store.create(key, msgspec.json.encode(attempts)):
            return attempts
        try:
            return msgspec.json.decode(self._store.get(key, max_bytes=_MAX_NOTE_BYTES), type=list[CheckpointId])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"{key} does not decode: {error}", code="sink.damaged") from None

    def newest_note(self) -> int:
        """Tell the newest rollback's epoch that was noted, 0 for none."""
        names = (listed.key.rpartition("/")[2] for listed in self._store.list(f"{self.home}undone/"))
        return max((int(name) for name in names if _NOTE.fullmatch(name)), default=0)

    def clear(self, attempts: Iterable[str]) -> None:
        """Delete the data of these attempts for good: who commits one of them afterwards does not find it."""
        keys = [listed.key for attempt in attempts for listed in self._store.list(self.folder(attempt))]
        self._store.delete(keys)
        if keys:
            self._target.sync(self._data)

    def write(
        self, frame: DataFrame, attempt: str, micro_batch: int, mode: Mode = "append", key: Sequence[str] = ()
    ) -> Staged:
        """Let the executors write the frame in one action; describe what is durable then."""
        # A folder of its own: one attempt may stage several frames.
        folder = f"{self.folder(attempt)}{secrets.token_hex(4)}/"
        with self._target.scratch(frame.sparkSession) as scratch:
            scratch.make(folder + _OF_THE_COMMITTER)
            with _session_settings(frame.sparkSession, _PARQUET_AS_ALL_READ_IT):
                options = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false", **_ON_A_DISK}
                frame.write.mode("append").options(**options).parquet(scratch.for_spark(folder))
            listed = scratch.store.list(folder)
            parts = [entry for entry in listed if _is_data(entry.key)]
            rows = in_parallel([partial(count_rows, scratch.store, entry) for entry in parts], CONCURRENCY)
            files = [
                StagedFile(path=entry.key, size_bytes=entry.size_bytes, rows=count)
                for entry, count in zip(parts, rows, strict=True)
                if count
            ]
            kept = {file.path for file in files}
            if scratch is not self._target:
                self._target.upload(scratch, kept)
            elif files:
                self._store.delete([entry.key for entry in listed if entry.key not in kept])
                self._target.sync(folder, kept)
            else:
                self._target.clear(folder)
        return Staged(
            attempt=attempt,
            files=files,
            schema=plain_schema(frame),
            micro_batch=micro_batch,
            mode=mode,
            key=list(key),
        )

    def parse(self, descriptors: list[dict[str, Any]]) -> list[Staged]:
        """Parse descriptors that were read from storage; only files of the attempt's own folder are accepted."""
        parsed = decode(descriptors)
        for staged in parsed:
            for file in staged.files:
                if not check_path(file.path).startswith(self.folder(staged.attempt)) or not _is_data(file.path):
                    raise Corrupt(
                        f"the sink's descriptor names {file.path!r}, which is not of attempt {staged.attempt}",
                        code="sink.damaged",
                    )
        return parsed

    def missing(self, parsed: list[Staged]) -> list[str]:
        """List the files that are no longer there as they were described."""
        folders = {self.folder(staged.attempt) for staged in parsed if staged.files}
        there = {entry.key: entry.size_bytes for folder in folders for entry in self._store.list(folder)}
        return [file.path for staged in parsed for file in staged.files if there.get(file.path) != file.size_bytes]


def _is_data(key: str) -> bool:
    name = key.rsplit("/", 1)[-1]
    return name.endswith(".parquet") and not name.startswith((".", "_")) and "/_temporary/" not in key


def count_rows(store: Store, entry: Listed) -> int:
    """Read the number of rows from the file's footer, and nothing else of it."""
    size = entry.size_bytes
    tail = store.get(entry.key, offset=max(0, size - _FOOTER_GUESS_BYTES), size=min(size, _FOOTER_GUESS_BYTES))
    footer = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < footer <= size:
        tail = store.get(entry.key, offset=size - footer, size=footer)
    try:
        return int(pq.read_metadata(pa.BufferReader(tail)).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{entry.key} is not a Parquet file: {error}", code="sink.damaged") from None


@contextmanager
def _session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set what cannot be an option of the write. The session is the query's own copy; it gets back what it had."""
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)
