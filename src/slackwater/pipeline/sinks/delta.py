"""A sink that appends to a Delta table, each epoch exactly once.

The data stays where it was staged. One version of the table adds the files and, as an app transaction, the epoch;
delta-rs refuses it when another writer has moved that transaction, so load, compare, commit is atomic.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction

from ...errors import InvalidInput, Unsupported
from ...failpoints import reach
from ...formats.layout import format_name
from .delta_schema import delta_schema, misfits
from .staging import Staged, Staging, StagingSink, format_tag, plain_schema, staged_missing
from .target import Target, other_pipeline, unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRIES = 20
_LONGEST_PAUSE_S = 1.0
# What a table may ask of its writers that committing finished files does not do.
_ASKS_TOO_MUCH = ("delta.constraints.", "delta.setTransactionRetentionDuration", "delta.columnMapping.mode")
_OF_DELTA_RS_ALONE = ("max_retries", "retry_timeout", "backoff_config", "delta_", "aws_s3_")
_ASKS_TOO_MUCH_OF_A_COLUMN = ("delta.invariants", "delta.generationExpression", "delta.identity.")


class DeltaSink(StagingSink):
    """A Delta table. ``take_over`` lets a new pipeline continue under the name of one whose store is lost."""

    kind = "delta"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: dict[str, str] | None = None,
        take_over: bool = False,
    ) -> None:
        text = os.fspath(path)
        self._options = dict(storage_options or {})
        remote = "://" in text and not text.startswith("file:")
        self._target = Target(text, _for_our_store(self._options) if remote else {})
        if "%" in str(self._target.local):
            raise InvalidInput(
                "the path of a Delta table cannot hold a percent sign: delta-rs would decode it",
                code="sink.bad_target",
                hint="choose another folder",
            )
        self._take_over = take_over
        self._table: DeltaTable | None = None
        self._checked: dict[str, Any] | None = None
        self._synced: set[str] = set()
        # Staging looks at the table while the epoch before is committed.
        self._lock = threading.Lock()
        self.address = self._target.url

    def bind(self, pipeline: str, sink: str, uid: str) -> None:
        """Take the identity under which epochs are remembered; refuse a table that knows another uid."""
        self._pipeline = pipeline
        self._owner = f"slackwater/{format_name(pipeline)}/{format_name(sink)}"
        self._app = f"{self._owner}/{format_name(uid)}"
        # A transaction remembers a number; the uid as such does not fit into one.
        self._owner_number = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8]) >> 2
        # No hidden folder: vacuum must find what is removed from the table one day.
        self._bound = Staging(self._target, uid, sink, f"slackwater-{format_tag(uid, sink)}/")
        self._checked = None
        with self._lock:
            if table := self._load():
                self._check_owner(table)

    def epoch(self) -> int:
        """Tell the newest epoch that was committed under this identity, 0 for none."""
        self.check_bound()
        with self._lock:
            table = self._load()
            return self._epoch_of(table) if table else 0

    def stage(self, frame: DataFrame, attempt: str) -> dict[str, Any]:
        """Write the frame, in one Spark action, durably and invisibly, and describe it."""
        # Before anything counts: an epoch whose rows do not fit the table could never be committed.
        self._check_schema(plain_schema(frame))
        self._staging.tick(attempt)
        reach("delta.ticket.after")
        return self._staging.write(frame, attempt)

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        """Add the staged files to the table in one version that also remembers the epoch."""
        parsed = self._staging.parse(descriptors)
        self._staging.untick({staged.attempt for staged in parsed})
        reach("delta.untick.after")
        parsed = [staged for staged in parsed if staged.files]
        if not parsed:
            return
        with self._lock:
            for tried in range(_TRIES):
                if self._commit_once(parsed, epoch):
                    self._sync_log()
                    return
                time.sleep(random.uniform(0, min(_LONGEST_PAUSE_S, 0.01 * 2**tried)))
        raise unavailable(self.address, f"other writers were faster {_TRIES} times")

    def _commit_once(self, parsed: list[Staged], epoch: int) -> bool:
        """Compare, then commit; say whether the epoch is in the table. If not, another writer was faster."""
        table = self._load()
        if table and self._epoch_of(table) >= epoch:
            return True
        if missing := self._staging.missing(parsed):
            raise staged_missing(self.address, missing, epoch)
        if table is None:
            self._create(parsed[0].schema)
            return False  # load and compare again: whoever made the table may have this epoch in it
        self._check_owner(table)
        for staged in parsed:
            self._check_fit(table, staged.schema)
        transactions = [Transaction(self._app, epoch), Transaction(self._owner, self._owner_number)]
        reach("delta.commit.before")
        try:
            with self._translated():
                table.create_write_transaction(
                    [action for staged in parsed for action in _additions(staged)],
                    mode="append",
                    schema=table.schema(),
                    commit_properties=CommitProperties(app_transactions=transactions),
                )
        except CommitFailedError:
            return False
        reach("delta.commit.after")
        return True

    def _load(self) -> DeltaTable | None:
        with self._translated():
            if self._table is not None:
                self._table.update_incremental()
                return self._table
            try:
                self._table = DeltaTable(self.address, storage_options=self._options)
            except TableNotFoundError:
                return None
        return self._table

    def _create(self, schema: dict[str, Any]) -> None:
        with self._translated():
            try:
                # Without a retry: delta-rs would make a second creation the next version of the table.
                once = CommitProperties(max_commit_retries=0)
                DeltaTable.create(
                    self.address, delta_schema(schema), storage_options=self._options, commit_properties=once
                )
            except DeltaError as error:
                # Another writer may have made it at the same time.
                if not DeltaTable.is_deltatable(self.address, self._options):
                    raise unavailable(self.address, type(error).__name__) from None

    def _epoch_of(self, table: DeltaTable) -> int:
        with self._translated():
            return table.transaction_version(self._app) or 0

    def _check_owner(self, table: DeltaTable) -> None:
        with self._translated():
            number = table.transaction_version(self._owner)
        if number not in (None, self._owner_number) and not self._take_over:
            raise other_pipeline(self.address, self._pipeline)

    def _check_schema(self, schema: dict[str, Any]) -> None:
        self.check_bound()
        if schema == self._checked:
            return
        delta_schema(schema)
        with self._lock:
            if table := self._load():
                self._check_fit(table, schema)
        self._checked = schema

    def _check_fit(self, table: DeltaTable, schema: dict[str, Any]) -> None:
        with self._translated():
            metadata, theirs = table.metadata(), json.loads(table.schema().to_json())
        asked = [name for name in metadata.configuration if name.startswith(_ASKS_TOO_MUCH)]
        asked += [n for f in theirs["fields"] for n in f["metadata"] if n.startswith(_ASKS_TOO_MUCH_OF_A_COLUMN)]
        asked += [f"partition by {column}" for column in metadata.partition_columns]
        if asked:
            raise Unsupported(
                f"the table {self.address} asks of its writers what this sink does not do: {', '.join(sorted(asked))}",
                code="sink.table_unsupported",
                hint="write to a table without it",
            )
        if differing := misfits(schema, theirs):
            raise Unsupported(
                f"the query's columns do not fit the table {self.address}: {'; '.join(differing)}",
                code="sink.schema_mismatch",
                hint="cast or rename the columns in the query, or alter the table, or write to another one",
            )

    def _sync_log(self) -> None:
        """Make the table's log durable, whoever wrote it: delta-rs does not sync on a local disk."""
        if self._target.local is None:
            return
        with self._target.disk_errors():
            names = {entry.name for entry in os.scandir(self._target.local / "_delta_log") if entry.is_file()}
        # Other writers' temporary files come and go, and expired entries are cleaned up.
        new = [f"_delta_log/{name}" for name in sorted(names - self._synced)]
        self._target.sync("_delta_log", new, may_be_gone=True)
        # Only a numbered file never changes under its name.
        self._synced = {name for name in names if name[:20].isdigit()}

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn foreign errors into ours. Their text stays behind: it may hold what the storage options hold."""
        try:
            yield
        except CommitFailedError:
            raise
        except DeltaProtocolError:
            raise Unsupported(
                f"the table {self.address} needs a feature of Delta that delta-rs does not have",
                code="sink.table_unsupported",
                hint="write to a table without it",
            ) from None
        except (DeltaError, OSError) as error:
            raise unavailable(self.address, type(error).__name__) from (error if self._target.local else None)


def _for_our_store(options: dict[str, str]) -> dict[str, str]:
    """Return the options that are of the object_store crate, which reads them for delta-rs and for our store alike."""
    lower = {name.lower(): value for name, value in options.items()}
    return {name: value for name, value in lower.items() if not name.startswith(_OF_DELTA_RS_ALONE)}


def _additions(staged: Staged) -> list[AddAction]:
    # The attempt's id holds its time: a re-drive makes the very same actions.
    made_at_ms = int(staged.attempt.replace("-", "")[:12], 16)
    return [
        AddAction(file.path, file.size_bytes, {}, made_at_ms, True, json.dumps({"numRecords": file.rows}))
        for file in staged.files
    ]
