"""One log of RocksDB: is its end a write that a crash has torn, or damage?

A torn write was never acknowledged and may go; a damaged record may have been, and nothing may go on without it.
RocksDB itself takes a record whose length was damaged for a torn one, and drops all that follows it in silence.

Its list of tables, the MANIFEST, is such a log, too. A log is a sequence of blocks of 32 KiB, each a sequence of
fragments: masked CRC-32C of type and payload (4 bytes, little-endian), length of the payload (2), type (1), payload.
Less than a header at the end of a block is zeros.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from crc32c import crc32c

BLOCK_BYTES = 32 * 1024
HEADER_BYTES = 7
# What a disk writes or does not write at power loss, at the least.
SECTOR_BYTES = 512
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MASK = 0xA282EAD8
_TYPE = re.compile(rb"[\x01-\x04]")


class Damage(Exception):
    """The log is damaged at a byte."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class _Fragment(NamedTuple):
    crc: int
    length: int
    kind: int


def find_end(data: bytes) -> int:
    """Find where the sound part of a log ends: its size, or the beginning of a write that was torn.

    Damage is :class:`Damage`: something sound comes after it, or it cannot have come from a write that was cut short.
    """
    at = end = 0
    inside = False
    while at < len(data):
        room = BLOCK_BYTES - at % BLOCK_BYTES
        if room < HEADER_BYTES:
            if any(data[at : at + room]):
                raise Damage(at)
            at += room
            continue
        found = _fragment(data, at)
        if found is None or not _is_sound(data, at, found):
            break
        if found.kind in (_FULL, _FIRST) if inside else found.kind in (_MIDDLE, _LAST):
            raise Damage(at)
        inside = found.kind in (_FIRST, _MIDDLE)
        at += HEADER_BYTES + found.length
        if not inside:
            end = at
    if at < len(data) and not _is_torn(data, at):
        raise Damage(at)
    return end


def _fragment(data: bytes, at: int) -> _Fragment | None:
    if len(data) - at < HEADER_BYTES:
        return None
    return _Fragment(
        int.from_bytes(data[at : at + 4], "little"), int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
    )


def _is_sound(data: bytes, at: int, found: _Fragment) -> bool:
    begin = at + HEADER_BYTES
    end = begin + found.length
    fits = end <= len(data) and found.length <= BLOCK_BYTES - HEADER_BYTES - at % BLOCK_BYTES
    return fits and _FULL <= found.kind <= _LAST and found.crc == _masked(data[at + 6 : end])


def _is_torn(data: bytes, at: int) -> bool:
    """Tell a write that was cut short, or whose end a power loss has left as zeros, from damage."""
    if not any(data[at:]):
        return True  # it was never written
    if _is_sound_somewhere(data, at + 1):
        return False
    written = len(data.rstrip(b"\0"))
    zeros_from = -(-written // SECTOR_BYTES) * SECTOR_BYTES
    if at < zeros_from <= len(data) - HEADER_BYTES:
        return True
    found = _fragment(data, at)
    if found is None:
        return True
    begin = at + HEADER_BYTES
    if begin + found.length <= len(data) or found.length > BLOCK_BYTES - HEADER_BYTES - at % BLOCK_BYTES:
        return False
    # It ends before its end. But if its payload is whole with another length, that was damaged, and nothing is cut.
    lengths = {len(data) - begin, *(found.length ^ 1 << bit for bit in range(16))}
    others = [found._replace(length=length) for length in lengths]
    return not any(_is_sound(data, at, other) for other in others)


def _is_sound_somewhere(data: bytes, at: int) -> bool:
    """Look for a sound fragment at any place: what follows a damaged one need not begin where its length says."""
    for match in _TYPE.finditer(data, at + HEADER_BYTES - 1):
        begin = match.start() - HEADER_BYTES + 1
        found = _fragment(data, begin)
        if found is not None and _is_sound(data, begin, found):
            return True
    return False


def _masked(content: bytes) -> int:
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
