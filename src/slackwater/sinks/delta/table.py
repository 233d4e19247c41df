"""The Delta table that a sink writes to, behind delta-rs, whose errors become ours."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem, PyFileSystem

from ...errors import InvalidInput, Unavailable, Unsupported
from ...store.objects import until_answered
from ...store.translation import is_broken
from ..descriptors import StagedFile
from ..target import Target, check_path, unavailable

_T = TypeVar("_T")


class Table:
    """A table that may not be there yet."""

    def __init__(self, path: str | os.PathLike[str], options: dict[str, str]) -> None:
        text = check_path(path)
        remote = "://" in text and not text.startswith("file:")
        self.target = Target(text, options if remote else {})
        if "%" in str(self.target.local):
            raise InvalidInput(
                "the path of a Delta table cannot hold a percent sign: delta-rs would decode it",
                code="sink.invalid",
                hint="choose another folder",
            )
        self.url, self._options = self.target.url, self.target.for_delta_rs if remote else options
        self._loaded: DeltaTable | None = None
        self._synced: set[str] = set()

    @cached_property
    def files(self) -> FileSystem:
        """The table's folder, as Arrow reads and writes it."""
        return PyFileSystem(DeltaStorageHandler(self.url, self._options))

    def until_answered(self, ask: Callable[[], _T]) -> _T:
        """Ask again when a connection broke, where delta-rs gives up at once; the outcome of a commit is open then."""
        return until_answered(ask, self.target.total_timeout_s, _is_broken)

    def load(self) -> DeltaTable | None:
        """Load the newest version; None when there is no table."""
        return self.until_answered(self._load)

    def _load(self) -> DeltaTable | None:
        with self.translated():
            if self._loaded is not None:
                self._loaded.update_incremental()
                return self._loaded
            try:
                self._loaded = DeltaTable(self.url, storage_options=self._options)
            except TableNotFoundError:
                return None
        return self._loaded

    def at(self, version: int) -> DeltaTable | None:
        """Load an older version; None when its part of the log was cleaned up."""
        try:
            return DeltaTable(self.url, version=version, storage_options=self._options)
        except DeltaError as error:
            if is_broken(error):
                raise
            return None

    def create(self, schema: Schema) -> None:
        """Make the table, as version 0 or not at all."""
        with self.translated():
            try:
                # Without a retry: delta-rs would make a second creation the next version of the table.
                once = CommitProperties(max_commit_retries=0)
                DeltaTable.create(self.url, schema, storage_options=self._options, commit_properties=once)
            except DeltaError as error:
                # Another writer may have made it at the same time.
                if not DeltaTable.is_deltatable(self.url, self._options):
                    raise unavailable(self.url, type(error).__name__) from None

    def sync_log(self) -> None:
        """Make the table's log durable, whoever wrote it: delta-rs does not sync on a local disk."""
        if self.target.local is None or self._loaded is None:
            return
        with self.target.disk_errors():
            names = {entry.name for entry in os.scandir(self.target.local / "_delta_log") if entry.is_file()}
        # Other writers' temporary files come and go, and expired entries are cleaned up.
        new = [f"_delta_log/{name}" for name in sorted(names - self._synced)]
        self.target.sync("_delta_log", new, may_be_gone=True)
        # Only a numbered file never changes under its name.
        self._synced = {name for name in names if name[:20].isdigit()}

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn foreign errors into ours. Their text stays behind: it may hold what the storage options hold."""
        try:
            yield
        except CommitFailedError:
            raise
        except DeltaProtocolError:
            raise Unsupported(
                f"the table {self.url} needs a feature of Delta that delta-rs does not have",
                code="sink.unsupported",
                hint="write to a table without it",
            ) from None
        except (DeltaError, pa.ArrowException, OSError) as error:
            if self.target.local:
                raise unavailable(self.url, type(error).__name__) from error
            broken = {"broken": True} if is_broken(error) else {}
            raise unavailable(self.url, type(error).__name__, **broken) from None


def _is_broken(error: Exception) -> bool:
    return isinstance(error, Unavailable) and "broken" in error.details


class TableFile:
    """One file of a version; the number of rows is None where whoever wrote it did not say."""

    def __init__(self, size_bytes: int, rows: int | None) -> None:
        self.size_bytes, self.rows = size_bytes, rows


def files_of(table: DeltaTable) -> dict[str, TableFile]:
    """List the files of the loaded version by their paths below the table."""
    columns = pa.table(table.get_add_actions(flatten=True))
    rows = columns["num_records"].to_pylist() if "num_records" in columns.column_names else [None] * columns.num_rows
    named = zip(columns["path"].to_pylist(), columns["size_bytes"].to_pylist(), rows, strict=True)
    return {unquote(path): TableFile(size_bytes, count) for path, size_bytes, count in named}


def addition(attempt: str, file: StagedFile) -> AddAction:
    """Make the action that adds a file of an attempt."""
    # The attempt's id holds its time: a re-drive makes the very same actions.
    made_at_ms = int(attempt.replace("-", "")[:12], 16)
    return AddAction(file.path, file.size_bytes, {}, made_at_ms, True, json.dumps({"numRecords": file.rows}))
