"""Where an inbox keeps what, byte by byte: docs/spec/inbox.md."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..errors import SlackwaterError
from .errors import OWNER

DATABASE = "messages"
DESCRIPTION = b"d"
_MESSAGES, _KEY, _INDEX, _GAP = b"m", b"k", b"x", b"g"
# Beyond the keys of all messages.
MESSAGES_END = b"n"
# An idempotency key: that of a message at a position.
_AT, _AT_BYTES = b"p", 33
_HEADER, _LENGTH_BYTES = struct.Struct(">QQI"), 4
_ENTRY = struct.Struct(">QQQQ32s")


class Block(NamedTuple):
    """Messages that were appended together. ``total_bytes`` are those of all messages ever, up to the last of these."""

    first: int
    received_at_ms: int
    total_bytes: int
    messages: list[bytes]

    @property
    def last(self) -> int:
        return self.first + len(self.messages) - 1

    def bytes_up_to(self, position: int) -> int:
        """Tell how many bytes all messages ever have, up to one of these."""
        return self.total_bytes - sum(map(len, self.messages[position - self.first + 1 :]))


class KeyEntry(NamedTuple):
    """What an idempotency key names, which number it has, and when it came by the receivers' running time."""

    first: int
    last: int
    number: int
    uptime_ms: int
    digest: bytes


def messages_key(last: int) -> bytes:
    """Name messages that were appended together by the last of them: the first key from a position on has it."""
    return _MESSAGES + last.to_bytes(8, "big")


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


def encode_messages(received_at_ms: int, total_bytes: int, messages: Sequence[bytes]) -> bytes:
    """Encode messages with the bytes of all up to the last, so that a range can be dropped without being read."""
    lengths = struct.pack(f">{len(messages)}I", *map(len, messages))
    return b"".join([_HEADER.pack(received_at_ms, total_bytes, len(messages)), lengths, *messages])


def decode_messages(key: bytes, data: bytes) -> Block:
    """Decode what ``encode_messages`` gave, whole or not at all.

    >>> decode_messages(messages_key(7), encode_messages(1, 20, [b"a", b"", b"bc"]))
    Block(first=5, received_at_ms=1, total_bytes=20, messages=[b'a', b'', b'bc'])
    """
    if len(data) < _HEADER.size:
        raise _damaged("record of messages")
    received_at_ms, total_bytes, count = _HEADER.unpack_from(data)
    begin = _HEADER.size + _LENGTH_BYTES * count
    if count == 0 or begin > len(data):
        raise _damaged("record of messages")
    ends = list(accumulate(struct.unpack_from(f">{count}I", data, _HEADER.size), initial=begin))
    if ends[-1] != len(data):
        raise _damaged("record of messages")
    messages = [data[start:end] for start, end in pairwise(ends)]
    return Block(int.from_bytes(key[1:], "big") - count + 1, received_at_ms, total_bytes, messages)


def encode_key(entry: KeyEntry) -> bytes:
    return _ENTRY.pack(*entry)


def decode_key(data: bytes) -> KeyEntry:
    if len(data) != _ENTRY.size:
        raise _damaged("key")
    return KeyEntry(*_ENTRY.unpack(data))


def _damaged(what: str) -> SlackwaterError:
    return OWNER.damaged(f"a {what} of an inbox does not decode")
