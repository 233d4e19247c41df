"""Checkpoints for a program without Spark: recovery, what is stored, who is fenced, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from slackwater import program as library
from slackwater.formats.keys import manifest_key
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify
from slackwater.program import ProgramPipeline, open_pipeline
from slackwater.protocol.kinds import refuse_foreign
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.testing.faulty_store import Fault, Faults
from tests.commands import answer, environment, lines, program_of, refusal, run_program, slackwater
from tests.pipelines import Driver, FolderSink, make_pipeline

# Every partition of 100 bytes or more has an object of its own, and no state is inline.
SETTINGS = Settings(inline_max_bytes=0, object_min_bytes=100)


def save(pipeline: ProgramPipeline, row: int, *partitions: bytes, **fields: Any) -> int:
    state = {"counts": dict(enumerate(partitions))}
    return pipeline.checkpoint(offsets={"rows": {"row": row}}, state=state, **fields).epoch


def recovered(store: Path, **fields: Any) -> tuple[int, dict[str, dict[str, str]], dict[str, dict[int, bytes]]]:
    with open_pipeline(store, "orders", **fields) as pipeline:
        return pipeline.epoch, pipeline.offsets, pipeline.state


def refuse_spark(pipeline: ProgramPipeline) -> None:
    """Look at the pipeline as the start of a Spark query does."""
    refuse_foreign(pipeline._driver.pipeline, "spark")


def object_bytes(store: Path) -> int:
    return sum(path.stat().st_size for path in store.rglob("*.snap"))


# --- forward and back


def test_what_was_checkpointed_is_recovered(tmp_path):
    assert recovered(tmp_path) == (0, {}, {})
    with open_pipeline(tmp_path, "orders") as pipeline:
        assert save(pipeline, 1, b"one", b"") == 1
        assert (pipeline.epoch, pipeline.offsets, pipeline.state) == (
            1, {"rows": {"row": "1"}}, {"counts": {0: b"one", 1: b""}},
        )  # fmt: skip
        assert save(pipeline, 2, b"two" * 10_000, b"x", b"y") == 2
    state = read_pipeline(str(tmp_path / "orders")).state
    assert state.release_append_id is not None and state.settled_epoch == 2
    assert recovered(tmp_path) == (2, {"rows": {"row": "2"}}, {"counts": {0: b"two" * 10_000, 1: b"x", 2: b"y"}})


def test_a_program_may_have_no_state_or_no_sources(tmp_path):
    with open_pipeline(tmp_path, "orders") as pipeline:
        pipeline.checkpoint(offsets={}, state={})
    assert recovered(tmp_path) == (1, {}, {})


def test_names_that_are_no_file_names_come_back_as_they_are(tmp_path):
    odd = {"a/b ~ä": {0: b"1"}, "..x": {0: b"2"}}
    with open_pipeline(tmp_path, "my orders/1") as pipeline:
        pipeline.checkpoint(offsets={"s p": {"": "x"}}, state=odd)
    with open_pipeline(tmp_path, "my orders/1") as pipeline:
        assert (pipeline.offsets, pipeline.state) == ({"s p": {"": "x"}}, odd)


def test_an_unchanged_partition_is_not_stored_again(tmp_path):
    large = b"x" * 5000
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        save(pipeline, 1, large, b"1" * 200)
        assert object_bytes(tmp_path) == 5200
        save(pipeline, 2, large, b"2" * 200)
        assert object_bytes(tmp_path) == 5400
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        save(pipeline, 3, large, b"3" * 200)
        assert object_bytes(tmp_path) == 5600, "a recovered one neither"
        # Back to what it was in epoch 1: that is a change.
        save(pipeline, 4, large, b"1" * 200)
        assert object_bytes(tmp_path) == 5800
    assert recovered(tmp_path)[2] == {"counts": {0: large, 1: b"1" * 200}}


def test_a_state_that_was_changed_in_place_is_stored(tmp_path):
    first, second = b"a" * 200, b"b" * 200
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        save(pipeline, 1, first, second)
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        state = pipeline.state
        state["counts"][0] = b"X" * 200
        state["counts"][2] = b"new" * 100
        state["more"] = {0: b"m" * 200}
        pipeline.checkpoint(offsets={"rows": {"row": 2}}, state=state)
        assert pipeline.state == state
        pipeline.state["counts"][1] = b"Y" * 200
        state["more"][0] = b"n" * 200
        pipeline.checkpoint(offsets={"rows": {"row": 3}}, state={**pipeline.state, "more": state["more"]})
    assert recovered(tmp_path) == (
        3,
        {"rows": {"row": "3"}},
        {"counts": {0: b"X" * 200, 1: b"Y" * 200, 2: b"new" * 100}, "more": {0: b"n" * 200}},
    )


def test_what_the_program_does_to_its_state_is_not_what_an_unchanged_one_refers_to(tmp_path):
    stays = b"s" * 200
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        save(pipeline, 1, stays)
        pipeline.state["counts"][0] = b"never handed over"
        save(pipeline, 2, stays)
        assert object_bytes(tmp_path) == 200
    assert recovered(tmp_path)[2] == {"counts": {0: stays}}


def test_small_partitions_hold_on_to_few_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "_STORED_AGAIN_AFTER", 4)
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        for row in range(30):
            # One after the other changes; without an end to it, each would hold on to the batch of its last change.
            save(pipeline, row, *(f"{n}: {row - (row - n) % 10}".encode() for n in range(10)))
            entry = read_pipeline(str(tmp_path / "orders")).state.live[-1]
            assert len(load_manifest(pipeline._driver.pipeline.store, entry).objects) <= 5
    assert recovered(tmp_path)[2]["counts"][3] == b"3: 23"


def test_a_partition_that_shares_a_batch_comes_back_as_of_its_checkpoint(tmp_path):
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        save(pipeline, 1, b"old", b"stays")
        save(pipeline, 2, b"new", b"stays")
    assert recovered(tmp_path)[2] == {"counts": {0: b"new", 1: b"stays"}}
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        save(pipeline, 3, b"old", b"stays")
    assert recovered(tmp_path)[2] == {"counts": {0: b"old", 1: b"stays"}}


def test_retention_keeps_what_it_is_told_to(tmp_path):
    with open_pipeline(tmp_path, "orders", settings=Settings(keep_last=2)) as pipeline:
        for row in range(1, 4):
            save(pipeline, row, b"x" * row)
        pipeline.savepoint("third")
        for row in range(4, 8):
            save(pipeline, row, b"x" * row)
    opened = read_pipeline(str(tmp_path / "orders"))
    assert [entry.epoch for entry in opened.state.live] == [3, 6, 7]
    assert verify(opened.url, read_data=True).findings == []


# --- what is refused


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"counts": {1: b"x"}}, "partition 0 of 'counts'"),
        ({"counts": {0: b"x", 2: b"y"}}, "partition 1 of 'counts'"),
        ({"counts": {0: "text"}}, "str there"),
        ({"counts": {0: None}}, "NoneType there"),
    ],
)
def test_state_that_cannot_be_is_refused_with_the_partition_and_nothing_is_lost(tmp_path, state, words):
    with open_pipeline(tmp_path, "orders") as pipeline:
        with pytest.raises(sw.InvalidInput, match=words) as caught:
            pipeline.checkpoint(offsets={}, state=state)
        assert caught.value.code == "state.invalid" and caught.value.hint
        assert save(pipeline, 1, b"right") == 1


def test_offsets_and_names_that_cannot_be_are_refused(tmp_path):
    with open_pipeline(tmp_path, "orders") as pipeline:
        with pytest.raises(sw.InvalidInput, match="whole numbers"):
            pipeline.checkpoint(offsets={"rows": {"row": 1.5}}, state={})  # type: ignore[dict-item]
        for hostile in ("", "..", "a\nb"):
            with pytest.raises(sw.InvalidInput):
                pipeline.checkpoint(offsets={hostile: {}}, state={})
            with pytest.raises(sw.InvalidInput):
                pipeline.checkpoint(offsets={}, state={hostile: {0: b""}})
            with pytest.raises(sw.InvalidInput):
                open_pipeline(tmp_path, hostile)
        with pytest.raises(sw.InvalidInput, match="no sink named 'totals'"):
            pipeline.checkpoint(offsets={}, state={}, staged={"totals": []})
        assert save(pipeline, 1) == 1


@pytest.mark.parametrize(
    ("offsets", "state"),
    [
        ({"s": {"a": "\ud800"}}, {}),
        ({"s": {"\ud800": "a"}}, {}),
        ({"s": {"a": 10**5000}}, {}),
        ({"s": {"a": True}}, {}),
        ({"s": {1: "a"}}, {}),
        ({"s": 5}, {}),
        (None, {}),
        ([], {}),
        ({}, None),
        ({}, {"c": [b""]}),
        ({}, {"c": None}),
    ],
)
def test_what_is_no_offset_or_state_at_all_is_refused_and_nothing_is_lost(tmp_path, offsets, state):
    with open_pipeline(tmp_path, "orders") as pipeline:
        with pytest.raises(sw.InvalidInput) as caught:
            pipeline.checkpoint(offsets=offsets, state=state)
        assert caught.value.code == "state.invalid" and caught.value.hint
        assert save(pipeline, 1, b"right") == 1


@pytest.mark.parametrize("staged", [5, {"totals": None}, {"totals": "ab"}])
def test_what_is_no_list_of_descriptors_is_refused(tmp_path, staged):
    with open_pipeline(tmp_path, "orders", sinks={"totals": FolderSink(tmp_path / "lake")}) as pipeline:
        with pytest.raises(sw.InvalidInput, match="lists by sink"):
            save(pipeline, 1, b"x", staged=staged)
        assert save(pipeline, 1, b"right") == 1


@pytest.mark.parametrize(
    ("store", "name", "fields"),
    [
        ("store", 5, {}),
        (b"store", "orders", {}),
        (None, "orders", {}),
        ("store", "orders", {"drop_sink": [5]}),
        ("s3://bucket/x", "orders", {"storage_options": {"url": "x"}}),
        ("s3://bucket/x", "orders", {"storage_options": {"settings": "x"}}),
    ],
)
def test_what_cannot_be_opened_is_refused_as_input(tmp_path, monkeypatch, store, name, fields):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sw.InvalidInput):
        open_pipeline(store, name, **fields)
    assert not any(tmp_path.iterdir())


def test_a_pipeline_is_no_store_for_another(tmp_path):
    orders = make_pipeline(tmp_path, 1)
    with pytest.raises(sw.InvalidInput, match="its store is") as raised:
        open_pipeline(orders, "inside")
    assert raised.value.code == "store.invalid"
    assert not (orders / "inside").exists()


def test_a_checkpoint_that_does_not_fit_into_a_manifest_ends_the_pipeline_and_does_not_count(tmp_path):
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        save(pipeline, 1, b"fits")
        with pytest.raises(sw.InvalidInput) as caught:
            pipeline.checkpoint(offsets={"rows": {"row": "x" * 17_000_000}}, state={"counts": {0: b"x" * 500}})
        assert caught.value.code == "checkpoint.unwritable"
        with pytest.raises(sw.InvalidInput) as caught:
            save(pipeline, 2, b"fits")
        assert caught.value.code == "pipeline.ended"
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        assert (pipeline.epoch, pipeline.state) == (1, {"counts": {0: b"fits"}})
        assert object_bytes(tmp_path) == 0, "what was stored for it is swept"
        assert save(pipeline, 2, b"fits") == 2


def test_a_second_thread_is_refused_while_the_first_goes_on(tmp_path):
    refused: list[sw.SlackwaterError] = []

    class Asking(FolderSink):
        def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
            for call in (lambda: save(pipeline, 9, b"other"), pipeline.close):
                thread = threading.Thread(target=self.ask, args=[call])
                thread.start()
                thread.join()
            super().commit(descriptors, epoch)

        def ask(self, call: Any) -> None:
            try:
                call()
            except sw.SlackwaterError as error:
                refused.append(error)

    sink = Asking(tmp_path / "lake")
    with open_pipeline(tmp_path / "store", "orders", sinks={"totals": sink}) as pipeline:
        assert save(pipeline, 1, b"one") == 1
        assert [(type(error), error.code) for error in refused] == [(sw.InvalidInput, "pipeline.busy")] * 2
        assert save(pipeline, 2, b"two") == 2
    assert recovered(tmp_path / "store", sinks={"totals": sink})[2] == {"counts": {0: b"two"}}


def test_a_closed_pipeline_takes_no_more(tmp_path):
    pipeline = open_pipeline(tmp_path, "orders")
    pipeline.close()
    pipeline.close()
    with pytest.raises(sw.InvalidInput) as caught:
        save(pipeline, 1)
    assert caught.value.code == "pipeline.ended"


def test_a_pipeline_of_sparks_is_refused_before_its_driver_is_fenced(tmp_path):
    folder = make_pipeline(tmp_path, 1, release=False)
    generation = read_pipeline(str(folder)).state.generation
    with pytest.raises(sw.Unsupported) as caught:
        open_pipeline(tmp_path / "store", "orders")
    assert caught.value.code == "pipeline.foreign" and "not a program's" in str(caught.value)
    assert read_pipeline(str(folder)).state.generation == generation


def test_a_spark_driver_that_has_no_checkpoint_yet_is_not_fenced(tmp_path):
    driver = Driver(tmp_path)
    with pytest.raises(sw.Unsupported, match="no checkpoint yet") as caught:
        open_pipeline(tmp_path / "store", "orders")
    assert caught.value.code == "pipeline.foreign" and caught.value.hint
    driver.step()
    driver.release()
    empty = Driver(tmp_path, name="empty")
    empty.release()
    with open_pipeline(tmp_path / "store", "empty") as pipeline:
        assert pipeline.epoch == 0
    # A program that died before its first checkpoint is followed by the next one.
    open_pipeline(tmp_path / "store", "killed")
    assert open_pipeline(tmp_path / "store", "killed").epoch == 0


def test_a_damaged_newest_manifest_does_not_hide_whose_pipeline_it_is(tmp_path):
    folder = make_pipeline(tmp_path, 2, release=False)
    state = read_pipeline(str(folder)).state
    (folder / manifest_key(state.live[-1].checkpoint_id)).write_bytes(b"rot")
    with pytest.raises(sw.Unsupported) as caught:
        open_pipeline(tmp_path / "store", "orders")
    assert caught.value.code == "pipeline.foreign" and "not a program's" in str(caught.value)
    assert read_pipeline(str(folder)).state.generation == state.generation


def test_a_spark_query_that_would_go_on_from_a_program_is_refused_before_the_claim(tmp_path):
    with open_pipeline(tmp_path, "orders") as pipeline:
        save(pipeline, 1, b"x")
        with pytest.raises(sw.Unsupported, match="not Spark's: they are a program's") as caught:
            refuse_spark(pipeline)
        assert caught.value.code == "pipeline.foreign"
        assert save(pipeline, 2, b"y") == 2
        # The newest manifest does not hide it when it is damaged, and neither does a bad read.
        newest = read_pipeline(str(tmp_path / "orders")).state.live[-1]
        (tmp_path / "orders" / manifest_key(newest.checkpoint_id)).write_bytes(b"rot")
        with pytest.raises(sw.Unsupported):
            refuse_spark(pipeline)
        assert save(pipeline, 3, b"z") == 3


def test_a_spark_query_is_refused_before_it_fences_a_program_that_has_no_checkpoint_yet(tmp_path):
    with open_pipeline(tmp_path, "orders") as pipeline:
        with pytest.raises(sw.Unsupported, match="no checkpoint yet, and is not Spark's") as caught:
            refuse_spark(pipeline)
        assert caught.value.code == "pipeline.foreign" and caught.value.hint
        assert save(pipeline, 1) == 1
    with open_pipeline(tmp_path, "empty") as pipeline:
        pass
    refuse_spark(pipeline)  # it has ended, so anyone may have it


def test_another_name_for_the_folder_is_refused(tmp_path):
    with open_pipeline(tmp_path, "orders") as pipeline:
        save(pipeline, 1)
    (tmp_path / "orders").rename(tmp_path / "renamed")
    with pytest.raises(sw.InvalidInput) as caught:
        open_pipeline(tmp_path, "renamed")
    assert caught.value.code == "pipeline.renamed"


def test_nothing_of_spark_is_imported(tmp_path):
    code = (
        f"import sys, slackwater as sw; sw.open_pipeline({str(tmp_path)!r}, 'x').close(); sw.Settings();"
        "print(sorted({'pyspark', 'py4j', 'deltalake', 'pyarrow', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


# --- two writers


def test_the_first_writer_is_fenced_by_the_second_and_touches_nothing(tmp_path):
    first = open_pipeline(tmp_path, "orders")
    save(first, 1, b"first")
    with open_pipeline(tmp_path, "orders") as second:
        assert second.state == {"counts": {0: b"first"}}
        with pytest.raises(sw.Conflict) as caught:
            save(first, 2, b"late")
        assert caught.value.code == "driver.fenced"
        assert save(second, 2, b"second") == 2
        with pytest.raises(sw.InvalidInput, match="failed before"):
            save(first, 2, b"late")
        first.close()
    assert recovered(tmp_path) == (2, {"rows": {"row": "2"}}, {"counts": {0: b"second"}})
    opened = read_pipeline(str(tmp_path / "orders"))
    assert verify(opened.url, read_data=True).findings == []


def test_the_end_of_a_run_that_was_fenced_is_no_error(tmp_path):
    with open_pipeline(tmp_path, "orders") as first:
        save(first, 1, b"first")
        second = open_pipeline(tmp_path, "orders")
    assert second.state == {"counts": {0: b"first"}}
    assert save(second, 2, b"second") == 2
    with pytest.raises(sw.InvalidInput, match="was closed"):
        save(first, 2, b"late")


def test_an_error_in_the_program_ends_the_run_on_record_and_is_the_one_that_is_told(tmp_path):
    with pytest.raises(ZeroDivisionError), open_pipeline(tmp_path, "orders") as pipeline:
        save(pipeline, 1, b"x")
        raise ZeroDivisionError
    assert read_pipeline(str(tmp_path / "orders")).state.release_append_id is not None
    with pytest.raises(ZeroDivisionError), open_pipeline(tmp_path, "orders"):
        open_pipeline(tmp_path, "orders").close()
        raise ZeroDivisionError


# --- sinks


def test_a_sink_has_each_epoch_once_and_takes_back_what_is_rolled_back(tmp_path):
    sink = FolderSink(tmp_path / "lake")

    def emit(pipeline: ProgramPipeline, row: int) -> None:
        save(pipeline, row, b"x", staged={"totals": sink.stage(pipeline.attempt, f"row {row}").descriptors})

    with open_pipeline(tmp_path / "store", "orders", sinks={"totals": sink}) as pipeline:
        for row in (1, 2, 3):
            emit(pipeline, row)
        sink.stage(pipeline.attempt, "never committed")
    assert sink.rows() == ["row 1", "row 2", "row 3"] and sink.staged() == []
    url = str(tmp_path / "store" / "orders")
    assert answer("rollback", url, "--to", "1", "--yes")["acted"]
    with open_pipeline(tmp_path / "store", "orders", sinks={"totals": sink}) as pipeline:
        assert (pipeline.epoch, pipeline.offsets) == (4, {"rows": {"row": "1"}})
        assert sink.rows() == ["row 1"]
        emit(pipeline, 2)
    assert sink.rows() == ["row 1", "row 2"] and sink.epoch() == 5


class Broken(FolderSink):
    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        raise OSError("the disk is full")


def test_what_a_sink_could_not_commit_is_committed_by_the_next_start(tmp_path):
    broken, sink = Broken(tmp_path / "lake"), FolderSink(tmp_path / "lake")
    with (
        pytest.raises(sw.SlackwaterError, match="did not commit epoch 1"),
        open_pipeline(tmp_path, "orders", sinks={"totals": broken}) as pipeline,
    ):
        staged = broken.stage(pipeline.attempt, "row 1").descriptors
        save(pipeline, 1, b"x", staged={"totals": staged})
    assert read_pipeline(str(tmp_path / "orders")).state.settled_epoch == 0
    with open_pipeline(tmp_path, "orders", sinks={"totals": sink}) as pipeline:
        assert pipeline.epoch == 1 and sink.rows() == ["row 1"]


@pytest.mark.parametrize("dropped", [["totals"], "totals"])
def test_a_sink_that_is_gone_is_given_up_only_when_told_so(tmp_path, dropped):
    broken = Broken(tmp_path / "lake")
    with pytest.raises(sw.SlackwaterError), open_pipeline(tmp_path, "orders", sinks={"totals": broken}) as pipeline:
        save(pipeline, 1, b"x", staged={"totals": broken.stage(pipeline.attempt, "row 1").descriptors})
    with pytest.raises(sw.Conflict) as caught:
        open_pipeline(tmp_path, "orders")
    assert caught.value.code == "sink.missing"
    assert recovered(tmp_path, drop_sink=dropped)[0] == 1
    assert recovered(tmp_path)[0] == 1


# --- damage


def test_a_damaged_newest_checkpoint_stops_unless_told_to_fall_back(tmp_path):
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        for row in (1, 2):
            save(pipeline, row, bytes([row]) * 200)
    victim = max((tmp_path / "orders").rglob("*.snap"))
    victim.write_bytes(b"\xff" + victim.read_bytes()[1:])
    with pytest.raises(sw.Corrupt) as caught:
        open_pipeline(tmp_path, "orders")
    assert caught.value.code == "head.damaged" and caught.value.details["newest_verified"] == 1
    with open_pipeline(tmp_path, "orders", fallback=True) as pipeline:
        assert (pipeline.epoch, pipeline.state) == (3, {"counts": {0: b"\x01" * 200}})
        assert save(pipeline, 2, b"\x02" * 200) == 4


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("kind", ["bit-flipped", "truncated", "missing"])
def test_one_bad_read_neither_stops_a_start_nor_rolls_back(tmp_path, kind, fallback):
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        for row in (1, 2):
            save(pipeline, row, bytes([row]) * 200, b"small")
    sound = recovered(tmp_path)
    for nth in range(1, 100):
        with Faults(Fault(kind, verb="get", key="checkpoints/*", nth=nth)).everywhere() as faults:
            assert recovered(tmp_path, fallback=fallback) == sound
        if not faults.befell:
            break
    assert 3 < nth < 100


# --- the command line


def test_every_command_works_on_the_pipeline_of_a_program(tmp_path):
    url = str(tmp_path / "orders")
    with open_pipeline(tmp_path, "orders", settings=SETTINGS) as pipeline:
        for row in (1, 2, 3):
            save(pipeline, row, b"x" * 200, b"%d" % row)
    assert [entry["epoch"] for entry in answer("list", url)["checkpoints"]] == [1, 2, 3]
    shown = answer("show", url, "--at", "2")
    assert shown["sources"] == {"rows": {"source_type": "program", "offsets": {"row": "2"}}}
    assert [p["size_bytes"] for p in shown["operators"]["counts"]["partitions"]] == [200, 1]
    assert any(line.startswith("counts") for line in lines("show", url))
    assert answer("verify", url, "--read-data")["sound"]
    answer("savepoint", "create", url, "first", "--at", "1")
    assert answer("rollback", url, "--to", "2", "--yes")["acted"]
    assert recovered(tmp_path, settings=SETTINGS) == (4, {"rows": {"row": "2"}}, {"counts": {0: b"x" * 200, 1: b"2"}})
    done = answer("restore", url, "--to", tmp_path / "files", "--at", "first")
    assert done["epoch"] == 1
    assert json.loads((tmp_path / "files" / "offsets.json").read_text()) == {"rows": {"row": "1"}}
    (small,) = (tmp_path / "files" / "state" / "counts" / "1").iterdir()
    assert small.name.startswith("1_") and small.read_bytes() == b"1"
    assert "a program's" in lines("restore", url, "--to", tmp_path / "again", "--at", "3")[1]
    assert answer("forget", url, "--keep-last", "1")["forget"]["forgotten_epochs"] == [2, 3]
    assert answer("verify", url, "--read-data")["sound"]
    assert slackwater("pipelines", tmp_path).stdout.splitlines()[1].startswith("orders")


# --- the program of the documentation, killed


KILLS = [
    "claim.before", "claim.after", "artifacts.after", "artifacts.after@3", "manifest.after@2", "append.after",
    "append.after@2", "latest.after@2", "sweep.after", "delete.between", "delete.after@2", "release.before",
]  # fmt: skip


def test_the_program_of_the_documentation_counts_right_however_often_it_is_killed(tmp_path):
    text = [f"the {n % 7} tide and the {n % 3} stream" for n in range(40)]
    (tmp_path / "input.txt").write_text("\n".join(text))
    program = program_of("library.md")
    died = [point for point in KILLS if run_program(program, tmp_path, f"{point}=kill") == -signal.SIGKILL]
    assert died == KILLS
    assert run_program(program, tmp_path) == 0
    with open_pipeline(tmp_path / "store", "words") as pipeline:
        counts: Counter[str] = Counter()
        for part in pipeline.state["counts"].values():
            counts.update(json.loads(part))
        assert counts == Counter(" ".join(text).split())
        assert pipeline.offsets == {"input": {"byte": str(os.path.getsize(tmp_path / "input.txt"))}}
    assert answer("verify", tmp_path / "store" / "words", "--read-data")["findings"] == []
    assert "is a pipeline" in refusal("pipelines", tmp_path / "store" / "words", code=2)
