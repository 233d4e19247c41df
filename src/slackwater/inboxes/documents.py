"""The documents of an inbox: what is known of it as a whole, and what its receiver and its pipeline tell each other."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..formats import sealed
from ..formats.ids import Count, RandomId
from .errors import OWNER

VERSION: Final = 2
# Beside the database: how far a reader may read, by the receiver; how far the receiver may drop, by the pipeline.
PUBLISHED_FILE = "position.json"
COVERED_FILE = "covered.json"
MAX_DOCUMENT_BYTES = 64 * 1024
# A position that an upstream gave to a message.
Token = Annotated[str, Meta(max_length=1024)]


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of an inbox as a whole. Positions begin with 1; 0 is before the first."""

    uid: RandomId
    # The newest position, and the newest that was dropped.
    last: Count = 0
    dropped: Count = 0
    # The bytes of all messages up to these two positions.
    total_bytes: Count = 0
    dropped_bytes: Count = 0
    # Keys that name messages, and how many of them were dropped again: the index of keys is numbered from there.
    keys: Count = 0
    keys_dropped: Count = 0
    # What was not taken, and what had been taken before.
    garbage: Count = 0
    oversized: Count = 0
    repeated: Count = 0
    # A clock that never goes back, and for how long receivers ran.
    now_ms: Count = 0
    uptime_ms: Count = 0
    # Until when messages were received, and why none are any more: null while some are.
    alive_at_ms: Count | None = None
    away: Annotated[str, Meta(max_length=300)] | None = None
    gaps: Count = 0
    # Where the upstream is asked to go on, in its own words, and the position at which more may come.
    token: Token | None = None
    open_token: Token | None = None
    # Why messages had to wait when some last came: null since some were taken, or room was made.
    full: Annotated[str, Meta(max_length=300)] | None = None
    version: Literal[2] = VERSION

    @property
    def held(self) -> int:
        """The messages that are there: not dropped yet."""
        return self.last - self.dropped

    @property
    def held_bytes(self) -> int:
        return self.total_bytes - self.dropped_bytes

    @property
    def keys_held(self) -> int:
        return self.keys - self.keys_dropped


class Gap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A time in which nothing was received, and the position after which that was."""

    from_ms: Count
    to_ms: Count
    after: Count
    why: Annotated[str, Meta(max_length=300)]
    version: Literal[2] = VERSION


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a reader may rely on: all from after ``dropped`` up to ``position`` is durable."""

    inbox: RandomId
    position: Count
    dropped: Count
    version: Literal[2] = VERSION


class Covered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pipeline, by its uid, does not need any more: all up to ``position``."""

    inbox: RandomId
    position: Count
    pipeline: RandomId
    version: Literal[2] = VERSION


Document = Description | Gap | Published | Covered
T = TypeVar("T", Description, Gap, Published, Covered)


def encode(document: Document) -> bytes:
    """Encode to canonical, sealed bytes.

    >>> encode(Published(inbox=32 * "0", position=7, dropped=2))[:75]
    b'{"body":{"dropped":2,"inbox":"00000000000000000000000000000000","position":'
    """
    return sealed.encode(document)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode what ``encode`` gave, whole or not at all."""
    return sealed.decode(
        data,
        kind,
        version=VERSION,
        what=f"the {kind.__name__.lower()} document of the inbox",
        damaged=OWNER.damaged,
        unknown_code="inbox.unsupported",
        older_hint="let its pipeline read it to the end with the release that wrote it; then begin a new folder, and a "
        "pipeline under another queryName",
    )
