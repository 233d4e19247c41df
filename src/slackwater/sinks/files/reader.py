"""The exact reader of folders that file sinks write to."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...errors import NotFound
from ...store import Store
from ..staging import HOME
from ..target import Target, unavailable
from .log import Entry, EntryKey, parse_entry_key, parse_published, read_entry, read_undo

_MAX_LISTINGS = 20


def read_committed(path: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """List the files that hold exactly the committed rows of every pipeline that writes to the folder.

    One that is listed where it was staged may be published before it is opened, and then is not found: list again.
    """
    target = Target(path, storage_options or {})
    if target.local is not None and not target.local.is_dir():
        raise NotFound(
            f"there is no folder {target.local}",
            code="folder.not_found",
            hint="see how it is spelled; the first commit of a pipeline that writes to it makes it",
        )
    seen = _look(target.store)
    for _ in range(_MAX_LISTINGS):
        before, seen = seen, _look(target.store)
        # A file on its way can be missed by one listing, never by two that are equal.
        if seen == before:
            published, staged, entries = seen
            left = [f.staged for e in entries for f in e.files if f.staged in staged and f.published not in published]
            found = sorted(published) + left
            return [str(target.local / key) if target.local else f"{target.url}/{key}" for key in found]
    raise unavailable(target.url, f"it changed during each of {_MAX_LISTINGS} listings")


def _look(store: Store) -> tuple[set[str], set[str], list[Entry]]:
    """List the published files that stand, the staged ones, and the newest entry of each log that is a commit."""
    keys = [listed.key for listed in store.list("")]
    names = [name for name in map(parse_entry_key, keys) if name]
    undos = [(name.tag, read_undo(store, name.key)) for name in names if name.is_undo]
    newest: dict[tuple[str, str], EntryKey] = {}
    for name in sorted(names, key=lambda name: name.epoch):
        newest[name.uid, name.sink] = name
    entries = [read_entry(store, name.key) for name in newest.values() if not name.is_undo]

    def stands(key: str) -> bool:
        file = parse_published(key)
        return file is not None and not any(tag == file.tag and undo.withdraws(file.epoch) for tag, undo in undos)

    staged = {key for key in keys if key.startswith(HOME) and "/data/" in key}
    return set(filter(stands, keys)), staged, entries
