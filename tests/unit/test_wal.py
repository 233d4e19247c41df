"""The write-ahead log's end: a torn write goes, damage is an error. The logs are RocksDB's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slackwater.errors import Corrupt
from slackwater.keyed.state import KeyedState
from slackwater.rocks.wal import BLOCK_BYTES, SECTOR_BYTES, Damage, find_end

WRITES = 12
FILL = """
import os, sys
from pathlib import Path
from slackwater.keyed.state import KeyedState
state = KeyedState(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    state.write([(b"%04d" % number, bytes([number % 256]) * int(sys.argv[3]))], offsets={"s": {"n": str(number)}})
os._exit(0)  # as a crash: nothing is closed
"""


def fill(folder: Path, writes: int = WRITES, size: int = 20) -> Path:
    subprocess.run([sys.executable, "-c", FILL, str(folder), str(writes), str(size)], check=True)
    (log,) = folder.glob("*.log")
    return log


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return fill(tmp_path_factory.mktemp("small") / "state").read_bytes()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Records of several fragments, over several blocks."""
    return fill(tmp_path_factory.mktemp("large") / "state", 5, 3 * BLOCK_BYTES // 2).read_bytes()


def ends(data: bytes) -> list[int]:
    """Every place where a record ends, found by cutting the log everywhere."""
    step = 1 if len(data) < BLOCK_BYTES else 4001
    return sorted({find_end(data[:size]) for size in range(0, len(data), step)} | {len(data)})


def test_a_sound_log_ends_where_it_ends(small: bytes, large: bytes) -> None:
    assert find_end(small) == len(small) and find_end(large) == len(large) and find_end(b"") == 0


def test_E17_a_log_that_is_cut_anywhere_ends_after_the_last_whole_record(small: bytes, large: bytes) -> None:
    assert len(ends(small)) == WRITES + 1 and len(ends(large)) == 6


@pytest.mark.parametrize("zeros", [8, 4096, BLOCK_BYTES, 3 * BLOCK_BYTES])
def test_E15_zeros_after_the_last_record_are_no_records(small: bytes, large: bytes, zeros: int) -> None:
    for data in (small, large):
        assert find_end(data + bytes(zeros)) == len(data)


def test_E15_a_torn_record_whose_sectors_are_zeros_ends_the_log(large: bytes) -> None:
    *_, before, end = ends(large)
    for sector in range(-(-before // SECTOR_BYTES) + 1, end // SECTOR_BYTES, 17):
        kept = large[: sector * SECTOR_BYTES]
        assert find_end(kept + bytes(end - len(kept))) == before


def test_E16_E17_every_flipped_bit_is_damage_and_never_a_shorter_log(small: bytes) -> None:
    for at in range(len(small)):
        for bit in range(8):
            damaged = bytearray(small)
            damaged[at] ^= 1 << bit
            with pytest.raises(Damage):
                find_end(bytes(damaged))


def test_damage_in_a_record_of_many_fragments_is_found(large: bytes) -> None:
    for at in range(0, len(large), 20_011):
        damaged = bytearray(large)
        damaged[at] ^= 0x10
        with pytest.raises(Damage):
            find_end(bytes(damaged))


def test_a_record_that_seems_to_be_cut_short_and_has_sound_ones_after_it_is_damage(small: bytes) -> None:
    """Several bits of its length are wrong: only what follows tells it from a write that was torn."""
    for at in ends(small)[:-2]:
        damaged = bytearray(small)
        damaged[at + 4 : at + 6] = (20_000).to_bytes(2, "little")
        with pytest.raises(Damage) as caught:
            find_end(bytes(damaged))
        assert caught.value.at == at


def test_zeros_in_the_middle_are_damage(small: bytes) -> None:
    with pytest.raises(Damage):
        find_end(small[:100] + bytes(50) + small[150:])


@pytest.mark.parametrize("cut", [1, 30, 5000])
def test_what_was_acknowledged_before_a_torn_write_is_there(tmp_path: Path, cut: int) -> None:
    log = fill(tmp_path / "state", 30, 100)
    data = log.read_bytes()
    log.write_bytes(data[:-cut])
    torn = data[:-cut]
    state = KeyedState(tmp_path / "state")
    kept = int(state.offsets["s"]["n"]) + 1
    assert state.key_count == kept == len(list(state.scan()))
    assert kept == sum(0 < end <= len(torn) for end in ends(data))
    state.put(b"after", b"1")
    state.close()
    again = KeyedState(tmp_path / "state")
    assert again.get(b"after") == b"1" and again.key_count == kept + 1
    again.close()


def test_a_flipped_length_which_rocksdb_alone_takes_for_a_torn_write_is_an_error(tmp_path: Path) -> None:
    log = fill(tmp_path / "state", 30, 100)
    data = bytearray(log.read_bytes())
    third = find_end(bytes(data[:700]))
    data[third + 5] ^= 0x40  # the high byte of the length
    log.write_bytes(data)
    with pytest.raises(Corrupt) as caught:
        KeyedState(tmp_path / "state")
    assert caught.value.code == "keyed.damaged" and caught.value.details["offset"] == third


def test_a_log_that_is_missing_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path / "state").unlink()
    with pytest.raises(Corrupt) as caught:
        KeyedState(tmp_path / "state")
    assert caught.value.code == "keyed.damaged" and "is missing" in str(caught.value)


# What RocksDB has written in a folder that is new to it before it makes the first log, for the identity in it.
NEW = "9e0e18bd-9b1a-4020-b25c-2d94443af88b"
LISTS_NOTHING = b"\x06\x56\x1b\x47\x2d\x00\x01\x81\x40\x24" + NEW.encode() + b"\x02\x00\x03\x02\x04\x00"


@pytest.mark.parametrize("files", ["IDENTITY", "IDENTITY MANIFEST-000001", "IDENTITY MANIFEST-000001 CURRENT"])
def test_a_kill_while_a_folder_is_opened_for_the_first_time_does_not_spoil_it(tmp_path: Path, files: str) -> None:
    written = {"IDENTITY": NEW.encode(), "MANIFEST-000001": LISTS_NOTHING, "CURRENT": b"MANIFEST-000001\n"}
    for name in files.split():
        (tmp_path / name).write_bytes(written[name])
    state = KeyedState(tmp_path)
    state.put(b"a", b"1")
    state.close()
    again = KeyedState(tmp_path)
    assert again.get(b"a") == b"1" and again.key_count == 1
    again.close()


@pytest.mark.parametrize("lost", ["*.log", "*.log CURRENT", "*.log CURRENT OPTIONS-*", "*.log CURRENT MANIFEST-*"])
@pytest.mark.parametrize("with_tables", [False, True])
def test_a_folder_that_was_open_and_has_lost_its_log_is_refused_whatever_else_it_has_lost(
    tmp_path: Path, lost: str, with_tables: bool
) -> None:
    folder = tmp_path / "state"
    if with_tables:
        listed(folder)
    else:
        fill(folder)
    for pattern in lost.split():
        for path in folder.glob(pattern):
            path.unlink()
    with pytest.raises(Corrupt, match=r"keyed\.damaged.*is missing"):
        KeyedState(folder)


def test_logs_are_taken_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    log = fill(tmp_path / "state")
    data = log.read_bytes()
    log.unlink()
    cut = ends(data)[5]
    (log.parent / "999999.log").write_bytes(data[:cut])
    (log.parent / "1000000.log").write_bytes(data[cut:-5])  # a torn write, which only the last one may end in
    state = KeyedState(log.parent)
    assert state.key_count == WRITES - 1
    state.close()


def listed(folder: Path) -> Path:
    """Make a database with some tables; return the file that lists them."""
    state = KeyedState(folder)
    for number in range(3):
        state.write([(b"%d-%d" % (number, n), bytes(20)) for n in range(50)])
        state.checkpoint(folder.with_name(f"{number}"))
    state.close()
    return folder / (folder / "CURRENT").read_text().strip()


def test_every_flipped_bit_of_the_list_of_tables_is_found(tmp_path: Path) -> None:
    whole = listed(tmp_path / "state").read_bytes()
    assert find_end(whole) == len(whole)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damage):
            find_end(bytes(damaged))


def test_a_database_whose_list_of_tables_is_damaged_is_not_opened_and_keeps_its_tables(tmp_path: Path) -> None:
    path = listed(tmp_path / "state")
    tables, whole, at = set(path.parent.glob("*.sst")), path.read_bytes(), 0
    assert len(tables) == 3
    for number in range(4):
        at += 7 + int.from_bytes(whole[at + 4 : at + 6], "little")
        damaged = bytearray(whole)
        damaged[at + 5] ^= 0x40  # the length of a record: to RocksDB, the end of the list
        path.write_bytes(damaged)
        with pytest.raises(Corrupt, match=rf"keyed\.damaged.*{path.name}"):
            KeyedState(path.parent)
        assert set(path.parent.glob("*.sst")) == tables, number
    path.write_bytes(whole)
    state = KeyedState(path.parent)
    assert state.key_count == 150 == len(list(state.scan()))
    state.close()
