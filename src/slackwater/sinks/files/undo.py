"""What an undo withdraws from a folder of published files."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import msgspec

from ...errors import Corrupt, NotFound
from ...failpoints import reach
from ...parallel import in_parallel
from ...store import Listed, Store
from ..staging import Staging, count_rows
from ..staging_sink import format_undone, undo_refused
from ..target import CONCURRENCY, Target
from .log import EntryKey, UndoEntry, parse_published, read_entry, read_undo


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True):
    """How much is withdrawn; the rows without those of files whose entry is too old to be there."""

    files: int
    rows: int
    epochs: int
    uncounted: list[Listed]

    def describe(self, store: Store) -> str:
        """Say how much, with the rows of every file; a file that cannot be read can be withdrawn all the same."""
        rows: int | None = None
        with suppress(Corrupt, NotFound):
            rows = self.rows + sum(
                in_parallel([partial(count_rows, store, file) for file in self.uncounted], CONCURRENCY)
            )
        return format_undone(self.files, rows, self.epochs)


def plan(target: Target, staging: Staging, tag: str, names: Iterable[EntryKey], to_epoch: int) -> Withdrawal:
    """Plan what to withdraw, all after ``to_epoch``; refuse when a consumer has taken a part of it."""
    names, store = list(names), target.store
    undos = [read_undo(store, name.key) for name in names if name.is_undo]

    def stands(epoch: int) -> bool:
        return epoch > to_epoch and not any(undo.withdraws(epoch) for undo in undos)

    entries = [read_entry(store, name.key) for name in names if not name.is_undo and stands(name.epoch)]
    described = {file.published: file for entry in entries for file in entry.files}
    # In this order: what moves in between is in both, and not in neither.
    staged = {listed.key for entry in entries for listed in store.list(staging.folder(entry.attempt))}
    found = [(listed, epoch) for listed, epoch in _published(target, tag) if stands(epoch)]
    published = {listed.key: listed for listed, _ in found}
    if taken := [key for key, file in described.items() if key not in published and file.staged not in staged]:
        raise undo_refused(f"{len(taken)} files are no longer in {target.url}, the first is {min(taken)}")
    return Withdrawal(
        files=len(described.keys() | published.keys()),
        rows=sum(file.rows for file in described.values()),
        epochs=len({entry.epoch for entry in entries} | {epoch for _, epoch in found}),
        uncounted=[listed for key, listed in published.items() if key not in described],
    )


def withdraw(target: Target, staging: Staging, tag: str, undo: UndoEntry) -> None:
    """Delete what an undo has withdrawn; once more is no harm."""
    # First what is staged: after this nobody publishes any of it, so that the listing below is the last word.
    staging.clear(undo.attempts)
    reach("files.undo.between")
    doomed = [listed.key for listed, epoch in _published(target, tag) if undo.withdraws(epoch)]
    if doomed:
        target.store.delete(doomed)
        target.sync("")


def _published(target: Target, tag: str) -> list[tuple[Listed, int]]:
    """List this sink's published files, each with its epoch."""
    names = [(listed, parse_published(listed.key)) for listed in target.store.list("")]
    return [(listed, name.epoch) for listed, name in names if name and name.tag == tag]
