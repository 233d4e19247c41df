"""An upsert by key as a change of files: a file with an older row of a key is written anew without it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSystem

from ..descriptors import Staged, StagedFile
from ..key_columns import Keys
from ..staging import Staging
from .table import Table, addition, files_of

_Scanned = tuple[str, pa.RecordBatch]
# By which Spark knows how a file's oldest dates are meant; they are copied as they are.
_CALENDAR = (b"org.apache.spark.version", b"org.apache.spark.timeZone", b"org.apache.spark.legacyDateTime")
_BATCH_ROWS = 4 * 1024
_BUFFER_BYTES = 1024 * 1024
_ROW_GROUP_BYTES = 16 * 1024 * 1024
# A set of keys is not made ready for every few rows.
_LOOKUP_ROWS = 64 * 1024


class Upsert:
    """One epoch's rows for a table. What it has found out about a file it keeps over tries: files never change."""

    def __init__(self, table: Table, staging: Staging, frames: list[Staged]) -> None:
        self._table, self._files, self._frames = table, table.files, frames
        self._attempt, self._key = frames[0].attempt, frames[0].key
        self._folder = f"{staging.folder(self._attempt)}{secrets.token_hex(4)}/"
        self._written = 0
        self._keys: Keys | None = None
        self._added: list[AddAction] = []
        # By path: what takes the place of the file; None where it stays.
        self._instead: dict[str, list[AddAction] | None] = {}

    def actions(self, table: DeltaTable) -> list[AddAction | RemoveAction]:
        """Return what the version after the loaded one holds, with all new files written."""
        schema = pa.schema(table.schema().to_arrow())
        keys = self._keys or self._add_frames(schema)
        there, now_ms = files_of(table), int(time.time() * 1000)
        self._look([path for path in there if path not in self._instead], keys, schema)
        actions: list[AddAction | RemoveAction] = [*self._added]
        for path, file in there.items():
            if (instead := self._instead[path]) is not None:
                actions += [RemoveAction(path, True, now_ms, file.size_bytes, {}), *instead]
        return actions

    def _add_frames(self, schema: pa.Schema) -> Keys:
        """Add the frames, from the newest to the oldest, each without the keys of those after it; return all keys."""
        rows = self._columns(schema).empty_table()
        for frame in reversed(self._frames):
            paths = [file.path for file in frame.files]
            self._look(paths, Keys(rows), schema)
            for file in frame.files:
                instead = self._instead.pop(file.path)
                self._added += [addition(self._attempt, file)] if instead is None else instead
            rows = pa.concat_tables([rows, read_keys(self._files, paths, rows.schema)])
        self._keys = Keys(rows)
        return self._keys

    def _look(self, paths: Sequence[str], keys: Keys, schema: pa.Schema) -> None:
        """Find the files that have one of the keys; write them anew without."""
        touched = self._touched(paths, keys, schema) if keys.count else set()
        self._instead |= {path: self._without(path, keys, schema) if path in touched else None for path in paths}
        new = [action.path for path in touched for action in self._instead[path] or []]
        if new:
            self._table.target.sync(self._folder, new)

    def _columns(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([schema.field(name) for name in self._key])

    def _touched(self, paths: Sequence[str], keys: Keys, schema: pa.Schema) -> set[str]:
        found: set[str] = set()
        columns = self._columns(schema)
        scanned = ((path, batch) for path in paths for batch in _read(self._files, path, columns))
        for some in _gather(scanned, lambda batch: batch.num_rows, max(_LOOKUP_ROWS, keys.count)):
            hits, start = keys.among(pa.Table.from_batches([batch for _, batch in some])), 0
            for path, batch in some:
                if pc.any(hits.slice(start, batch.num_rows)).as_py():
                    found.add(path)
                start += batch.num_rows
        return found

    def _without(self, path: str, keys: Keys, schema: pa.Schema) -> list[AddAction]:
        """Write a file anew, without the rows of these keys; none, when no row is left."""
        new, rows = f"{self._folder}part-{self._written:05d}.parquet", 0
        self._written += 1
        notes = pq.read_schema(path, filesystem=self._files).metadata or {}
        noted = schema.with_metadata({name: notes[name] for name in _CALENDAR if name in notes})
        with pq.ParquetWriter(new, noted, filesystem=self._files) as writer:
            scanned = ((path, batch) for batch in _read(self._files, path, schema))
            for some in _gather(scanned, lambda batch: batch.nbytes, _ROW_GROUP_BYTES):
                whole = pa.Table.from_batches([batch for _, batch in some])
                left = whole.filter(pc.invert(keys.among(whole.select(self._key))))
                writer.write_table(left)
                rows += left.num_rows
        if not rows:
            self._files.delete_file(new)
            return []
        size_bytes = self._files.get_file_info(new).size
        return [addition(self._attempt, StagedFile(path=new, size_bytes=size_bytes, rows=rows))]


def _gather(
    scanned: Iterable[_Scanned], measure: Callable[[pa.RecordBatch], int], enough: int
) -> Iterator[list[_Scanned]]:
    """Put small pieces together until they are enough."""
    some: list[_Scanned] = []
    size = 0
    for path, batch in scanned:
        some.append((path, batch))
        size += measure(batch)
        if size >= enough:
            yield some
            some, size = [], 0
    if some:
        yield some


def read_keys(files: FileSystem, paths: Sequence[str], columns: pa.Schema) -> pa.Table:
    """Read the key's columns of staged files."""
    batches = [batch for path in paths for batch in _read(files, path, columns)]
    return pa.Table.from_batches(batches, columns)


def _read(files: FileSystem, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a file as rows of these columns, a piece at a time; a column that it lacks is null."""
    # Not as a dataset, and nothing ahead: both would hold whole row groups.
    options: Any = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES, "coerce_int96_timestamp_unit": "us"}
    with pq.ParquetFile(path, filesystem=files, **options) as file:
        there = [name for name in columns.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(_BATCH_ROWS, columns=there):
            arrays = [
                batch.column(field.name).cast(field.type, safe=False)
                if field.name in there
                else pa.nulls(batch.num_rows, field.type)
                for field in columns
            ]
            yield pa.record_batch(arrays, schema=columns)
