"""LCB1 versions 1 and 2 of LaminarDB: read strictly, written as LaminarDB writes them."""

from __future__ import annotations

import struct
import tracemalloc

import crc32c
import lz4.block
import pytest

from slackwater.errors import Corrupt, InvalidInput, Unsupported
from slackwater.laminar import lcb1
from slackwater.laminar.findings import fatal
from tests.laminar_findings import tell


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


TWO = frames((b"a", b"1"), (b"b", b"2"))


def test_lz4_roundtrip():
    entries = [
        ("partition-0/state", b"\x01" * 500),
        ("partition-1/state", b"\x02" * 300),
        ("partition-2/agg", b"\x03" * 200),
    ]
    decoded, findings = lcb1.decode(lcb1.encode(entries))
    assert (decoded.version, decoded.entries, findings) == (2, entries, [])


def test_decode_invalid_magic():
    with pytest.raises(Corrupt, match="does not begin as a batch"):
        lcb1.decode(b"XXXX\x01" + bytes(15))


def test_decode_too_short():
    for size in range(len(batch(TWO, count=2))):
        with pytest.raises(Corrupt):
            lcb1.decode(batch(TWO, count=2)[:size])


def test_decode_bad_version():
    with pytest.raises(Unsupported) as caught:
        lcb1.decode(b"LCB1" + struct.pack("<IIII", 99, 0, 0, 0))
    assert tell(caught.value) == "unknown version"


def test_compression_reduces_size():
    assert len(lcb1.encode([("big", bytes(10_000))])) < 200


def test_the_header_has_twenty_bytes_and_the_threshold_eight_mebibytes():
    assert (lcb1.HEADER_BYTES, lcb1.DEFAULT_FLUSH_THRESHOLD, lcb1.VERSION) == (20, 8 * 1024 * 1024, 2)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_D2_a_count_that_is_not_that_of_the_entries_is_refused(count):
    with pytest.raises(Corrupt) as caught:
        lcb1.decode(batch(TWO, count=count))
    assert tell(caught.value) == "batch damaged"


def test_D2_bytes_after_the_block_and_after_the_entries_are_refused():
    for data in (batch(TWO, count=2, tail=b"\x00"), batch(TWO + b"\x00", count=2)):
        with pytest.raises(Corrupt):
            lcb1.decode(data)


def test_D3_what_does_not_fit_is_refused_and_never_cut(monkeypatch):
    monkeypatch.setattr(lcb1, "MAX_BATCH_BYTES", 100)
    with pytest.raises(InvalidInput) as caught:
        lcb1.encode([("k", bytes(100))])
    assert tell(caught.value) == "unwritable"


@pytest.mark.parametrize(
    "data",
    [
        batch(TWO, count=2**32 - 1),
        batch(TWO, count=2, size=2**32 - 1),
        batch(TWO, count=2, prefix=2**32 - 1),
        batch(TWO, count=2, size=2**32 - 1, prefix=2**32 - 1),
        batch(TWO, count=2, size=lcb1.MAX_BATCH_BYTES, prefix=lcb1.MAX_BATCH_BYTES),
        batch(struct.pack("<I", 2**32 - 1) + bytes(8), count=1),
        batch(frames((b"a", b"1")) + struct.pack("<II", 0, 2**31), count=2),
    ],
)
def test_D4_sizes_that_are_claimed_are_refused_before_anything_is_allocated(data):
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            lcb1.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 256 * 1024
    finally:
        tracemalloc.stop()


def test_D5_version_1_has_no_checksum_and_is_read_only_when_it_is_allowed():
    data = batch(TWO, count=2, version=1)
    with pytest.raises(Unsupported) as caught:
        lcb1.decode(data)
    assert tell(caught.value) == "batch unchecked"
    decoded, findings = lcb1.decode(data, allow_unchecked=True)
    assert decoded.entries == [("a", b"1"), ("b", b"2")]
    assert [(tell(f), f.severity) for f in findings] == [("no checksum", "warning")]


def test_D5_a_version_1_header_of_sixteen_bytes_is_enough():
    empty = b"LCB1" + struct.pack("<III", 1, 0, 0) + struct.pack("<I", 0) + b"\x00"
    assert lcb1.decode(empty, allow_unchecked=True)[0].entries == []


def test_D5_a_writer_that_follows_laminar_own_document_is_refused_and_not_misread():
    # The document has a CRC field and version 1; the code reads that field as the size that LZ4 prepends.
    true = batch(TWO, count=2)
    with pytest.raises(Corrupt):
        lcb1.decode(true[:4] + struct.pack("<I", 1) + true[8:], allow_unchecked=True)


def test_D6_keys_are_strict_utf_8_both_ways():
    with pytest.raises(Corrupt, match="UTF-8"):
        lcb1.decode(batch(frames((b"k\xff", b"1")), count=1))
    with pytest.raises(InvalidInput) as caught:
        lcb1.encode([("\ud800", b"1")])
    assert tell(caught.value) == "unwritable"


def test_D7_a_key_that_comes_twice_is_fatal():
    decoded, findings = lcb1.decode(batch(frames((b"a", b"1"), (b"a", b"2")), count=2))
    assert len(decoded.entries) == 2
    assert [tell(f) for f in fatal(findings)] == ["duplicate key"]


def test_a_body_that_is_no_block_is_refused():
    packed = struct.pack("<I", 20) + b"\xff" * 9
    data = b"LCB1" + struct.pack("<III", 2, 1, 20) + struct.pack("<I", crc32c.crc32c(packed)) + packed
    with pytest.raises(Corrupt, match="does not decompress"):
        lcb1.decode(data)
