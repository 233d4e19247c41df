"""Where an inbox keeps what, byte by byte: docs/spec/inbox.md."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import NamedTuple

from ..errors import Corrupt, SlackwaterError, Unsupported

DATABASE = "messages"
DESCRIPTION = b"d"
_MESSAGE, _KEY, _INDEX, _GAP = b"m", b"k", b"x", b"g"
# An idempotency key: that of a message at a position.
_AT, _AT_BYTES = b"p", 33
_HEADER = struct.Struct(">QQ")
_ENTRY = struct.Struct(">QQQQ32s")


class KeyEntry(NamedTuple):
    """What an idempotency key names, which number it has, and when it came by the receivers' running time."""

    first: int
    last: int
    number: int
    uptime_ms: int
    digest: bytes


def message_key(position: int) -> bytes:
    return _MESSAGE + position.to_bytes(8, "big")


def key_key(key: bytes) -> bytes:
    return _KEY + key


def index_key(number: int) -> bytes:
    return _INDEX + number.to_bytes(8, "big")


def gap_key(number: int) -> bytes:
    return _GAP + number.to_bytes(8, "big")


def position_key(content: bytes, position: str) -> bytes:
    """Make the idempotency key of a message from an upstream that gives positions.

    It has the content, too: an upstream may begin to count anew, or give one position to several messages.
    """
    return _AT + hashlib.sha256(content).digest() + position.encode()


def is_at(key: bytes, position: str | None) -> bool:
    """Tell whether an idempotency key is that of a message at a position."""
    return position is not None and key.startswith(_AT) and key[_AT_BYTES:] == position.encode()


def parse_number(key: bytes) -> int:
    return int.from_bytes(key[1:], "big")


def encode_message(received_at_ms: int, total_bytes: int, message: bytes) -> bytes:
    """Encode a message with the bytes of all up to it, so that a range can be dropped without being read."""
    return _HEADER.pack(received_at_ms, total_bytes) + message


def decode_message(data: bytes) -> tuple[int, int, bytes]:
    if len(data) < _HEADER.size:
        raise _damaged("message")
    return (*_HEADER.unpack_from(data), data[_HEADER.size :])


def encode_key(entry: KeyEntry) -> bytes:
    return _ENTRY.pack(*entry)


def decode_key(data: bytes) -> KeyEntry:
    if len(data) != _ENTRY.size:
        raise _damaged("key")
    return KeyEntry(*_ENTRY.unpack(data))


def not_an_inbox(folder: Path) -> SlackwaterError:
    return Unsupported(
        f"{folder} is a database of something else",
        code="inbox.unreadable",
        hint="name the folder that a receiver writes to",
    )


def _damaged(what: str) -> Corrupt:
    return Corrupt(
        f"a {what} of an inbox is too short",
        code="inbox.damaged",
        hint="restore the folder from a copy; what was received since then is lost",
    )
