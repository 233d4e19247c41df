"""A sink that adds Parquet files to a folder, each epoch exactly once.

An entry in the sink's own create-only log is the commit; moving the files into the folder follows it, is idempotent,
and is repeated by every re-drive of the newest entry. So a plain listing never shows an uncommitted row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import Conflict, Corrupt, InvalidInput, NotFound, Unsupported
from ...failpoints import reach
from ...formats import sealed
from ...formats.keys import format_name
from ...parallel import in_parallel
from ..descriptors import Staged, encode, format_tag
from ..staging import HOME, Staging
from ..staging_sink import Identity, StagingSink, staged_missing
from ..target import CONCURRENCY, Target, other_pipeline
from .log import (
    VERSION,
    Entry,
    EntryKey,
    PublishedFile,
    UndoEntry,
    draw_up,
    format_entry_key,
    parse_entry_key,
    read_entry,
    read_undo,
)
from .undo import plan, withdraw

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The newest entry decides; older ones are for people, for undos, and a bounded listing.
_ENTRIES_KEPT = 100


class _Owner(msgspec.Struct, frozen=True, kw_only=True):
    uid: str


class FileSink(StagingSink):
    """Parquet files in a folder. ``take_over`` lets a new pipeline go on under the name of one whose store is lost."""

    kind = "files"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        take_over: bool = False,
    ) -> None:
        self._target = Target(path, storage_options or {})
        self._store = self._target.store
        self._take_over = take_over
        self.address = self._target.url

    def _open(self, identity: Identity) -> Staging:
        if self._check_owner(identity) is None and self._store.list_names("_delta_log/"):
            raise InvalidInput(
                f"{self.address} is a Delta table, whose readers would not see files that are put there",
                code="sink.invalid",
                hint=f'write to it with sw.DeltaSink("{self.address}"), or choose a folder of its own',
            )
        self._owner, self._tag = identity, format_tag(identity.uid, identity.sink)
        return Staging(self._target, identity.uid, identity.sink)

    def serve(self, output_mode: str) -> None:
        """Take the append mode alone: a file that was published stays as it is."""
        if output_mode != "append":
            raise Unsupported(
                f"{self.address} is a folder, where rows that {output_mode} mode gives again would be twice",
                code="query.unsupported",
                hint='use append, with a watermark where the query aggregates; or sw.DeltaSink("…", key="…")',
            )

    def epoch(self) -> int:
        """Tell the newest epoch that was committed under this identity, 0 for none."""
        self.check_bound()
        return max(self._entries(), default=0)

    def stage(self, frame: DataFrame, attempt: str, micro_batch: int) -> dict[str, Any]:
        """Write the frame, in one Spark action, durably and invisibly, and describe it."""
        self._staging.tick(attempt)
        reach("files.ticket.after")
        return encode(self._staging.write(frame, attempt, micro_batch))

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        """Make staged output visible, once: the entry is the commit, publishing follows."""
        parsed = self._staging.parse(descriptors)
        self._staging.untick({staged.attempt for staged in parsed})
        reach("files.untick.after")
        entry = draw_up(parsed, epoch, self._tag)
        if entry is None:
            for staged in parsed:
                self._target.clear(self._staging.folder(staged.attempt))
            return
        entries = self._entries()
        newest = max(entries, default=0)
        if newest < epoch:
            newest = self._create(entry, parsed)
        if newest > epoch:
            return
        self._publish(self._get(epoch, entry.attempt))
        reach("files.publish.after")
        old = [name.key for name in entries.values() if name.epoch <= epoch - _ENTRIES_KEPT and not name.is_undo]
        self._store.delete(old)

    def plan_undo(self, to_epoch: int) -> str:
        """Say what ``undo`` would withdraw, or refuse as it would."""
        self.check_bound()
        return plan(self._target, self._staging, self._tag, self._entries().values(), to_epoch).describe(self._store)

    def _create(self, entry: Entry, parsed: list[Staged]) -> int:
        """Commit, unless another driver has; return the newest epoch."""
        self._take_ownership()
        if missing := self._staging.missing(parsed):
            if (newest := self.epoch()) < entry.epoch:
                raise staged_missing(self.address, missing, entry.epoch)
            return newest  # they are missing because another driver has begun to publish them
        self._store.create(format_entry_key(self._staging.home, entry.epoch), sealed.encode(entry))
        reach("files.entry.after")
        return entry.epoch

    def _publish(self, entry: Entry) -> None:
        """Move what is still staged, then delete what the epoch was cut before: nobody will ask for it.

        What is not staged was moved before, and a consumer may have taken it away since.
        """
        there = {listed.key for listed in self._store.list(self._staging.folder(entry.attempt))}
        left = [file for file in entry.files if file.staged in there]

        def move(file: PublishedFile) -> None:
            # Staged a moment ago: if it is at neither place now, another driver was faster, and a consumer too.
            with suppress(NotFound):
                self._store.move(file.staged, file.published)

        for file in left[:1]:
            move(file)
            reach("files.publish.between")
        in_parallel([partial(move, file) for file in left[1:]], CONCURRENCY)
        self._target.clear(self._staging.folder(entry.attempt))

    def _roll_back(self, to_epoch: int | None, epoch: int) -> None:
        """Withdraw what was published after ``to_epoch``: the entry is the undo, deleting follows.

        To keep is to withdraw what is not there yet.
        """
        self.check_bound()
        entries = self._entries()
        newest = max(entries, default=0)
        if newest > epoch:
            return
        if newest < epoch:
            to_epoch = newest if to_epoch is None else to_epoch
            self._finish(entries.get(newest), to_epoch)
            plan(self._target, self._staging, self._tag, entries.values(), to_epoch)
            self._take_ownership()
            # All of them: who may stage for a later epoch does so only after this entry is there.
            attempts = self._staging.attempts()
            undo = UndoEntry(version=VERSION, epoch=epoch, to_epoch=to_epoch, attempts=attempts)
            reach("files.undo.before")
            self._store.create(format_entry_key(self._staging.home, epoch, undo=True), sealed.encode(undo))
            reach("files.undo.entry")
        withdraw(self._target, self._staging, self._tag, self._get_undo(epoch))

    def _finish(self, newest: EntryKey | None, to_epoch: int) -> None:
        """Do again what follows the newest entry: whoever made it may have died before."""
        if newest and newest.is_undo:
            withdraw(self._target, self._staging, self._tag, read_undo(self._store, newest.key))
        elif newest and newest.epoch <= to_epoch:
            self._publish(read_entry(self._store, newest.key))

    def _entries(self) -> dict[int, EntryKey]:
        """List the entries by their epochs."""
        names = (parse_entry_key(listed.key) for listed in self._store.list(f"{self._staging.home}log/"))
        return {name.epoch: name for name in names if name}

    def _get(self, epoch: int, attempt: str) -> Entry:
        try:
            entry = read_entry(self._store, format_entry_key(self._staging.home, epoch))
        except NotFound:
            raise self._epoch_taken(epoch, "an undo", attempt) from None
        if entry.attempt != attempt:
            raise self._epoch_taken(epoch, f"attempt {entry.attempt}", attempt)
        return entry

    def _get_undo(self, epoch: int) -> UndoEntry:
        try:
            return read_undo(self._store, format_entry_key(self._staging.home, epoch, undo=True))
        except NotFound:
            raise self._epoch_taken(epoch, "a commit", "a rollback") from None

    def _epoch_taken(self, epoch: int, theirs: str, ours: str) -> Conflict:
        return Conflict(
            f"{self.address} has epoch {epoch} from {theirs}, not from {ours}",
            code="sink.ahead",
            hint="the pipeline's log and the sink have parted: was the store restored from a backup?",
        )

    def _check_owner(self, identity: Identity) -> str | None:
        key = _owner_key(identity)
        try:
            data = self._store.get(key, max_bytes=4096)
        except NotFound:
            return None
        try:
            owner = msgspec.json.decode(data, type=_Owner).uid
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"{key} does not decode: {error}", code="sink.damaged") from None
        if owner != identity.uid and not self._take_over:
            raise other_pipeline(self.address, identity.pipeline)
        return owner

    def _take_ownership(self) -> None:
        identity = self._owner
        if self._check_owner(identity) == identity.uid:
            return
        key, data = _owner_key(identity), msgspec.json.encode(_Owner(uid=identity.uid))
        if not self._store.create(key, data) and self._check_owner(identity) != identity.uid:
            self._store.put(key, data)


def _owner_key(identity: Identity) -> str:
    return f"{HOME}owners/{format_name(identity.pipeline)}/{format_name(identity.sink)}.json"
