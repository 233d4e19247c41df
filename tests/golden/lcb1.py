"""LCB1 version 3 written from the byte tables of ``docs/spec/batch.md``, apart from the product, and able to lie."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple

import crc32c


class Item(NamedTuple):
    """One entry as it will stand in the index, true or not."""

    key: bytes
    stored: bytes
    codec: int = 0
    size: int | None = None
    sha256: bytes | None = None
    offset: int | None = None
    stored_bytes: int | None = None


def write(
    items: list[Item], *, more_index: bytes = b"", more_body: bytes = b"", tail: bytes = b"", **lies: Any
) -> bytes:
    """Write a batch whose checksums fit its bytes; ``lies`` replace fields of the head before they are summed up."""
    index, body = b"", b""
    for item in items:
        index += struct.pack("<I", len(item.key)) + item.key
        index += struct.pack(
            "<BQQQ",
            item.codec,
            len(body) if item.offset is None else item.offset,
            len(item.stored) if item.stored_bytes is None else item.stored_bytes,
            len(item.stored) if item.size is None else item.size,
        )
        index += hashlib.sha256(item.stored).digest() if item.sha256 is None else item.sha256
        body += item.stored
    index, body = index + more_index, body + more_body
    head = {
        "magic": b"LCB1",
        "version": 3,
        "count": len(items),
        "reserved": 0,
        "index_bytes": len(index),
        "body_bytes": len(body),
        "body_crc": crc32c.crc32c(body),
        **lies,
    }
    packed = struct.pack("<4sIIIQQI", *head.values())
    return packed + struct.pack("<I", crc32c.crc32c(packed + index)) + index + body + tail
