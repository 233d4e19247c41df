"""LCB1 versions 1 and 2 of LaminarDB (``checkpoint_batcher.rs``): read strictly, version 2 written.

Version 1 has no checksum at all, so it is read only when the caller says so. Sizes are bounded, and compared with each
other, before anything is allocated; entries and body must be used up exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import crc32c
import lz4.block
import msgspec

from ..errors import Corrupt, InvalidInput, Unsupported
from ..formats.batch import MAGIC
from .findings import Findings

VERSION = 2
# LaminarDB's own threshold for a flush, before compression.
DEFAULT_FLUSH_THRESHOLD = 8 * 1024 * 1024
MAX_BATCH_BYTES = 256 * 1024 * 1024

_HEAD = struct.Struct("<4sIII")
_SIZE = struct.Struct("<I")
_MAX_RATIO = 255  # LZ4 cannot pack tighter
HEADER_BYTES = _HEAD.size + _SIZE.size


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a batch in its order. Keys are plain text, such as ``partition-0/agg``."""

    version: int
    entries: list[tuple[str, bytes]]


def frame(key: bytes, data: bytes) -> bytes:
    """Encode one entry, as the body of a batch has one after the other."""
    return _SIZE.pack(len(key)) + key + _SIZE.pack(len(data)) + data


def encode(entries: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode version 2, as LaminarDB does; what does not fit its 32-bit fields is refused, never cut (D3)."""
    body, count = bytearray(), 0
    for key, data in entries:
        try:
            name = key.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{key!r} cannot be a key: it is not valid Unicode", code="laminar.invalid") from None
        body += frame(name, data)
        count += 1
        if len(body) > MAX_BATCH_BYTES:
            raise InvalidInput(
                f"a batch of more than {MAX_BATCH_BYTES} bytes is past the limit", code="laminar.invalid"
            )
    packed: bytes = lz4.block.compress(bytes(body), store_size=True)
    return _HEAD.pack(MAGIC, VERSION, count, len(body)) + _SIZE.pack(crc32c.crc32c(packed)) + packed


def decode(data: bytes, *, allow_unchecked: bool = False) -> tuple[Batch, Findings]:
    """Decode a batch of version 2; of version 1 too when ``allow_unchecked`` says so."""
    findings = Findings()
    if len(data) < _HEAD.size or data[:4] != MAGIC:
        raise _corrupt("does not begin as a batch does")
    _, version, count, size = _HEAD.unpack_from(data)
    if version not in (1, VERSION):
        raise Unsupported(
            f"the batch has version {version}, and LaminarDB's are 1 and 2",
            code="laminar.unsupported",
            hint="version 3 is Slackwater's own",
        )
    if version == 1:
        if not allow_unchecked:
            raise Unsupported(
                "the batch has version 1, which has no checksum: a flipped bit of it cannot be noticed",
                code="laminar.unsupported",
                hint="read it with allow_unchecked=True if you trust it all the same",
            )
        findings.unverifiable("version 1 has no checksum", where="version", severity="warning")
    packed = memoryview(data)[_HEAD.size :]
    if version == VERSION:
        if len(packed) < _SIZE.size:
            raise _corrupt("is cut off inside its head")
        (expected,) = _SIZE.unpack_from(packed)
        packed = packed[_SIZE.size :]
        if crc32c.crc32c(packed) != expected:
            raise _corrupt("has a damaged body")
    entries = _split(_unpack(packed, size, count), count)
    keys = [key for key, _ in entries]
    if len(set(keys)) != len(keys):
        findings.damaged("a key comes twice: which of its values counts is not known", where="entries")
    return Batch(version=version, entries=entries), findings


def _unpack(packed: memoryview, size: int, count: int) -> bytes:
    """Unpack the body; its size is said twice, and must be possible, before memory is taken for it (D4)."""
    if len(packed) < _SIZE.size:
        raise _corrupt("is cut off before its body")
    (prefix,) = _SIZE.unpack_from(packed)
    stored = packed[_SIZE.size :]
    if prefix != size or size > min(MAX_BATCH_BYTES, len(stored) * _MAX_RATIO) or count * 2 * _SIZE.size > size:
        raise _corrupt("has impossible sizes")
    try:
        body: bytes = lz4.block.decompress(stored, uncompressed_size=size)
    except (lz4.block.LZ4BlockError, ValueError):
        raise _corrupt("has a body that does not decompress") from None
    if len(body) != size:
        raise _corrupt("has a body of another size")
    return body


def _split(body: bytes, count: int) -> list[tuple[str, bytes]]:
    entries: list[tuple[str, bytes]] = []
    at = 0

    def take(what: str) -> bytes:
        nonlocal at
        if at + _SIZE.size > len(body):
            raise _corrupt(f"ends inside the length of {what}")
        (length,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        if at + length > len(body):
            raise _corrupt(f"ends inside {what}")
        at += length
        return body[at - length : at]

    for _ in range(count):
        key, data = take("a key"), take("an entry")
        try:
            entries.append((key.decode(), data))
        except UnicodeDecodeError:
            raise _corrupt("has a key that is not UTF-8") from None
    if at != len(body):
        raise _corrupt("has more entries than it counts")
    return entries


def _corrupt(what: str) -> Corrupt:
    return Corrupt(
        f"the batch {what}", code="laminar.damaged", hint="restore it from a copy; nothing of it can be trusted"
    )
