"""What an undo withdraws from a folder of published files."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ...failpoints import reach
from .files_log import EntryKey, UndoEntry, parse_published, read_entry, read_undo
from .staging import Staging
from .target import Target
from .undo import format_undone, undo_refused


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True):
    """How much is withdrawn; the rows are None where the entry that counted them is too old to be there."""

    files: int
    rows: int | None
    epochs: int

    def __str__(self) -> str:
        return format_undone(self.files, self.rows, self.epochs)


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
    published = {key: epoch for key, epoch in _published(target, tag).items() if stands(epoch)}
    if taken := [key for key, file in described.items() if key not in published and file.staged not in staged]:
        raise undo_refused(f"{len(taken)} files are no longer in {target.url}, the first is {min(taken)}")
    return Withdrawal(
        files=len(described.keys() | published.keys()),
        rows=sum(file.rows for file in described.values()) if published.keys() <= described.keys() else None,
        epochs=len({entry.epoch for entry in entries} | set(published.values())),
    )


def withdraw(target: Target, staging: Staging, tag: str, undo: UndoEntry) -> None:
    """Delete what an undo has withdrawn; once more is no harm."""
    # First what is staged: after this nobody publishes any of it, so that the listing below is the last word.
    staging.clear(undo.attempts)
    reach("files.undo.between")
    doomed = [key for key, epoch in _published(target, tag).items() if undo.withdraws(epoch)]
    if doomed:
        target.store.delete(doomed)
        target.sync("")


def _published(target: Target, tag: str) -> dict[str, int]:
    """List this sink's published files, each with its epoch."""
    names = {listed.key: parse_published(listed.key) for listed in target.store.list("")}
    return {key: name.epoch for key, name in names.items() if name and name.tag == tag}
