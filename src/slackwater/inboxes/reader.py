"""Read an inbox beside its receiver: every message of a range, or an error, never fewer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..errors import Code, Corrupt, NotFound, SlackwaterError
from ..rocks.database import Rocks
from ..settings import MIB
from . import documents, layout
from .documents import Description, Gap, Published
from .errors import OWNER
from .files import FIRST_ITS_RECEIVER, read_covered, read_published

_CHUNK_MESSAGES = 10_000
_CHUNK_BYTES = 4 * MIB
# The receiver's files move under a reader, who then sees a part: for so long it looks again.
PATIENCE_S = 5.0


class Message(NamedTuple):
    position: int
    received_at_ms: int
    content: bytes


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What an inbox holds, for people and tools."""

    description: Description
    covered: int | None
    gaps: list[Gap]


def check_range(folder: Path, published: Published, inbox: str, begin: int, end: int | None = None) -> None:
    """Refuse another inbox than the one that was read before, and what is not there (any more)."""
    if published.inbox != inbox:
        raise Corrupt(
            f"the inbox in {folder} is {published.inbox}, and {inbox} was read from there before",
            code=Code.INBOX_SWAPPED,
            hint="put back the folder that was there, or begin the pipeline anew under another queryName",
        )
    if begin < published.dropped:
        raise NotFound(
            f"messages from {begin + 1} on are asked of the inbox in {folder}, and it has dropped those up to "
            f"{published.dropped}",
            code="inbox.dropped",
            hint="restore the folder from a copy that has them; no checkpoint that needed them was live",
        )
    if max(begin, end or 0) > published.position:
        raise Corrupt(
            f"the inbox in {folder} ends at {published.position}, and was read up to {max(begin, end or 0)} before",
            code="inbox.damaged",
            hint=f"{FIRST_ITS_RECEIVER}; otherwise the folder is an older copy: put back the one that was there",
        )


def read_messages(
    folder: Path, inbox: str, begin: int, end: int, *, patience_s: float = PATIENCE_S
) -> Iterator[list[Message]]:
    """Read the messages after ``begin`` up to ``end``, chunk by chunk, with no position left out."""
    deadline = time.monotonic() + patience_s
    while begin < end:
        try:
            with closing(Rocks(folder / layout.DATABASE, OWNER, read_only=True)) as rocks:
                for chunk in chunks_of(rocks, inbox, begin, end):
                    yield chunk
                    begin, deadline = chunk[-1].position, time.monotonic() + patience_s
        except SlackwaterError as error:
            if isinstance(error, NotFound) or error.code == Code.INBOX_SWAPPED or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def chunks_of(rocks: Rocks, inbox: str, begin: int, end: int) -> Iterator[list[Message]]:
    description = read_description(rocks)
    published = Published(inbox=description.uid, position=max(description.last, end), dropped=description.dropped)
    check_range(rocks.folder.parent, published, inbox, begin)
    chunk: list[Message] = []
    size_bytes = 0
    for key, data in rocks.scan(layout.messages_key(begin + 1), layout.MESSAGES_END):
        block = layout.decode_messages(key, data)
        if block.first > begin + 1:
            break
        # What was appended together may have been read, or dropped, in part.
        wanted = block.messages[begin + 1 - block.first : end + 1 - block.first]
        chunk += [Message(at, block.received_at_ms, content) for at, content in enumerate(wanted, begin + 1)]
        begin += len(wanted)
        size_bytes += sum(map(len, wanted))
        if begin == end:
            break
        if len(chunk) >= _CHUNK_MESSAGES or size_bytes >= _CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk
    if begin != end:
        raise Corrupt(
            f"the inbox in {rocks.folder.parent} has no message {begin + 1}, and should have all up to {end}",
            code="inbox.damaged",
            hint="restart its receiver, which says what is damaged; restore the folder from a copy",
        )


def read_contents(folder: Path) -> Contents:
    """Read what an inbox holds, beside its receiver or without one."""
    read_published(folder)  # says that there is none, before RocksDB does
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with closing(Rocks(folder / layout.DATABASE, OWNER, read_only=True)) as rocks:
                description = read_description(rocks)
                found = rocks.scan(layout.gap_key(0), layout.gap_key(description.gaps))
                gaps = [documents.decode(data, Gap) for _, data in found]
            break
        except SlackwaterError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    covered = read_covered(folder)
    return Contents(description=description, covered=covered.position if covered else None, gaps=gaps)


def read_description(rocks: Rocks) -> Description:
    """Read what is known of an inbox as a whole."""
    (stored,) = rocks.get([layout.DESCRIPTION])
    if stored is None:
        raise OWNER.unreadable(f"{rocks.folder} is a database of something else")
    return documents.decode(stored, Description)
