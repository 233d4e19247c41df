"""LCB1 version 3, the container of small artifacts: many in one object, each readable by range, with a digest.

Byte tables and the reasons are in ``docs/spec/batch.md``. Every size is checked against the bounds below, and against
the bytes at hand, before anything is allocated.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

import crc32c
import lz4.block
import msgspec

from ..errors import Corrupt, InvalidInput
from .sealed import unknown_version

MAGIC = b"LCB1"
VERSION = 3
MAX_ENTRIES = 1 << 16
MAX_KEY_BYTES = 1024
MAX_ENTRY_BYTES = 64 * 1024 * 1024
MAX_BATCH_BYTES = 256 * 1024 * 1024

_RAW, _LZ4 = 0, 1
# LZ4 cannot pack tighter, so an entry that claims more is false, and nothing is allocated for it.
_MAX_RATIO = 255
# magic, version, entry count, reserved (0), index size, body size, CRC32C of the body;
# then the CRC32C of all that and the index.
_HEAD = struct.Struct("<4sIIIQQI")
_CRC = struct.Struct("<I")
_KEY_LENGTH = struct.Struct("<I")
# codec, offset in the body, stored size, size, SHA-256
_ENTRY = struct.Struct("<BQQQ32s")
HEADER_BYTES = _HEAD.size + _CRC.size


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Where one artifact lies in the batch; ``offset`` counts from the batch's first byte."""

    key: str
    codec: int
    offset: int
    stored_bytes: int
    size_bytes: int
    sha256: str


def encode(entries: Mapping[str, bytes]) -> tuple[bytes, dict[str, Entry]]:
    """Encode the entries, sorted by key, so that equal content gives equal bytes; tell what ``decode_index`` would."""
    if not 0 < len(entries) <= MAX_ENTRIES:
        raise InvalidInput(
            f"a batch holds 1 to {MAX_ENTRIES} entries, not {len(entries)}", code="checkpoint.unwritable"
        )
    index, body, offset, places = bytearray(), [], 0, list[tuple[bytes, int, int, int, int, bytes]]()
    for key, data in sorted((_encode_key(key), data) for key, data in entries.items()):
        if not 0 < len(key) <= MAX_KEY_BYTES or len(data) > MAX_ENTRY_BYTES:
            raise InvalidInput(f"an entry of {len(data)} bytes does not fit a batch", code="checkpoint.unwritable")
        packed = lz4.block.compress(data, store_size=False)
        codec, stored = (_LZ4, packed) if len(packed) < len(data) else (_RAW, data)
        index += _KEY_LENGTH.pack(len(key)) + key
        place = codec, offset, len(stored), len(data), hashlib.sha256(data).digest()
        index += _ENTRY.pack(*place)
        places.append((key, *place))
        body.append(stored)
        offset += len(stored)
    if HEADER_BYTES + len(index) + offset > MAX_BATCH_BYTES:
        raise InvalidInput(f"a batch of {offset} bytes is past the limit", code="checkpoint.unwritable")
    crc = 0
    for stored in body:
        crc = crc32c.crc32c(stored, crc)
    head = _HEAD.pack(MAGIC, VERSION, len(body), 0, len(index), offset, crc)
    packed = b"".join((head, _CRC.pack(crc32c.crc32c(index, crc32c.crc32c(head))), index, *body))
    begin = HEADER_BYTES + len(index)
    return packed, {
        (text := key.decode()): Entry(
            key=text, codec=codec, offset=begin + at, stored_bytes=stored_bytes, size_bytes=size, sha256=digest.hex()
        )
        for key, codec, at, stored_bytes, size, digest in places
    }


def _encode_key(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{key!r} cannot be a key: it is not valid Unicode", code="name.invalid") from None


def decode_index(data: bytes) -> dict[str, Entry]:
    """Decode the head and the index; ``data`` is the batch, or at least that much of it."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC:
        raise _corrupt("does not begin as a batch does")
    _, version, count, reserved, index_size, body_size, _ = _HEAD.unpack_from(data)
    if version != VERSION:
        raise unknown_version("the batch", version, VERSION, code="format.unknown_version")
    if (
        reserved
        or not 0 < count <= MAX_ENTRIES
        or HEADER_BYTES + index_size + body_size > MAX_BATCH_BYTES
        or index_size < count * (_KEY_LENGTH.size + 1 + _ENTRY.size)
    ):
        raise _corrupt("has a head with impossible sizes")
    if len(data) < HEADER_BYTES + index_size:
        raise _corrupt("is cut off inside its index")
    index = memoryview(data)[HEADER_BYTES : HEADER_BYTES + index_size]
    (expected,) = _CRC.unpack_from(data, _HEAD.size)
    if crc32c.crc32c(index, crc32c.crc32c(data[: _HEAD.size])) != expected:
        raise _corrupt("has a damaged head or index")
    return _decode_entries(index, count, HEADER_BYTES + index_size, body_size)


def _decode_entries(index: memoryview, count: int, body_start: int, body_size: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    at = offset = 0
    previous = b""
    for _ in range(count):
        if at + _KEY_LENGTH.size > len(index):
            raise _corrupt("has an index that ends too early")
        (key_size,) = _KEY_LENGTH.unpack_from(index, at)
        at += _KEY_LENGTH.size
        if not 0 < key_size <= MAX_KEY_BYTES or at + key_size + _ENTRY.size > len(index):
            raise _corrupt("has an entry past its index")
        key = bytes(index[at : at + key_size])
        codec, start, stored, size, digest = _ENTRY.unpack_from(index, at + key_size)
        at += key_size + _ENTRY.size
        fits = start == offset and stored <= body_size - offset and size <= min(MAX_ENTRY_BYTES, stored * _MAX_RATIO)
        if key <= previous or not fits or codec not in (_RAW, _LZ4) or (codec == _RAW and stored != size):
            raise _corrupt("has an index that contradicts itself")
        try:
            text = key.decode()
        except UnicodeDecodeError:
            raise _corrupt("has a key that is not UTF-8") from None
        entries[text] = Entry(
            key=text,
            codec=codec,
            offset=body_start + start,
            stored_bytes=stored,
            size_bytes=size,
            sha256=digest.hex(),
        )
        previous = key
        offset += stored
    if at != len(index) or offset != body_size:
        raise _corrupt("has an index that does not cover its body")
    return entries


def decode_entry(entry: Entry, stored: bytes | memoryview) -> bytes:
    """Decode one entry from its stored bytes, and verify its digest."""
    if len(stored) != entry.stored_bytes:
        raise _corrupt(f"is cut off at the entry {entry.key!r}")
    data = bytes(stored)
    if entry.codec == _LZ4:
        try:
            data = lz4.block.decompress(data, uncompressed_size=entry.size_bytes)
        except (lz4.block.LZ4BlockError, ValueError):
            raise _corrupt(f"has an entry {entry.key!r} that does not decompress") from None
    if len(data) != entry.size_bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _corrupt(f"has a damaged entry {entry.key!r}")
    return data


def decode(data: bytes) -> dict[str, bytes]:
    """Decode a whole batch; a byte too many or too few is an error."""
    entries = decode_index(data)
    *_, index_size, body_size, body_crc = _HEAD.unpack_from(data)
    view = memoryview(data)
    body = view[HEADER_BYTES + index_size :]
    if len(body) != body_size or crc32c.crc32c(body) != body_crc:
        raise _corrupt("has a damaged body")
    return {
        key: decode_entry(entry, view[entry.offset : entry.offset + entry.stored_bytes])
        for key, entry in entries.items()
    }


def _corrupt(what: str) -> Corrupt:
    return Corrupt(f"the batch {what}", code="object.damaged", hint="slackwater verify URL --read-data")
