"""Keyed state: bytes by key, with the source offsets and the watermark that go with them.

A batch of changes and what it brings the sources to become durable together, or not at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import Corrupt, InvalidInput, Unsupported
from ..rocks.database import Change, Rocks
from ..settings import KIB, MIB
from .documents import DESCRIPTION_FILE, Description, Lineage, Snapshot, decode, encode
from .errors import OWNER
from .vnodes import PREFIX_BYTES, VNODE_COUNT, prefix, vnode_of

# Texts by name, by source.
Offsets = Mapping[str, Mapping[str, str]]

MAX_KEY_BYTES = 64 * KIB
MAX_VALUE_BYTES = 16 * MIB
_READ_AT_ONCE = 1_000
# Beyond every virtual node's prefix: what is known of the state as a whole.
_DESCRIPTION = b"\xff\xffstate"
_LINEAGE = b"\xff\xfflineage"
_NEW = Description(vnode_count=VNODE_COUNT, key_count=0, watermark_ms=None, offsets={})


class CheckedBatch(NamedTuple):
    """Changes that can be applied: values by stored key, of each key the last; where they bring sources, watermark."""

    stored: dict[bytes, bytes | None]
    offsets: dict[str, dict[str, str]]
    watermark_ms: int | None

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.stored)) + sum(len(value) for value in self.stored.values() if value)


class KeyedState:
    """A keyed state in a folder, for one writer, or read only; not ``cached``, what is read is what is on the disk.

    >>> import tempfile
    >>> state = KeyedState(tempfile.mkdtemp() + "/counts")
    >>> state.write([(b"a", b"1"), (b"b", b"2"), (b"a", None)], offsets={"orders": {"row": "3"}})
    >>> state.get(b"a"), state.get(b"b"), state.key_count, state.offsets
    (None, b'2', 1, {'orders': {'row': '3'}})
    >>> state.close()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        vnode_count: int = VNODE_COUNT,
        read_only: bool = False,
        archive_wal: bool = False,
        cached: bool = True,
    ) -> None:
        self._rocks = Rocks(Path(folder), OWNER, read_only=read_only, archive_wal=archive_wal, cached=cached)
        try:
            (stored,) = self._rocks.get([_DESCRIPTION])
            self.description = decode(stored, Description) if stored else _described(self._rocks, vnode_count)
            if self.description.vnode_count != vnode_count:
                raise Unsupported(
                    f"the keyed state in {folder} has {self.description.vnode_count} virtual nodes, not {vnode_count}",
                    code="keyed.unsupported",
                    hint="open it with the number that it was made with; its keys are spread over so many",
                )
            self._prefixes = [prefix(vnode) for vnode in range(vnode_count)]
        except BaseException:
            self._rocks.close()
            raise

    @property
    def folder(self) -> Path:
        return self._rocks.folder

    @property
    def key_count(self) -> int:
        return self.description.key_count

    @property
    def offsets(self) -> dict[str, dict[str, str]]:
        """Where each source stands: what came up to there is in the state, and nothing of what comes after."""
        return {source: dict(pairs) for source, pairs in self.description.offsets.items()}

    @property
    def watermark_ms(self) -> int | None:
        return self.description.watermark_ms

    @property
    def wal_position(self) -> int:
        return self._rocks.position

    @property
    def lineage(self) -> Lineage | None:
        """Which checkpoint it goes on from; None when no pipeline has it."""
        (stored,) = self._rocks.get([_LINEAGE])
        return decode(stored, Lineage) if stored else None

    def note_lineage(self, lineage: Lineage) -> int:
        """Note which checkpoint it goes on from, and which is being made of it.

        It is durable after a ``sync`` up to the position that is returned, or with the next checkpoint.
        """
        changes = [(_LINEAGE, encode(lineage)), (_DESCRIPTION, encode(self.description))]
        return self._rocks.apply(changes)

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Get the values of some keys, in their order; None for one that is not there."""
        return self._get([self._stored(key) for key in keys])

    def put(self, key: bytes, value: bytes) -> None:
        self.write([(key, value)])

    def delete(self, key: bytes) -> None:
        self.write([(key, None)])

    def write(
        self, changes: Iterable[Change], *, offsets: Offsets | None = None, watermark_ms: int | None = None
    ) -> None:
        """Make a batch of changes durable, all or nothing. A value of None deletes; of one key's the last one counts.

        ``offsets`` of sources that are named replace theirs. A watermark never goes back.
        """
        self.sync(self.apply(self.prepare(changes, offsets=offsets, watermark_ms=watermark_ms)))

    def prepare(
        self, changes: Iterable[Change], *, offsets: Offsets | None = None, watermark_ms: int | None = None
    ) -> CheckedBatch:
        """Check a batch of changes, and bring it into the form in which it is stored; any thread may do that."""
        last, moved = _last_of(changes), _check_offsets(offsets or {})
        if watermark_ms is not None and (type(watermark_ms) is not int or watermark_ms < 0):
            raise InvalidInput(
                f"the watermark is {watermark_ms!r:.100}",
                code="state.invalid",
                hint="give milliseconds since 1970, as a whole number",
            )
        # For each of thousands: what nearly always holds is looked at here, and said there.
        for key, value in last.items():
            if type(key) is not bytes or len(key) > MAX_KEY_BYTES:
                check_size("key", key, MAX_KEY_BYTES)
            if value is not None and (type(value) is not bytes or len(value) > MAX_VALUE_BYTES):
                check_size("value", value, MAX_VALUE_BYTES)
        prefixes, count = self._prefixes, len(self._prefixes)
        stored = {prefixes[vnode_of(key, count)] + key: value for key, value in last.items()}
        return CheckedBatch(stored, moved, watermark_ms)

    def apply(self, batch: CheckedBatch) -> int:
        """Write a batch, all of it or nothing, one thread at a time; return the position up to which to ``sync``."""
        stored, watermark_ms = batch.stored, self.watermark_ms
        if batch.watermark_ms is not None:
            watermark_ms = max(batch.watermark_ms, watermark_ms or 0)
        before = self._get(list(stored))
        after = msgspec.structs.replace(
            self.description,
            key_count=self.key_count + before.count(None) - list(stored.values()).count(None),
            offsets={**self.description.offsets, **batch.offsets},
            watermark_ms=watermark_ms,
        )
        position = self._rocks.apply([*stored.items(), (_DESCRIPTION, encode(after))])
        self.description = after
        return position

    def sync(self, position: int) -> None:
        """Make all up to a position durable. Threads that wait here share the next sync."""
        self._rocks.sync(position)

    def scan(self, vnode: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Go through all keys and values of this moment, or those of one virtual node: by virtual node, then by key.

        As ``apply`` is, it is called by one thread at a time; whoever goes through it may do so beside writes.
        """
        count = self.description.vnode_count
        if vnode is not None and not 0 <= vnode < count:
            raise InvalidInput(
                f"there is no virtual node {vnode}", code="state.invalid", hint=f"they are 0 to {count - 1}"
            )
        first, end = (0, count) if vnode is None else (vnode, vnode + 1)
        return self._counted(self._rocks.scan(prefix(first), prefix(end)), self.key_count if vnode is None else None)

    def _counted(self, rows: Iterator[tuple[bytes, bytes]], expected: int | None) -> Iterator[tuple[bytes, bytes]]:
        found = 0
        for key, value in rows:
            found += 1
            yield key[PREFIX_BYTES:], value
        if expected is not None and found != expected:
            raise Corrupt(
                f"the keyed state in {self.folder} has {found} keys, and should have {expected}",
                code="keyed.damaged",
                hint="restore a checkpoint of it, or the folder from a copy",
            )

    def digest(self, vnode: int) -> str:
        """Digest what one virtual node holds: equal content, however it came about, has an equal digest."""
        digest = hashlib.sha256()
        for key, value in self.scan(vnode):
            for part in (key, value):
                digest.update(len(part).to_bytes(8, "big"))
                digest.update(part)
        return digest.hexdigest()

    def checkpoint(self, folder: Path) -> Snapshot:
        """Make a copy of it as it is now in a folder that is not there yet; within a disk, of hard links."""
        snapshot = Snapshot(wal_position=self.wal_position, state=self.description)
        self._rocks.checkpoint(folder)
        (folder / DESCRIPTION_FILE).write_bytes(encode(snapshot))
        return snapshot

    def close(self) -> None:
        self._rocks.close()

    def _get(self, stored: list[bytes]) -> list[bytes | None]:
        """Get values, a bounded number at once: RocksDB holds on to a block of a table for each, until all are read."""
        slices = [self._rocks.get(stored[at : at + _READ_AT_ONCE]) for at in range(0, len(stored), _READ_AT_ONCE)]
        return list(chain.from_iterable(slices))

    def _stored(self, key: bytes) -> bytes:
        prefixes = self._prefixes
        return prefixes[vnode_of(key, len(prefixes))] + key


def check_size(what: str, data: Any, limit: int) -> None:
    """Refuse what is not bytes, or more of them than there may be."""
    if not isinstance(data, bytes):
        raise InvalidInput(f"a {what} must be bytes, not {type(data).__name__}", code="state.invalid")
    if len(data) > limit:
        raise InvalidInput(
            f"a {what} has {len(data)} bytes, and may have {limit}",
            code="state.invalid",
            hint="keep large values in objects of their own, and their addresses here",
        )


def _last_of(changes: Iterable[Change]) -> dict[bytes, bytes | None]:
    pairs = list(changes)
    try:
        return dict(pairs)
    except (TypeError, ValueError):
        raise InvalidInput(
            "changes must be pairs of bytes: a key, and a value or None",
            code="state.invalid",
            hint='write([(b"a", b"1"), (b"b", None)]); of a dictionary, its items()',
        ) from None


def _check_offsets(offsets: Offsets) -> dict[str, dict[str, str]]:
    """Take offsets by source; what is not text would come back changed."""
    if isinstance(offsets, Mapping) and all(isinstance(pairs, Mapping) for pairs in offsets.values()):
        taken = {source: dict(pairs) for source, pairs in offsets.items()}
        if all(type(value) is str for pairs in taken.values() for value in pairs.values()):
            return taken
    raise InvalidInput(
        f"the offsets are {offsets!r:.100}",
        code="state.invalid",
        hint='give text by source: offsets={"orders": {"row": "3"}}',
    )


def _described(rocks: Rocks, vnode_count: int) -> Description:
    if any(rocks.scan(b"", b"\xff\xff\xff")):
        raise Unsupported(
            f"{rocks.folder} is a database of something else",
            code="keyed.unsupported",
            hint="see that the folder is the one that a keyed state was in",
        )
    return msgspec.structs.replace(_NEW, vnode_count=vnode_count)
