"""LCB1 version 3: what goes in comes out, or an error does."""

from __future__ import annotations

import tracemalloc

import pytest

from slackwater.errors import Corrupt, InvalidInput, Unsupported
from slackwater.formats import batch
from tests.golden.lcb1 import Item, write


def test_many_entries_come_back_as_they_were():
    entries = {f"state/0/{n}/1_{n:x}.changelog": bytes([n % 256]) * n for n in range(500)}
    assert batch.decode(batch.encode(entries)[0]) == entries


def test_A14_the_same_content_gives_the_same_bytes_in_any_order():
    entries = {f"k{n}": b"x" * n for n in range(20)}
    assert batch.encode(dict(reversed(entries.items())))[0] == batch.encode(entries)[0]


def test_one_entry_is_read_by_range_from_the_index_alone():
    entries = {"a": b"raw bytes", "b": b"packed " * 100, "c": b""}
    data = batch.encode(entries)[0]
    size = batch.HEADER_BYTES + int.from_bytes(data[16:24], "little")
    for key, entry in batch.decode_index(data[:size]).items():
        stored = data[entry.offset : entry.offset + entry.stored_bytes]
        assert batch.decode_entry(entry, stored) == entries[key]


def test_an_entry_is_stored_raw_when_packing_does_not_help():
    index = batch.decode_index(batch.encode({"noise": bytes(range(256)), "zeros": bytes(10_000)})[0])
    assert (index["noise"].codec, index["noise"].stored_bytes) == (0, 256)
    assert index["zeros"].codec == 1 and index["zeros"].stored_bytes < 100


def test_D2_a_count_that_is_too_low_is_refused_though_every_checksum_fits():
    with pytest.raises(Corrupt) as caught:
        batch.decode(write([Item(b"a", b"1"), Item(b"b", b"2")], count=1))
    assert caught.value.code == "object.damaged" and "the batch" in str(caught.value)


def test_D2_the_head_is_under_the_checksum():
    data = bytearray(batch.encode({"a": b"1", "b": b"2"})[0])
    data[8] = 1  # the count
    with pytest.raises(Corrupt, match="damaged head"):
        batch.decode_index(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        write([Item(b"a", b"1")], count=2**32 - 1),
        write([Item(b"a", b"1")], count=batch.MAX_ENTRIES),
        write([Item(b"a", b"1")], index_bytes=2**63),
        write([Item(b"a", b"1")], body_bytes=batch.MAX_BATCH_BYTES),
        write([Item(b"a", b"1", codec=1, size=2**62)]),
        write([Item(b"a", b"1", codec=1, size=batch.MAX_ENTRY_BYTES)]),
        write([Item(b"a", b"1", codec=1, size=batch.MAX_ENTRY_BYTES + 1)]),
    ],
)
def test_D4_sizes_that_are_claimed_are_refused_before_anything_is_allocated(data):
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            batch.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 256 * 1024
    finally:
        tracemalloc.stop()


def test_D4_a_tight_entry_within_the_ratio_of_lz4_is_accepted():
    zeros = bytes(batch.MAX_ENTRY_BYTES)
    data = batch.encode({"zeros": zeros})[0]
    assert len(data) < batch.MAX_ENTRY_BYTES // 250
    assert batch.decode(data)["zeros"] == zeros


@pytest.mark.parametrize("version", [0, 1, 2, 4, 2**32 - 1])
def test_D5_no_other_version_is_read_and_none_switches_checks_off(version):
    with pytest.raises(Unsupported) as caught:
        batch.decode(write([Item(b"a", b"1")], version=version))
    assert caught.value.code == "format.unknown_version" and "the batch has version" in str(caught.value)


def test_A6_the_version_is_looked_at_before_the_rest():
    with pytest.raises(Unsupported):
        batch.decode_index(write([], version=9, count=2**31, index_bytes=2**60, reserved=5))


def test_D6_keys_are_strict_utf_8_both_ways():
    with pytest.raises(Corrupt, match="UTF-8"):
        batch.decode_index(write([Item(b"k\xff", b"1")]))
    with pytest.raises(InvalidInput) as caught:
        batch.encode({"\ud800": b"1"})[0]
    assert caught.value.code == "name.invalid"


def test_D7_a_key_is_there_once():
    with pytest.raises(Corrupt):
        batch.decode_index(write([Item(b"a", b"1"), Item(b"a", b"2")]))


def test_what_is_told_of_a_packed_batch_is_what_its_index_says():
    data, index = batch.encode({"b": b"x" * 5000, "a": b"", "ü": bytes(range(256))})
    assert index == batch.decode_index(data)
    assert list(index) == list(batch.decode_index(data))


def test_D11_a_damaged_entry_is_named_and_the_others_can_still_be_read():
    data = bytearray(batch.encode({"a": b"first", "b": b"second"})[0])
    index = batch.decode_index(bytes(data))
    data[index["b"].offset] ^= 1
    a, b = (bytes(data[e.offset : e.offset + e.stored_bytes]) for e in index.values())
    assert batch.decode_entry(index["a"], a) == b"first"
    with pytest.raises(Corrupt, match="entry 'b'"):
        batch.decode_entry(index["b"], b)
    with pytest.raises(Corrupt, match="cut off"):
        batch.decode_entry(index["a"], a[:-1])


def test_D3_what_does_not_fit_is_refused_when_it_is_written():
    too_many, too_large = "a batch holds 1 to", "does not fit a batch"
    for entries, words in [
        ({}, too_many),
        ({"": b"1"}, too_large),
        ({"k" * 1025: b"1"}, too_large),
        ({"k": bytes(batch.MAX_ENTRY_BYTES + 1)}, too_large),
        ({str(n): b"" for n in range(batch.MAX_ENTRIES + 1)}, too_many),
    ]:
        with pytest.raises(InvalidInput, match=words) as caught:
            batch.encode(entries)[0]
        assert caught.value.code == "checkpoint.unwritable"


def test_D3_a_batch_past_its_limit_is_refused_when_it_is_written(monkeypatch):
    monkeypatch.setattr(batch, "MAX_BATCH_BYTES", 200)
    assert batch.encode({"k": bytes(range(90))})[0]
    with pytest.raises(InvalidInput) as caught:
        batch.encode({"k": bytes(range(120))})[0]
    assert caught.value.code == "checkpoint.unwritable" and "is past the limit" in str(caught.value)
