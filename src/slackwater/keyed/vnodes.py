"""Virtual nodes: which of the 256 parts of a keyed state a key belongs to. ``docs/spec/keyed.md`` freezes this."""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

VNODE_COUNT: Final = 256
PREFIX_BYTES = 2


def vnode_of(key: bytes, count: int = VNODE_COUNT) -> int:
    """Tell the virtual node of a key: its CRC-32C, modulo their number.

    >>> vnode_of(b"123456789"), vnode_of(b""), vnode_of(b"123456789", 1)
    (131, 0, 0)
    """
    return crc32c(key) % count


def prefix(vnode: int) -> bytes:
    """Format the two bytes that the stored keys of a virtual node begin with, so that each is one range."""
    return vnode.to_bytes(PREFIX_BYTES, "big")
