"""A sink that writes to a Delta table, each epoch exactly once.

The data stays where it was staged. One version of the table adds the files and, as an app transaction, the epoch;
delta-rs refuses it when another writer has moved that transaction, so load, compare, commit is atomic.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ...errors import Unsupported
from ...failpoints import reach
from ...formats.keys import format_name
from ..descriptors import Mode, Staged, encode, format_tag, plain_schema
from ..key_columns import Keys, check_distinct, check_key, parse_key
from ..staging import Staging
from ..staging_sink import Identity, StagingSink, staged_missing
from ..target import other_pipeline, unavailable
from .schema import check_fit, delta_schema
from .table import Table, addition
from .undo import describe, plan
from .upsert import Upsert, read_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRIES = 20
_LONGEST_PAUSE_S = 1.0


class DeltaSink(StagingSink):
    """A Delta table. With a ``key`` a row replaces the one that has the same.

    ``take_over`` lets a new pipeline continue under the name of one whose store is lost.
    """

    kind = "delta"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | Sequence[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        take_over: bool = False,
    ) -> None:
        self._table = Table(path, dict(storage_options or {}))
        self._key = parse_key(key)
        self._mode: Mode = "upsert" if self._key else "append"
        self._take_over = take_over
        self._checked: dict[str, Any] | None = None
        # Staging looks at the table while the epoch before is committed.
        self._lock = threading.Lock()
        self.address = self._table.url

    def _open(self, identity: Identity) -> Staging:
        owner = _owner_of(identity)
        with self._lock:
            if table := self._table.load():
                self._check_owner(table, identity.pipeline, owner)
        self._pipeline, self._owner, self._checked = identity.pipeline, owner, None
        self._app = f"{owner.app_id}/{format_name(identity.uid)}"
        # No hidden folder: vacuum must find what is removed from the table one day.
        folder = f"slackwater-{format_tag(identity.uid, identity.sink)}/"
        return Staging(self._table.target, identity.uid, identity.sink, folder)

    def serve(self, output_mode: str) -> None:
        """Take the query's output mode; without a key there is no update mode."""
        modes: dict[str, Mode] = {"append": "upsert" if self._key else "append", "complete": "replace"}
        if self._key:
            modes["update"] = "upsert"
        if output_mode not in modes:
            raise Unsupported(
                f"without a key, rows that {output_mode} mode gives again would be in {self.address} twice",
                code="query.unsupported",
                hint='DeltaSink(path, key="…") names the columns by which a row replaces an older one',
            )
        self._mode, self._checked = modes[output_mode], None

    def epoch(self) -> int:
        """Tell the newest epoch that was committed under this identity, 0 for none."""
        self.check_bound()
        with self._lock:
            table = self._table.load()
            return self._epoch_of(table) if table else 0

    def stage(self, frame: DataFrame, attempt: str, micro_batch: int) -> dict[str, Any]:
        """Write the frame, in one Spark action, durably and invisibly, and describe it."""
        # Before anything counts: an epoch whose rows do not fit the table could never be committed.
        self._check_schema(plain_schema(frame))
        self._staging.tick(attempt)
        reach("delta.ticket.after")
        key = self._key if self._mode == "upsert" else []
        staged = self._staging.write(frame, attempt, micro_batch, self._mode, key)
        if key and staged.files:
            with self._table.translated():
                columns = pa.schema(delta_schema(staged.schema).to_arrow())
                chosen = pa.schema([columns.field(name) for name in key])
                rows = read_keys(self._table.files, [file.path for file in staged.files], chosen)
            check_distinct(rows.num_rows, Keys(rows), key)
        return encode(staged)

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        """Bring the staged files into the table in one version that also remembers the epoch."""
        parsed = self._staging.parse(descriptors)
        self._staging.untick({staged.attempt for staged in parsed})
        reach("delta.untick.after")
        # No rows are no output, except where the newest result is all that there shall be.
        replaces = bool(parsed) and parsed[0].mode == "replace"
        frames = parsed[-1:] if replaces else [staged for staged in parsed if staged.files]
        if not frames:
            return
        upsert = Upsert(self._table, self._staging, frames) if frames[0].mode == "upsert" else None
        self._until_done(lambda: self._commit_once(frames, epoch, upsert))

    def plan_undo(self, to_epoch: int) -> str:
        """Say what ``undo`` would take back, or refuse as it would."""
        self.check_bound()
        with self._lock:
            table = self._table.load()
            if table and self._epoch_of(table) < self._staging.newest_note():
                to_epoch = 0
            with self._table.translated():
                return describe(plan(self._table, table, self._app, to_epoch) if table else None)

    def _commit_once(self, frames: list[Staged], epoch: int, upsert: Upsert | None) -> bool:
        """Commit, unless that was done; False when another writer was faster."""
        table = self._table.load()
        if table and self._epoch_of(table) >= epoch:
            return True
        if missing := self._staging.missing(frames):
            raise staged_missing(self.address, missing, epoch)
        if table is None:
            self._table.create(delta_schema(frames[0].schema))
            return False  # load and compare again: whoever made the table may have this epoch in it
        self._check_owner(table, self._pipeline, self._owner)
        with self._table.translated():
            for staged in frames:
                check_fit(table, self.address, staged.schema, staged.mode)
            if upsert:
                actions = upsert.actions(table)
            else:
                actions = [addition(staged.attempt, file) for staged in frames for file in staged.files]
        reach("delta.commit.before")
        if not self._write(table, epoch, actions, frames[0].mode):
            return False
        reach("delta.commit.after")
        return True

    def _roll_back(self, to_epoch: int | None, epoch: int) -> None:
        """Go back, in one version that also remembers ``epoch``, to before the first one after ``to_epoch``."""
        # Before the look at the table: of a driver that comes after this one, nothing may be deleted.
        staged = self._staging.attempts()
        with self._lock:
            if self._table.load() is None:
                # Nothing to remember the epoch in. Who makes the table after this, to commit, misses its staged files;
                # and what somebody committed before they were deleted has to go, even if we are killed here.
                self._staging.clear(self._staging.note_undone(epoch, staged))
        noted = self._staging.newest_note()
        self._until_done(lambda: self._roll_back_once(to_epoch, epoch, noted))

    def _roll_back_once(self, to_epoch: int | None, epoch: int, noted: int) -> bool:
        """Undo or keep, unless that was done; False when another writer was faster."""
        table = self._table.load()
        if table is None or (newest := self._epoch_of(table)) >= epoch:
            return True
        if newest < noted:
            # This rollback, or one before it that was not ended, has found no table, and deleted what was staged:
            # all of ours that is in the table by now was committed too late, and refers to that.
            to_epoch = 0
        self._check_owner(table, self._pipeline, self._owner)
        with self._table.translated():
            undo = None if to_epoch is None else plan(self._table, table, self._app, to_epoch)
        if not (self._restore(table, epoch, undo.version) if undo else self._write(table, epoch, [], "append")):
            return False
        reach("delta.undo.after")
        return True

    def _until_done(self, once: Callable[[], bool]) -> None:
        with self._lock:
            for tried in range(_TRIES):
                if self._table.until_answered(once):
                    self._table.sync_log()
                    return
                time.sleep(random.uniform(0, min(_LONGEST_PAUSE_S, 0.01 * 2**tried)))
        raise unavailable(self.address, f"other writers were faster {_TRIES} times")

    def _write(self, table: DeltaTable, epoch: int, actions: Sequence[AddAction | RemoveAction], mode: Mode) -> bool:
        """Make a version of these actions; False when another one stands in its way."""
        # What depends on the rows that are there must not be put onto a newer version.
        properties = self._properties(epoch, tries_on=mode == "append")
        overwrites = "overwrite" if mode == "replace" else "append"
        return self._is_first(
            lambda: table.create_write_transaction(
                list(actions), mode=overwrites, schema=table.schema(), commit_properties=properties
            )
        )

    def _restore(self, table: DeltaTable, epoch: int, version: int) -> bool:
        """Make a version with the files of an older one; False when there is a newer one by now."""
        properties = self._properties(epoch, tries_on=False)
        return self._is_first(lambda: table.restore(version, commit_properties=properties))

    def _is_first(self, make_version: Callable[[], object]) -> bool:
        try:
            with self._table.translated():
                make_version()
        except CommitFailedError:
            return False
        return True

    def _properties(self, epoch: int, *, tries_on: bool) -> CommitProperties:
        transactions = [Transaction(self._app, epoch), self._owner]
        return CommitProperties(app_transactions=transactions, max_commit_retries=None if tries_on else 0)

    def _epoch_of(self, table: DeltaTable) -> int:
        with self._table.translated():
            return table.transaction_version(self._app) or 0

    def _check_owner(self, table: DeltaTable, pipeline: str, owner: Transaction) -> None:
        with self._table.translated():
            number = table.transaction_version(owner.app_id)
        if number not in (None, owner.version) and not self._take_over:
            raise other_pipeline(self.address, pipeline)

    def _check_schema(self, schema: dict[str, Any]) -> None:
        self.check_bound()
        if schema == self._checked:
            return
        delta_schema(schema)
        if self._mode == "upsert":
            check_key(self._key, schema)
        with self._lock, self._table.translated():
            if table := self._table.load():
                check_fit(table, self.address, schema, self._mode)
        self._checked = schema


def _owner_of(identity: Identity) -> Transaction:
    # A transaction remembers a number; the uid as such does not fit into one.
    number = int.from_bytes(hashlib.sha256(identity.uid.encode()).digest()[:8]) >> 2
    return Transaction(f"slackwater/{format_name(identity.pipeline)}/{format_name(identity.sink)}", number)
