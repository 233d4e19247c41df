"""What a checkpoint cost, kept in the log with the record that settles it: batches, requests, bytes, time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slackwater.errors import Corrupt
from slackwater.formats import batch
from slackwater.formats import record as records
from slackwater.formats.change import NOTHING_PACKED, Checkpoint, Packed, Release, Settlement
from slackwater.formats.keys import record_key
from slackwater.protocol.artifacts import put_artifacts
from slackwater.protocol.cut import Cut, CutFile, CutOperator, CutPartition
from slackwater.settings import Settings
from slackwater.store import open_store
from tests.golden.samples import IDS, golden_records, seal
from tests.pipelines import Driver

NO_INLINE = Settings(inline_max_bytes=0, inline_budget_bytes=0)


def cut_of(*states: bytes) -> Cut:
    """One operator, a partition for each state."""
    partitions = [
        CutPartition(
            partition=n,
            path=f"state/0/{n}",
            version=1,
            unique_id="u",
            snapshot=[],
            deltas=[CutFile(f"state/0/{n}/1_u.changelog", state, len(state))],
        )
        for n, state in enumerate(states)
    ]
    operator = CutOperator(name="0-save", operator_id=0, operator_name="save", store="default", partitions=partitions)
    return Cut(micro_batch=0, watermark_ms=0, sources={}, operators=[operator], files=[])


def settlements(driver: Driver) -> list[Settlement]:
    found = []
    for number in range(1, driver.log.number + 1):
        change = records.decode(driver.store.get(record_key(number)), number=number).change
        if isinstance(change, Checkpoint | Release) and change.settled is not None:
            found.append(change.settled)
    return found


def test_metrics_recorded_on_flush():
    stored = put_artifacts(open_store("memory:"), cut_of(bytes(100), bytes(200)), IDS[1], {}, NO_INLINE)
    assert (stored.packed.batches, stored.packed.entries, stored.packed.puts) == (1, 2, 1)
    assert stored.packed.bytes_before == 300 and 0 < stored.packed.bytes_after < 300


def test_metrics_accumulate_across_flushes():
    small = msgspec.structs.replace(NO_INLINE, batch_target_bytes=65536)
    stored = put_artifacts(open_store("memory:"), cut_of(*[bytes(40_000)] * 5), IDS[1], {}, small)
    assert (stored.packed.batches, stored.packed.entries, stored.packed.puts) == (5, 5, 5)
    one = Packed(batches=1, entries=2, bytes_before=3, bytes_after=4, puts=5)
    assert one + one + NOTHING_PACKED == Packed(batches=2, entries=4, bytes_before=6, bytes_after=8, puts=10)


def test_flush_empty_is_noop():
    store = open_store("memory:")
    stored = put_artifacts(store, cut_of(), IDS[1], {}, NO_INLINE)
    assert stored.packed == NOTHING_PACKED and store.requests.puts == 0


def test_flush_writes_object():
    store = open_store("memory:")
    states = [b"*" * 256, b"c" * 128]
    put_artifacts(store, cut_of(*states), IDS[1], {}, NO_INLINE)
    (listed,) = store.list("")
    assert listed.key == f"checkpoints/{IDS[1]}/batches/00000000000000000000.lcb"
    assert list(batch.decode(store.get(listed.key)).values()) == states


def test_D10_bytes_before_and_after_are_of_the_same_thing():
    noise = bytes(range(256)) * 2
    stored = put_artifacts(open_store("memory:"), cut_of(noise[:256]), IDS[1], {}, NO_INLINE)
    # Stored as it is: neither head nor index makes the batch look larger than its content.
    assert stored.packed.bytes_after == stored.packed.bytes_before == 256
    assert stored.new_bytes > 256


def test_every_checkpoint_has_its_cost_on_record(tmp_path):
    driver = Driver(tmp_path, keep_last=2)
    for _ in range(5):
        driver.step()
    driver.release()
    found = settlements(driver)
    assert [settled.epoch for settled in found] == [1, 2, 3, 4, 5]
    for settled in found:
        assert set(settled.durations_ms) == {"capture", "artifacts", "manifest", "append", "commit", "latest"}
        assert set(settled.requests) == {"puts", "gets", "lists", "deletes"}
        assert settled.requests["puts"] >= 3 and settled.requests["lists"] >= 1
        assert settled.new_bytes > 0 and settled.full_bytes > 0
        assert settled.packed.batches == settled.packed.puts and settled.packed.entries >= settled.packed.batches
    assert found[-1].full_bytes > found[0].full_bytes
    # The deletes of what left come after an epoch is settled, and are counted with the next.
    assert [settled.requests["deletes"] > 0 for settled in found] == [False, False, False, True, True]


def test_no_request_is_counted_twice_and_none_is_lost(tmp_path):
    driver = Driver(tmp_path, keep_last=2)
    before = driver.store.requests.snapshot()
    for _ in range(4):
        driver.step()
    after = driver.store.requests.snapshot()
    driver.release()
    puts = sum(settled.requests["puts"] for settled in settlements(driver))
    assert puts == after.puts - before.puts


@pytest.mark.parametrize("field", ["packed", "requests", "durations_ms", "new_bytes", "full_bytes"])
def test_what_a_settlement_says_is_required(field):
    document: Any = msgspec.to_builtins(golden_records()["release"])
    del document["change"]["settled"][field]
    body = msgspec.json.encode(document, order="sorted")
    with pytest.raises(Corrupt) as caught:
        records.decode(seal(body), number=7)
    assert caught.value.code == "log.corrupt"
