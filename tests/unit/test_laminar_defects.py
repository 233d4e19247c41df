"""Defects of LaminarDB that are no matter of formats: ours, driven through the real code, do not have them.

The rows are those of the list of defects: A layout, B checkpointer, C manifest, D batcher, F store and coordinator.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import time
from functools import partial
from typing import Any

import msgspec
import pytest

from slackwater import failpoints
from slackwater.errors import Conflict, Corrupt, SlackwaterError, Unavailable
from slackwater.formats import manifest as manifests
from slackwater.formats.keys import CHECKPOINTS, ManifestKey, manifest_key, parse_key, record_key
from slackwater.formats.manifest import Manifest, references
from slackwater.formats.query import differences
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.savepoint import create_label
from slackwater.ops.verify import verify
from slackwater.parallel import in_parallel
from slackwater.protocol.keep_rules import plan_retire
from slackwater.protocol.retention import References, delete_retired
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import MIB, Settings
from slackwater.store import open_store
from tests.golden.samples import golden_manifest
from tests.pipelines import Driver, FolderSink


def die(monkeypatch: pytest.MonkeyPatch, point: str, hit: int = 1) -> None:
    monkeypatch.setattr(failpoints, "_armed", {point: (hit, "raise")})
    monkeypatch.setattr(failpoints, "_hits", {})


def keys_of(driver: Driver) -> set[str]:
    return {listed.key for listed in driver.store.list(CHECKPOINTS)}


def named_by_live(driver: Driver) -> set[str]:
    state = driver.driver.state
    needed = {"checkpoints/_latest"}
    for entry in state.live:
        needed |= {manifest_key(entry.checkpoint_id)} | references(load_manifest(driver.store, entry))
    return needed


def test_A4_a_delta_names_every_older_object_that_it_needs_with_its_digest(tmp_path):
    driver = Driver(tmp_path)
    for _ in range(4):
        driver.step()
    head = driver.driver.state.live[-1]
    manifest = load_manifest(driver.store, head)
    older = [o for o in manifest.objects if f"/{head.checkpoint_id}/" not in o.key]
    assert older and all(o.sha256 is not None or o.kind == "object" for o in older)
    # One manifest is enough: no other is read, however long the chain of deltas.
    for entry in driver.driver.state.live[:-1]:
        driver.store.delete([manifest_key(entry.checkpoint_id)])
    assert not verify(str(driver.pipeline), head.epoch, read_data=True).findings


def test_A15_a_partition_that_comes_twice_is_never_written_or_read():
    good = golden_manifest()
    operator = good.operators["0-stateStoreSave"]
    twice = msgspec.structs.replace(operator, partitions=[operator.partitions[0], operator.partitions[0]])
    with pytest.raises(Corrupt) as caught:
        manifests.encode(msgspec.structs.replace(good, operators={"0-stateStoreSave": twice}))
    assert caught.value.code == "manifest.invalid" and "the manifest of" in str(caught.value)


def test_B2_what_retention_drops_is_gone_to_the_last_object(tmp_path):
    driver = Driver(tmp_path, keep_last=2)
    for _ in range(6):
        driver.step()
    gone = {entry.checkpoint_id for entry in driver.driver.state.retired}
    assert keys_of(driver) == named_by_live(driver)
    assert [parse_key(key) for key in keys_of(driver) if isinstance(parse_key(key), ManifestKey)]
    assert not [key for key in keys_of(driver) for checkpoint_id in gone if key == manifest_key(checkpoint_id)]


def test_B3_deletes_that_were_cut_off_are_finished_and_no_live_checkpoint_is_hurt(tmp_path, monkeypatch):
    driver = Driver(tmp_path, keep_last=2)
    for _ in range(3):
        driver.step()
    with monkeypatch.context() as armed:
        die(armed, "delete.between")
        driver.step()
    assert driver.driver.hindrance is not None and "delete.between" in driver.driver.hindrance.message
    assert not keys_of(driver) <= named_by_live(driver)
    pipeline = read_pipeline(str(driver.pipeline))
    assert verify(pipeline.url, read_data=True).sound
    # The record said first that they are gone; doing it again minds nothing that is missing.
    for _ in range(2):
        assert delete_retired(driver.place, driver.driver.permit, References(driver.place))
    assert keys_of(driver) == named_by_live(driver)


def test_B4_neither_the_head_nor_a_savepoint_nor_what_a_live_checkpoint_needs_is_deleted(tmp_path):
    driver = Driver(tmp_path, keep_last=1)
    driver.step()
    create_label(driver.log, "kept", "latest")
    for _ in range(4):
        driver.step()
    state = driver.driver.state
    assert [entry.epoch for entry in state.live] == [1, 5]
    assert 5 not in plan_retire(state, 1) or state.epoch == 5
    pipeline = read_pipeline(str(driver.pipeline))
    assert verify(pipeline.url, read_data=True).sound


def test_B6_nothing_counts_before_all_that_it_names_is_stored(tmp_path, monkeypatch):
    for point in ("artifacts.after", "manifest.after"):
        driver = Driver(tmp_path)
        driver.step()
        newest = driver.driver.state.epoch
        with monkeypatch.context() as armed:
            die(armed, point)
            with pytest.raises(SlackwaterError, match=point):
                driver.step()
        assert read_pipeline(str(driver.pipeline)).state.epoch == newest


def test_B8_a_pointer_that_is_garbled_or_missing_hinders_no_start(tmp_path):
    driver = Driver(tmp_path)
    driver.step()
    for pointer in (b"\xff", b"", b"0192d3f0-7b7c-7000-8000-0123456789ab\n"):
        driver.store.put("checkpoints/_latest", pointer)
        assert Driver(tmp_path).micro_batch == 0
    driver.store.delete(["checkpoints/_latest"])
    assert Driver(tmp_path).micro_batch == 0


@pytest.mark.parametrize("verb", ["get", "put", "list", "delete"])
def test_B9_every_verb_is_tried_again_and_given_up_within_the_deadline(verb):
    with socket.socket() as reserved:  # bound but not listening: connections are refused
        reserved.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        hasty = Settings(request_timeout_s=0.5, total_timeout_s=1.0)
        store = open_store(
            "s3://bucket/x", hasty, endpoint=endpoint, access_key_id="a", secret_access_key="b", region="us-east-1"
        )
        calls: dict[str, Any] = {
            "get": lambda: store.get("k"),
            "put": lambda: store.put("k", b"v"),
            "list": lambda: store.list(""),
            "delete": lambda: store.delete(["k"]),
        }
        began = time.monotonic()
        with pytest.raises(Unavailable):
            calls[verb]()
    assert time.monotonic() - began < 5


def test_B13_what_a_crashed_attempt_left_is_swept_by_the_next_start(tmp_path, monkeypatch):
    driver = Driver(tmp_path)
    driver.step()
    with monkeypatch.context() as armed:
        die(armed, "artifacts.after")
        with pytest.raises(SlackwaterError, match=r"artifacts\.after"):
            driver.step()
    assert keys_of(driver) > named_by_live(driver)
    again = Driver(tmp_path)
    assert keys_of(again) == named_by_live(again)
    assert again.sinks["totals"].staged() == []


def test_B14_a_large_object_goes_in_parts_and_is_read_by_range():
    store = open_store("memory:")
    part = bytes(MIB)
    store.put("large", [part] * 65)
    assert store.requests.puts > 1
    assert store.get("large", offset=65 * MIB - 1, size=1) == b"\x00"


def test_B15_results_come_in_the_order_of_the_jobs():
    def late(number: int) -> int:
        time.sleep(0.01 * (4 - number))
        return number

    assert in_parallel([partial(late, number) for number in range(4)], 4) == [0, 1, 2, 3]


class _FailingSink(FolderSink):
    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        if epoch == 2:
            raise OSError("password=hunter2")
        super().commit(descriptors, epoch)


def test_C9_C14_a_commit_that_fails_changes_no_manifest_and_its_raw_text_is_on_no_record(tmp_path):
    driver = Driver(tmp_path)
    driver.sinks["totals"] = _FailingSink(driver.sinks["totals"].root)
    driver.step()
    with pytest.raises(SlackwaterError) as caught:
        driver.step()
    assert driver.driver.end(caught.value) is None
    head = driver.driver.state.live[-1]
    data = driver.store.get(manifest_key(head.checkpoint_id))
    assert hashlib.sha256(data).hexdigest() == head.manifest_sha256
    assert not {"sink_commit_statuses", "status"} & set(Manifest.__struct_fields__)
    record = driver.store.get(record_key(driver.log.number))
    settled = json.loads(record)["body"]["change"]["settled"]
    assert settled["sinks"]["totals"] == {"status": "Failed", "reason": "OSError"}
    assert b"hunter2" not in record
    # The epoch counts: the next start commits it, once.
    again = Driver(tmp_path)
    assert again.sinks["totals"].rows() == ["rows of 0", "rows of 1"]
    assert Driver(tmp_path).sinks["totals"].rows() == ["rows of 0", "rows of 1"]


def test_C11_what_a_query_depends_on_is_kept_and_a_change_is_told_in_words():
    before = golden_manifest().query
    assert before is not None
    other = msgspec.structs.replace(before.operators[0], keys=["country string"])
    (line,) = differences(before, msgspec.structs.replace(before, operators=[other]))
    assert "was keyed by region string; now by country string" in line


def test_C13_offsets_of_kafka_have_one_form_the_topic_and_the_partition():
    from slackwater.spark.capture import parse_offset  # noqa: PLC0415

    assert parse_offset('{"orders":{"0":5,"1":9007199254740993}}') == {
        "orders-0": "5",
        "orders-1": "9007199254740993",
    }


def test_D8_the_store_can_be_called_inside_a_running_event_loop():
    async def inside() -> bytes:
        store = open_store("memory:")
        store.put("k", b"v")
        return store.get("k")

    assert asyncio.run(inside()) == b"v"


def test_F2_epochs_go_on_after_a_restart_and_a_damaged_log_is_no_fresh_start(tmp_path):
    driver = Driver(tmp_path, keep_last=2)
    for _ in range(3):
        driver.step()
    again = Driver(tmp_path, keep_last=2)
    again.step()
    assert [entry.epoch for entry in again.driver.state.live] == [3, 4]
    newest = record_key(again.log.number)
    again.store.put(newest, again.store.get(newest)[:-20])
    before = keys_of(again)
    with pytest.raises(Corrupt) as caught:
        Driver(tmp_path, keep_last=2)
    assert caught.value.code == "log.corrupt"
    assert keys_of(again) == before


@pytest.mark.parametrize("point", ["artifacts.after", "manifest.after"])
def test_F5_F6_output_that_was_staged_for_an_epoch_that_never_counted_is_discarded(tmp_path, point, monkeypatch):
    driver = Driver(tmp_path)
    driver.step()
    with monkeypatch.context() as armed:
        die(armed, point)
        with pytest.raises(SlackwaterError, match=point):
            driver.step()
    assert len(driver.sinks["totals"].staged()) == 1
    again = Driver(tmp_path)
    assert again.sinks["totals"].staged() == []
    again.step()
    assert again.sinks["totals"].rows() == ["rows of 0", "rows of 1"]


@pytest.mark.parametrize("point", ["append.after", "commit.after", "latest.after"])
def test_F7_staged_output_is_durable_and_committed_once_by_whoever_starts_next(tmp_path, point, monkeypatch):
    driver = Driver(tmp_path)
    driver.step()
    with monkeypatch.context() as armed:
        die(armed, point)
        with pytest.raises(SlackwaterError, match=point):
            driver.step()
    again = Driver(tmp_path)
    again.step()
    assert again.sinks["totals"].rows() == ["rows of 0", "rows of 1", "rows of 2"]
    with pytest.raises(Conflict) as caught:
        driver.step()  # the fenced driver's own epoch never counts
    assert caught.value.code == "driver.fenced"
    assert again.sinks["totals"].rows() == ["rows of 0", "rows of 1", "rows of 2"]


def test_F8_C7_a_checkpoint_without_the_offsets_of_a_source_is_never_written():
    good = golden_manifest()
    without: list[dict[str, Any]] = [{"source_offsets": {}}, {"source_names": []}]
    for fields in without:
        with pytest.raises(Corrupt) as caught:
            manifests.encode(msgspec.structs.replace(good, source_watermarks={}, **fields))
        assert caught.value.code == "manifest.invalid" and "the manifest of" in str(caught.value)
