"""Batches of LaminarDB: the hand-made ones of ``laminar/lcb1.json``, and any others, written from its byte table."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

import crc32c
import lz4.block

from tests.golden.samples import FOLDER

_VECTORS = json.loads((FOLDER / "laminar" / "lcb1.json").read_text(encoding="utf-8"))["vectors"]


def bytes_of(name: str) -> bytes:
    """Put a vector's lines together: each is bytes in hex, two spaces, and why."""
    return b"".join(bytes.fromhex(line.split("  ")[0]) for line in _VECTORS[name]["bytes"])


VERSION_1 = bytes_of("one entry, version 1")
VERSION_2 = bytes_of("two entries")


def frames(*entries: tuple[bytes, bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(k)) + k + struct.pack("<I", len(d)) + d for k, d in entries)


def batch(
    body: bytes, *, count: int, version: int = 2, size: int | None = None, prefix: int | None = None, tail: bytes = b""
) -> bytes:
    """A batch from the byte table of LaminarDB, whose checksum fits, and which may lie."""
    stored = lz4.block.compress(body, store_size=False) + tail
    packed = struct.pack("<I", len(body) if prefix is None else prefix) + stored
    head = b"LCB1" + struct.pack("<III", version, count, len(body) if size is None else size)
    return head + (struct.pack("<I", crc32c.crc32c(packed)) if version == 2 else b"") + packed


def write(entries: Sequence[tuple[str, bytes]]) -> bytes:
    """A batch of version 2 that tells the truth."""
    return batch(frames(*((key.encode(), data) for key, data in entries)), count=len(entries))
