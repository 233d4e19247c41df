"""The log of a file sink: entries that are commits, entries that are undos."""

from __future__ import annotations

import re
from typing import Literal, TypeVar

import msgspec

from ...errors import Corrupt
from ...formats import sealed
from ...formats.ids import CheckpointId, Count
from ...formats.keys import check_path, parse_name
from ...store import Store
from ..descriptors import Staged, format_tag
from ..staging import HOME

VERSION: Literal[1] = 1
_MAX_ENTRY_BYTES = 16 * 1024 * 1024
_ENTRY = re.compile(rf"{HOME}([^/]+)/([^/]+)/log/(\d{{20}})(\.undo)?\.json")
_PUBLISHED = re.compile(r"(\d{20})-\d{5,}-[0-9a-f-]{36}-([0-9a-f]{8})\.parquet")


class PublishedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    staged: str
    published: str
    size_bytes: Count
    rows: Count


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One committed epoch: which staged files it has, and the names under which they are published."""

    version: Literal[1]
    epoch: Count
    attempt: CheckpointId
    files: list[PublishedFile]


class UndoEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was committed between the two epochs is withdrawn, and what these attempts had staged is gone."""

    version: Literal[1]
    epoch: Count
    to_epoch: Count
    attempts: list[CheckpointId]

    def withdraws(self, epoch: int) -> bool:
        return self.to_epoch < epoch < self.epoch


class EntryKey(msgspec.Struct, frozen=True):
    """Where an entry is, and what its name says."""

    key: str
    uid: str
    sink: str
    epoch: int
    is_undo: bool

    @property
    def tag(self) -> str:
        return format_tag(parse_name(self.uid), parse_name(self.sink))


class PublishedName(msgspec.Struct, frozen=True):
    """What the name of a published file says."""

    epoch: int
    tag: str


_T = TypeVar("_T", Entry, UndoEntry)


def format_entry_key(home: str, epoch: int, *, undo: bool = False) -> str:
    return f"{home}log/{epoch:020d}{'.undo' if undo else ''}.json"


def parse_entry_key(key: str) -> EntryKey | None:
    """Parse the key of an entry; None for anything else."""
    match = _ENTRY.fullmatch(key)
    return EntryKey(key, match[1], match[2], int(match[3]), bool(match[4])) if match else None


def parse_published(key: str) -> PublishedName | None:
    """Parse the name of a published file; None for anything else."""
    match = _PUBLISHED.fullmatch(key)
    return PublishedName(int(match[1]), match[2]) if match else None


def draw_up(frames: list[Staged], epoch: int, tag: str) -> Entry | None:
    """Draw up the entry of an epoch; None when it has no rows."""
    files = [file for staged in frames for file in staged.files]
    if not files:
        return None
    attempt = frames[0].attempt
    published = [
        PublishedFile(
            staged=file.path,
            published=f"{epoch:020d}-{number:05d}-{attempt}-{tag}.parquet",
            size_bytes=file.size_bytes,
            rows=file.rows,
        )
        for number, file in enumerate(files)
    ]
    return Entry(version=VERSION, epoch=epoch, attempt=attempt, files=published)


def encode(entry: Entry | UndoEntry) -> bytes:
    """Encode an entry with its own digest, always to the same bytes."""
    return sealed.seal(msgspec.json.encode(entry, order="sorted"))


def read_entry(store: Store, key: str) -> Entry:
    """Read the entry of a commit, whole or not at all."""
    entry = _read(store, key, Entry)
    if not all(parse_published(file.published) and check_path(file.staged) for file in entry.files):
        raise _damaged(key, "names files as no commit does")
    return entry


def read_undo(store: Store, key: str) -> UndoEntry:
    """Read the entry of an undo, whole or not at all."""
    return _read(store, key, UndoEntry)


def _read(store: Store, key: str, kind: type[_T]) -> _T:
    data = store.get(key, max_bytes=_MAX_ENTRY_BYTES)
    try:
        entry = sealed.unseal(data, msgspec.json.Decoder(kind), version=VERSION)
    except sealed.OtherVersion as other:
        raise sealed.unknown_version(f"the entry {key}", other.version, VERSION) from None
    except sealed.Broken as broken:
        raise _damaged(key, str(broken)) from None
    name = parse_entry_key(key)
    if name is None or name.epoch != entry.epoch:
        raise _damaged(key, f"says that it is of epoch {entry.epoch}")
    return entry


def _damaged(key: str, what: str) -> Corrupt:
    return Corrupt(
        f"the entry {key} {what}",
        code="sink.damaged",
        hint="restore it from a copy; without it the newest epoch of this sink is unknown",
    )
