"""LCB1 versions 1 and 2 of LaminarDB, read strictly."""

from __future__ import annotations

import struct
import tracemalloc

import crc32c
import pytest

from slackwater.errors import Corrupt, Unsupported
from slackwater.laminar import lcb1
from slackwater.laminar.findings import fatal
from tests.golden.laminar_batches import batch, frames, write
from tests.laminar_findings import tell

TWO = frames((b"a", b"1"), (b"b", b"2"))


def test_lz4_roundtrip():
    entries = [
        ("partition-0/state", b"\x01" * 500),
        ("partition-1/state", b"\x02" * 300),
        ("partition-2/agg", b"\x03" * 200),
    ]
    decoded, findings = lcb1.decode(write(entries))
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


@pytest.mark.parametrize("count", [0, 1, 3])
def test_D2_a_count_that_is_not_that_of_the_entries_is_refused(count):
    with pytest.raises(Corrupt) as caught:
        lcb1.decode(batch(TWO, count=count))
    assert tell(caught.value) == "batch damaged"


def test_D2_bytes_after_the_block_and_after_the_entries_are_refused():
    for data in (batch(TWO, count=2, tail=b"\x00"), batch(TWO + b"\x00", count=2)):
        with pytest.raises(Corrupt):
            lcb1.decode(data)


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


def test_D6_keys_are_strict_utf_8():
    with pytest.raises(Corrupt, match="UTF-8"):
        lcb1.decode(batch(frames((b"k\xff", b"1")), count=1))


def test_D7_a_key_that_comes_twice_is_fatal():
    decoded, findings = lcb1.decode(batch(frames((b"a", b"1"), (b"a", b"2")), count=2))
    assert len(decoded.entries) == 2
    assert [tell(f) for f in fatal(findings)] == ["duplicate key"]


def test_a_body_that_is_no_block_is_refused():
    packed = struct.pack("<I", 20) + b"\xff" * 9
    data = b"LCB1" + struct.pack("<III", 2, 1, 20) + struct.pack("<I", crc32c.crc32c(packed)) + packed
    with pytest.raises(Corrupt, match="does not decompress"):
        lcb1.decode(data)
