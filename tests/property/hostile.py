"""A decoder before hostile bytes: a document or an error of ours, in bounded memory and time."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable

from hypothesis import strategies as st

from slackwater.errors import SlackwaterError

# The smallest things that JSON can name, like [], take 24 times their text as objects; the rest are copies of the text.
MEMORY_PER_BYTE = 48
MEMORY_BYTES = 512 * 1024
# Of the process alone, so that a busy machine changes nothing. What is quadratic needs hours for a megabyte.
CPU_S_PER_MIB = 20.0

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


def survives(decode: Callable[[bytes], object], data: bytes) -> None:
    """See that ``decode`` ends with a document or an error of ours, and takes no more memory than such bytes may."""
    tracemalloc.start()
    try:
        with contextlib.suppress(SlackwaterError):
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES + MEMORY_PER_BYTE * len(data), f"{peak} bytes for {len(data)}"


def ends_soon(decode: Callable[[bytes], object], data: bytes) -> None:
    """See that ``decode`` takes a time that grows with the bytes, and no faster."""
    began = time.process_time()
    with contextlib.suppress(SlackwaterError):
        decode(data)
    assert time.process_time() - began < CPU_S_PER_MIB * max(1.0, len(data) / 2**20)


def large(good: bytes, size: int = 2**20) -> dict[str, bytes]:
    """Make large documents, of a kind that each is hard on some decoder; ``good`` is one that is whole."""
    half = size // 2
    return {
        "zeros": b"\x00" * size,
        "brackets": b"[" * half + b"]" * half,
        "braces": b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
        "digits": b"1" * size,
        "text": b'"' + b"a" * size + b'"',
        "escapes": b'"' + b"\\u0041" * (size // 6) + b'"',
        "lists": b"[" + b"[]," * (size // 3) + b"[]]",
        "objects": b"[" + b"{}," * (size // 3) + b"{}]",
        "names": b"{" + b",".join(b'"%d":0' % number for number in range(size // 10)) + b"}",
        "blanks": b" " * size + good,
        "again": good * (size // len(good)),
    }
