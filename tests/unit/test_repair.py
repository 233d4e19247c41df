"""A damaged newest record: what is said of it, and how a repair goes on from the one before it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import slackwater
from slackwater.clock import SystemClock
from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable
from slackwater.formats import manifest as manifests
from slackwater.formats import record as records
from slackwater.formats import state as states
from slackwater.formats.change import Repair
from slackwater.formats.keys import manifest_key
from slackwater.formats.state import State
from slackwater.ops.pipelines import pipelines, read_pipeline
from slackwater.ops.repair import RepairPlan, repair
from slackwater.ops.rollback import rollback
from slackwater.ops.savepoint import create_label, delete_label
from slackwater.ops.verify import verify
from slackwater.protocol import retention
from slackwater.protocol import state as protocol_state
from slackwater.protocol.log import Log
from slackwater.protocol.sinks import SinkFailed
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.store import open_store
from slackwater.store.checked import Checked
from slackwater.store.disk import Disk
from tests.pipelines import Driver, FolderSink, flip, make_pipeline
from tests.unit.test_rollback import damage, dies_at, refuse_undo, rows, state_of


def newest(pipeline: Path) -> Path:
    return max((pipeline / "log").iterdir())


def sinks_of(root: Path, *names: str) -> Any:
    return {name: Driver.sink_at(root, "orders", name) for name in names or ("totals",)}


def mend(root: Path, **fields: Any) -> RepairPlan:
    """Damage the newest record, and repair that, with the sink looked at."""
    pipeline = root / "store" / "orders"
    flip(newest(pipeline))
    plan = repair(pipeline, sinks=fields.pop("sinks", sinks_of(root)), **fields)
    assert plan is not None
    return plan


def goes_on(root: Path, *micro_batches: int) -> Driver:
    """Start, see that the sink holds just these, and that the next ones follow."""
    driver = Driver(root)
    assert driver.sinks["totals"].rows() == rows(*micro_batches)
    assert driver.micro_batch == len(micro_batches) - 1
    driver.step()
    driver.step()
    expected = range(len(micro_batches) + 2)
    assert driver.sinks["totals"].rows() == rows(*expected)
    assert driver.sinks["totals"].staged() == []
    assert verify(driver.pipeline, read_data=True).sound
    return driver


# --- what is said


def test_the_error_says_what_the_record_may_have_been_and_what_to_run(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3, release=False)
    flip(newest(pipeline))
    with pytest.raises(Corrupt) as caught:
        read_pipeline(str(pipeline))
    error = caught.value
    assert error.code == "log.corrupt" and "record 4" in error.message and "checkpoint 3" in error.message
    assert "record 3 before it ends at epoch 2" in error.message
    assert "slackwater repair URL" in str(error.hint) and "record 3" in str(error.hint)
    assert error.details["damaged"] == [4] and error.details["before"] == 3 and error.details["epoch"] == 2
    (summary,) = pipelines(str(pipeline.parent))
    assert summary.problem is not None and "checkpoint 3" in summary.problem.message
    with pytest.raises(Corrupt, match="may have been checkpoint 3"):
        Driver(tmp_path)


def test_a_lost_rollback_is_named_with_its_target(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    rollback(str(pipeline), "2")
    newest(pipeline).unlink()  # the release
    flip(newest(pipeline))
    with pytest.raises(Corrupt, match="may have been a rollback to 2 as epoch 5"):
        read_pipeline(str(pipeline))


def test_several_damaged_records_are_all_named(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    found = sorted((pipeline / "log").iterdir())
    for path in found[-2:]:
        flip(path)
    with pytest.raises(Corrupt, match="each of the records 4 to 5, all damaged") as caught:
        read_pipeline(str(pipeline))
    assert caught.value.details["damaged"] == [4, 5]
    plan = repair(pipeline, sinks=sinks_of(tmp_path))
    assert plan is not None and plan.damaged_records == [4, 5] and (plan.to_epoch, plan.epoch) == (2, 5)
    goes_on(tmp_path, 0, 1)


def test_a_record_that_was_read_wrong_once_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    real, wrong = Checked.get, [True]

    def get(self: Checked, key: str, **fields: Any) -> bytes:
        data = real(self, key, **fields)
        return b"x" + data[1:] if key.startswith("log/") and wrong and wrong.pop() else data

    monkeypatch.setattr(Checked, "get", get)
    assert state_of(pipeline).epoch == 2
    assert repair(pipeline, dry_run=True) is None


def test_a_record_that_reads_otherwise_each_time_is_not_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    before, real, reads = newest(pipeline), Checked.get, iter(range(1, 100))

    def get(self: Checked, key: str, **fields: Any) -> bytes:
        return b"%d" % next(reads) if key.endswith(before.name) else real(self, key, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(Checked, "get", get)
        with pytest.raises(Unavailable, match="not read as it was") as caught:
            repair(pipeline)
    assert caught.value.code == "store.unavailable"
    assert newest(pipeline) == before and state_of(pipeline).epoch == 2


def test_a_record_that_the_disk_cannot_read_is_not_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    bad, real = newest(pipeline), Disk.get

    def get(self: Disk, key: str, *args: Any) -> bytes:
        if key.endswith(bad.name):
            raise OSError(errno.EIO, "bad block")
        return real(self, key, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "get", get)
        for call in (state_of, partial(repair, dry_run=True)):
            with pytest.raises(Unavailable) as caught:
                call(pipeline)
            assert bad.name in caught.value.message
            assert "Never delete a record of the log" in str(caught.value.hint)
    bad.write_bytes(bytes(bad.stat().st_size))  # what dd leaves of it
    assert repair(pipeline, sinks=sinks_of(tmp_path)) is not None
    goes_on(tmp_path, 0, 1)


# --- what is repaired, whatever was lost


def test_a_lost_checkpoint_is_taken_back_and_read_again(tmp_path: Path) -> None:
    make_pipeline(tmp_path, 4, release=False)
    assert Driver.sink_at(tmp_path).rows() == rows(0, 1, 2, 3)
    plan = mend(tmp_path)
    assert (plan.from_number, plan.head_epoch, plan.to_epoch, plan.epoch) == (4, 3, 3, 5)
    assert plan.unsettled and plan.undone_epochs == [] and plan.passed_over == []
    assert [(sink.action, sink.detail) for sink in plan.sinks] == [("undo", "1 rows")]
    assert plan.sources[0].now == {"offset": "300"} and plan.sources[0].then == {"offset": "200"}
    goes_on(tmp_path, 0, 1, 2)


def test_a_lost_release_costs_nothing(tmp_path: Path) -> None:
    make_pipeline(tmp_path, 3)
    plan = mend(tmp_path)
    assert (plan.to_epoch, plan.epoch) == (3, 5) and plan.sinks[0].detail == "0 rows"
    goes_on(tmp_path, 0, 1, 2)


def test_a_lost_claim_fences_its_driver(tmp_path: Path) -> None:
    make_pipeline(tmp_path, 2)
    running = Driver(tmp_path)
    mend(tmp_path)
    with pytest.raises(Conflict) as caught:
        running.step()
    assert caught.value.code == "driver.fenced"
    goes_on(tmp_path, 0, 1)


def test_a_driver_that_knows_the_damaged_record_may_be_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Driver(tmp_path)
    running.step()
    running.step()
    flip(newest(running.pipeline))
    real = Log.repair

    def late(self: Log, *args: Any) -> bool:
        running.step()
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Log, "repair", late)
        assert repair(running.pipeline, sinks=sinks_of(tmp_path)) is None
    assert repair(running.pipeline, dry_run=True) is None
    assert state_of(running.pipeline).epoch == 3
    running.step()
    running.release()
    assert Driver(tmp_path).sinks["totals"].rows() == rows(0, 1, 2, 3)


def test_a_repair_that_slept_until_its_number_was_trimmed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Driver(tmp_path)
    running.step()
    running.step()
    flip(newest(running.pipeline))
    real, slept = Checked.create, [False]

    def create(self: Checked, key: str, data: bytes) -> bool:
        if not slept[0] and key.startswith("log/"):
            slept[0] = True
            running.step()
            running.step()
            self.delete([key])  # as a trim does
        return real(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(Checked, "create", create)
        assert repair(running.pipeline, sinks=sinks_of(tmp_path)) is None
    running.step()
    assert state_of(running.pipeline).epoch == 5
    assert running.sinks["totals"].rows() == rows(0, 1, 2, 3, 4)


@pytest.mark.parametrize("driven", [False, True])
def test_a_lost_rollback_is_done_again(tmp_path: Path, driven: bool) -> None:
    pipeline = make_pipeline(tmp_path, 5)
    rollback(str(pipeline), "2")
    newest(pipeline).unlink()  # the release
    if driven:
        Driver(tmp_path)
        newest(pipeline).unlink()  # the claim; its driver has undone
        assert Driver.sink_at(tmp_path).rows() == rows(0, 1)
    plan = mend(tmp_path)
    assert (plan.to_epoch, plan.epoch, plan.undone_epochs) == (2, 7, [3, 4, 5])
    assert "a rollback to epoch 2 may have been lost" in plan.why
    goes_on(tmp_path, 0, 1)


@pytest.mark.parametrize("damaged", [b'"tn_epoch":3', b'"to_epoch":2', b'"to_epoch":4'])
def test_of_a_lost_rollback_that_cannot_be_made_out_the_oldest_target_is_taken(tmp_path: Path, damaged: bytes) -> None:
    pipeline = make_pipeline(tmp_path, 5)
    rollback(str(pipeline), "3")
    head = state_of(pipeline).head
    Driver(tmp_path)
    assert head is not None
    path = pipeline / manifest_key(head.checkpoint_id)
    path.write_bytes(path.read_bytes().replace(b'"to_epoch":3', damaged))
    for path in sorted((pipeline / "log").iterdir())[-2:]:
        path.unlink()  # the claim, the release
    shutil.rmtree(tmp_path / "work")
    plan = mend(tmp_path)
    assert plan.to_epoch == 1 and "may have been a rollback to any epoch" in plan.why
    goes_on(tmp_path, 0)


def test_a_sink_that_is_where_nothing_else_tells_of_is_taken_back_to_the_oldest(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    Driver.sink_at(tmp_path).undo(2, 9)
    plan = mend(tmp_path)
    assert (plan.to_epoch, plan.epoch) == (1, 10) and "a sink is at epoch 9" in plan.why
    assert plan.sinks[0].detail == "1 rows"
    goes_on(tmp_path, 0)
    assert state_of(pipeline).epoch == 12


def test_a_sink_that_only_the_oldest_target_brings_is_looked_at_too(tmp_path: Path) -> None:
    first = Driver(tmp_path, sinks=("old", "totals"))
    first.step()
    first.release()
    later = Driver(tmp_path)
    later.step()
    later.step()
    later.release()
    Driver.sink_at(tmp_path).undo(2, 9)
    Driver.sink_at(tmp_path, "orders", "old").undo(0, 12)
    plan = mend(tmp_path, sinks=sinks_of(tmp_path, "old", "totals"))
    assert (plan.to_epoch, plan.epoch) == (1, 13)
    assert [(sink.name, sink.detail) for sink in plan.sinks] == [("old", "0 rows"), ("totals", "1 rows")]
    assert Driver(tmp_path, sinks=("old", "totals")).sinks["totals"].rows() == rows(0)


@pytest.mark.parametrize("committed", [(), ("a",), ("a", "b")])
def test_what_the_target_has_staged_is_committed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: tuple[str, ...]
) -> None:
    driver = Driver(tmp_path, sinks=("a", "b"))
    driver.step()
    for name in {"a", "b"} - set(committed):
        monkeypatch.setattr(driver.sinks[name], "commit", lambda descriptors, epoch: 1 / 0)
    with pytest.raises(SinkFailed) if len(committed) < 2 else pytest.raises(ZeroDivisionError):
        driver.step()
        raise ZeroDivisionError
    driver.release()
    plan = mend(tmp_path, sinks=sinks_of(tmp_path, "a", "b"))
    assert plan.unsettled and (plan.head_epoch, plan.to_epoch) == (2, 2)
    assert state_of(driver.pipeline).settled_epoch == 1
    again = Driver(tmp_path, sinks=("a", "b"))
    assert [sink.rows() for sink in again.sinks.values()] == [rows(0, 1)] * 2
    again.step()
    assert [sink.rows() for sink in again.sinks.values()] == [rows(0, 1, 2)] * 2
    assert again.driver.state.settled_epoch == 4
    assert all(sink.staged() == [] for sink in again.sinks.values())


def test_a_repair_of_a_repair_still_commits_what_was_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path)
    driver.step()
    monkeypatch.setattr(driver.sinks["totals"], "commit", lambda descriptors, epoch: 1 / 0)
    with pytest.raises(SinkFailed):
        driver.step()
    driver.release()
    first = mend(tmp_path)
    create_label(read_pipeline(str(driver.pipeline)).log, "kept", "latest")
    second = mend(tmp_path)
    assert (first.epoch, second.head_epoch, second.to_epoch, second.unsettled) == (4, 4, 2, True)
    goes_on(tmp_path, 0, 1)


def test_a_repair_that_a_start_has_not_settled_is_not_fallen_back_from_to_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path)
    driver.step()
    monkeypatch.setattr(driver.sinks["totals"], "commit", lambda descriptors, epoch: 1 / 0)
    with pytest.raises(SinkFailed):
        driver.step()
    driver.release()
    mend(tmp_path, keep_older=True)
    damage(driver.pipeline, 4)
    again = Driver(tmp_path, fallback=True)
    assert again.micro_batch == 0 and again.sinks["totals"].rows() == rows(0)
    again.step()
    assert again.sinks["totals"].rows() == rows(0, 1)


def test_a_rollback_before_the_damage_that_no_start_has_followed_is_followed(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    rollback(str(pipeline), "2")
    plan = mend(tmp_path)  # the release of the tool
    assert (plan.head_epoch, plan.to_epoch, plan.epoch, plan.unsettled) == (5, 2, 7, False)
    goes_on(tmp_path, 0, 1)


def test_a_rollback_before_the_damage_keeps_what_it_was_told_to_keep(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    rollback(str(pipeline), "2", keep=["totals"])
    plan = mend(tmp_path)
    assert plan.sinks[0].action == "keep"
    assert Driver(tmp_path).sinks["totals"].rows() == rows(0, 1, 2, 3)


def test_what_the_driver_still_deletes_is_not_missed(tmp_path: Path) -> None:
    slow = Driver(tmp_path, keep_last=1)
    slow.step()
    real = retention.delete_doomed
    waiting: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "delete_doomed", lambda store, doomed: waiting.append(doomed))
        slow.step()  # Epoch 1 is retired by the record that is damaged, and not deleted yet.
    mend(tmp_path)
    assert waiting
    for doomed in waiting:
        real(slow.store, doomed)
    goes_on(tmp_path, 0)


def test_savepoints_stay_and_the_others_leave(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    create_label(read_pipeline(str(pipeline)).log, "kept", "2")
    create_label(read_pipeline(str(pipeline)).log, "lost", "3")
    plan = mend(tmp_path)
    assert plan.labels == ["kept"] and [reason.epoch for reason in plan.retired] == [1, 3, 4]
    state = state_of(pipeline)
    assert [entry.epoch for entry in state.branch] == [2, 6] and state.find(6) is state.head
    driver = goes_on(tmp_path, 0, 1, 2, 3)
    driver.release()
    rollback(str(pipeline), "kept")
    assert Driver(tmp_path).sinks["totals"].rows() == rows(0, 1)


def test_older_ones_stay_where_nobody_else_is_at_work_but_those_that_are_gone(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    state = state_of(pipeline)
    (pipeline / manifest_key(state.live[0].checkpoint_id)).unlink()
    flip(pipeline / manifest_key(state.live[1].checkpoint_id))  # it may come back from a copy
    plan = mend(tmp_path, keep_older=True)
    assert [(retired.epoch, retired.reason) for retired in plan.retired] == [(1, "bytes of it are missing")]
    assert [entry.epoch for entry in state_of(pipeline).live] == [2, 3, 4, 6]


def test_a_savepoint_whose_bytes_are_missing_is_told_and_stays(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    create_label(read_pipeline(str(pipeline)).log, "kept", "1")
    delete_label(read_pipeline(str(pipeline)).log, "kept")
    create_label(read_pipeline(str(pipeline)).log, "kept", "1")
    create_label(read_pipeline(str(pipeline)).log, "other", "2")
    (pipeline / manifest_key(state_of(pipeline).live[0].checkpoint_id)).unlink()
    plan = mend(tmp_path)
    assert plan.damaged_labels == ["kept"]
    assert [savepoint.label for savepoint in state_of(pipeline).labels] == ["kept"]


def test_a_damaged_target_is_passed_over(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    damage(pipeline, 3)
    plan = mend(tmp_path)
    assert plan.to_epoch == 2 and [passed.epoch for passed in plan.passed_over] == [4, 3]
    assert all("missing or damaged" in passed.reason for passed in plan.passed_over)
    goes_on(tmp_path, 0, 1)


def read_wrong(monkeypatch: pytest.MonkeyPatch, what: str, wrong: Iterator[bool]) -> None:
    """Flip a bit of what is read, one time or the other; where it lies, it is right."""
    real = Checked.get

    def get(self: Checked, key: str, **fields: Any) -> bytes:
        data = real(self, key, **fields)
        return data[:-1] + bytes([data[-1] ^ 1]) if what in key and next(wrong, False) else data

    monkeypatch.setattr(Checked, "get", get)


@pytest.mark.parametrize("what", [".lcb", ".snap", "manifest"])
def test_one_bad_read_does_not_pass_the_newest_checkpoint_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    settings = Settings(inline_max_bytes=0, object_min_bytes=1000)
    with slackwater.open_pipeline(tmp_path, "orders", settings=settings) as program:
        for row in (1, 2, 3):
            state = {0: b"%d" % row, 1: b"%d" % row * 2000}
            program.checkpoint(offsets={"rows": {"row": row}}, state={"counts": state})
    pipeline = tmp_path / "orders"
    flip(newest(pipeline))
    with monkeypatch.context() as patch:
        # The manifest of the target is read once more before: for its sinks.
        read_wrong(patch, what, iter([True] * (4 if what == "manifest" else 1)))
        plan = repair(pipeline)
    assert plan is not None and (plan.to_epoch, plan.passed_over) == (3, [])
    with slackwater.open_pipeline(tmp_path, "orders") as program:
        assert program.offsets == {"rows": {"row": "3"}}


def test_a_manifest_that_no_record_names_is_read_twice_before_it_may_have_been_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(tmp_path, 4, release=False)
    lost = read_pipeline(str(pipeline)).state.live[-1].checkpoint_id
    read_wrong(monkeypatch, manifest_key(lost), cycle([True, False]))
    assert mend(tmp_path).to_epoch == 3


def lose_the_oldest(root: Path) -> tuple[Path, list[str]]:
    """Damage the newest record and the manifest of its checkpoint; it has retired epoch 1, which is deleted."""
    driver = Driver(root, keep_last=3)
    for _ in range(4):
        driver.step()
    (driver.pipeline / manifest_key(driver.driver.state.live[-1].checkpoint_id)).write_bytes(b"rot")
    flip(newest(driver.pipeline))
    return driver.pipeline, driver.sinks["totals"].rows()


def test_where_the_oldest_is_gone_it_is_said_what_was_not_tried_and_what_goes_on(tmp_path: Path) -> None:
    pipeline, before = lose_the_oldest(tmp_path)
    with pytest.raises(Corrupt, match="newer ones were not tried: 2, 3") as caught:
        repair(pipeline, sinks=sinks_of(tmp_path))
    assert caught.value.code == "head.none_verifies" and "taken back to epoch 1 at least" in caught.value.message
    assert "--keep totals goes on from the newest" in str(caught.value.hint)
    plan = repair(pipeline, sinks=sinks_of(tmp_path), keep=["totals"])
    assert plan is not None and (plan.to_epoch, plan.sinks[0].action) == (3, "keep")
    assert "nothing that old is left, and all sinks keep their rows" in plan.why
    assert [passed.epoch for passed in plan.passed_over] == [1]
    again = Driver(tmp_path)
    assert again.micro_batch == 2 and again.sinks["totals"].rows() == before
    again.step()
    assert again.sinks["totals"].rows() == [*before, *rows(3)]


def test_sinks_that_keep_are_taken_back_no_less_while_there_is_a_checkpoint_to_do_so(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4, release=False)
    (pipeline / manifest_key(state_of(pipeline).live[-1].checkpoint_id)).write_bytes(b"rot")
    assert mend(tmp_path, keep=["totals"]).to_epoch == 1


@pytest.mark.parametrize("sinks", ["none", "cannot undo"])
def test_where_no_sink_can_undo_the_newest_is_gone_on_from_whatever_was_lost(tmp_path: Path, sinks: str) -> None:
    sink = FolderSink(tmp_path / "lake")
    sink.can_undo = sinks == "none"
    given: Any = {} if sinks == "none" else {"totals": sink}
    program = slackwater.open_pipeline(tmp_path, "orders", sinks=given, settings=Settings(keep_last=3))
    for row in range(1, 5):
        last = program.checkpoint(offsets={"rows": {"row": row}}, state={"counts": {0: b"%d" % row}})
    pipeline = tmp_path / "orders"
    (pipeline / manifest_key(last.checkpoint_id)).write_bytes(b"rot")
    flip(newest(pipeline))
    plan = repair(pipeline, sinks=given)
    assert plan is not None and (plan.to_epoch, plan.passed_over) == (3, [])
    with slackwater.open_pipeline(tmp_path, "orders", sinks=given) as program:
        assert program.offsets == {"rows": {"row": "3"}} and program.state == {"counts": {0: b"3"}}


def test_a_lost_rollback_is_done_again_without_sinks_too(tmp_path: Path) -> None:
    with slackwater.open_pipeline(tmp_path, "orders") as program:
        for row in range(1, 5):
            program.checkpoint(offsets={"rows": {"row": row}}, state={})
    pipeline = tmp_path / "orders"
    rollback(str(pipeline), "2")
    newest(pipeline).unlink()  # the release
    flip(newest(pipeline))
    plan = repair(pipeline)
    assert plan is not None and plan.to_epoch == 2


def test_a_sink_that_the_pipeline_had_once_can_be_named_to_keep(tmp_path: Path) -> None:
    first = Driver(tmp_path, sinks=("old", "totals"), keep_last=3)
    first.step()
    first.step()
    first.release()
    later = Driver(tmp_path, keep_last=3)
    later.step()
    later.step()
    (later.pipeline / manifest_key(later.driver.state.live[-1].checkpoint_id)).write_bytes(b"rot")
    flip(newest(later.pipeline))
    with pytest.raises(Corrupt) as caught:
        repair(later.pipeline, sinks=sinks_of(tmp_path))
    assert "--keep old --keep totals goes on" in str(caught.value.hint)
    plan = repair(later.pipeline, sinks=sinks_of(tmp_path), keep=["old", "totals"])
    assert plan is not None and plan.to_epoch == 3


@pytest.mark.parametrize("stray", [{"epoch": 2**53 - 1}, {"epoch": 2**53 - 3}, {"epoch": 7, "uid": "0" * 32}])
def test_a_manifest_that_cannot_be_right_does_not_say_where_to_go_on(tmp_path: Path, stray: dict[str, Any]) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    store = open_store(str(pipeline))
    head = state_of(pipeline).live[-1]
    checkpoint_id = SystemClock().checkpoint_id()
    made = msgspec.structs.replace(load_manifest(store, head), checkpoint_id=checkpoint_id, **stray)
    store.put(manifest_key(checkpoint_id), manifests.encode(made))
    plan = mend(tmp_path)
    # It may be a damaged one of a rollback: so the oldest is taken.
    assert (plan.to_epoch, plan.epoch) == (1, 5)
    assert f"{checkpoint_id} cannot be made out" in plan.why
    goes_on(tmp_path, 0)


def test_the_state_is_one_that_can_be_read_again_and_its_driver_has_ended(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    number = int(newest(pipeline).stem)
    mend(tmp_path)
    record = records.decode(newest(pipeline).read_bytes(), number=number + 1)
    before = records.decode((pipeline / "log" / f"{number - 1:020d}.json").read_bytes(), number=number - 1)
    assert isinstance(record.change, Repair) and record.change.from_number == number - 1
    assert record.change.driver.endswith("repair")
    assert record.previous_sha256 == records.digest((pipeline / "log" / f"{number - 1:020d}.json").read_bytes())
    assert record.state.generation == number + 1 and record.state.release_append_id == record.append_id
    assert record.state.uid == before.state.uid
    assert record.state.head is not None and record.state.head.repair
    entry = record.state.head
    manifest = load_manifest(open_store(str(pipeline)), entry)
    assert all(stored.key.startswith(f"checkpoints/{entry.checkpoint_id}/") for stored in manifest.objects)
    assert manifest.objects


def test_what_was_passed_by_is_no_damage_to_a_verification(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    mend(tmp_path)
    found = verify(pipeline, read_data=True)
    assert found.sound and [(finding.severity, finding.code) for finding in found.findings] == [("note", "log.corrupt")]
    assert "has passed it by" in found.findings[0].message
    # Put back from a copy, it is one of a branch of history that nobody takes.
    flip(sorted((pipeline / "log").iterdir())[-2])
    assert verify(pipeline, read_data=True).findings == []


# --- what is not


def test_there_is_nothing_to_repair_where_nothing_is_damaged(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    assert slackwater.repair(pipeline, dry_run=True) is None and slackwater.repair(pipeline) is None
    mend(tmp_path)
    before = newest(pipeline)
    assert slackwater.repair(pipeline) is None and newest(pipeline) == before
    with pytest.raises(NotFound):
        repair(tmp_path / "store" / "nothing", dry_run=True)


@pytest.mark.parametrize("what", ["first-record", "no-checkpoint", "gap", "no-target"])
def test_what_cannot_be_repaired_is_refused_and_the_way_out_is_named(tmp_path: Path, what: str) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    found = sorted((pipeline / "log").iterdir())
    if what == "gap":
        found[-2].unlink()
    if what == "no-target":
        damage(pipeline, 1)
    for path in found[{"first-record": 1, "no-checkpoint": 2}.get(what, 4) :]:
        path.unlink()
    with pytest.raises(Corrupt) as caught:
        mend(tmp_path)
    assert caught.value.code == "head.none_verifies" and "repair cannot go on without it" in str(caught.value)
    assert f"restore log/{newest(pipeline).name}" in str(caught.value.hint)
    with pytest.raises(SlackwaterError):
        state_of(pipeline)


def test_a_repair_that_nobody_could_read_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    before = [path.name for path in sorted((pipeline / "log").iterdir())]
    largest = max(path.stat().st_size for path in (pipeline / "log").iterdir())
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", largest)
    with pytest.raises(InvalidInput) as caught:
        mend(tmp_path, keep_older=True)
    assert caught.value.code == "log.state_too_large"
    assert [path.name for path in sorted((pipeline / "log").iterdir())] == before


def test_an_unknown_sink_to_keep_is_refused(tmp_path: Path) -> None:
    make_pipeline(tmp_path, 2)
    with pytest.raises(InvalidInput, match="no sink named"):
        mend(tmp_path, keep=["sales"])


def test_a_sink_that_refuses_stops_it_and_keep_leaves_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make_pipeline(tmp_path, 3, release=False)
    monkeypatch.setattr(FolderSink, "plan_undo", refuse_undo)
    with pytest.raises(Conflict, match="would refuse: somebody else") as caught:
        mend(tmp_path)
    assert caught.value.code == "sink.undo_refused" and "keep=['totals']" in str(caught.value.hint)
    plan = repair(pipeline, sinks=sinks_of(tmp_path), keep="totals")
    assert plan is not None and plan.sinks[0].action == "keep"
    driver = Driver(tmp_path)
    driver.step()
    assert driver.sinks["totals"].rows() == rows(0, 1, 2, 2)


@pytest.mark.parametrize("point", ["repair.manifest.before", "repair.manifest.after", "repair.append.after"])
def test_a_repair_that_dies_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    pipeline = make_pipeline(tmp_path, 3, release=False)
    with dies_at(point, monkeypatch):
        mend(tmp_path)
    again = repair(pipeline, sinks=sinks_of(tmp_path))
    assert (again is None) == (point == "repair.append.after")
    driver = goes_on(tmp_path, 0, 1)
    # What the first try left is swept.
    known = set(driver.driver.state.checkpoint_ids)
    assert {path.name for path in (pipeline / "checkpoints").iterdir() if path.is_dir()} == known


def test_an_answer_that_was_lost_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_pipeline(tmp_path, 3)
    real, answers = Checked.create, ["never", "landed"]

    def create(self: Checked, key: str, data: bytes) -> bool:
        if answers:
            if answers.pop() == "landed":
                real(self, key, data)
            raise Unavailable("no answer", code="store.unavailable")
        return real(self, key, data)

    monkeypatch.setattr(Checked, "create", create)
    mend(tmp_path)
    assert not answers
    monkeypatch.undo()
    goes_on(tmp_path, 0, 1, 2)


# --- what fits


def change(state: State, **fields: Any) -> Repair:
    head = state.head
    made = Repair(
        driver="host:1 repair",
        from_number=3,
        epoch=state.epoch + 2,
        checkpoint_id="0192d3f0-7b7c-7000-8000-00000000abcd",
        manifest_sha256="ab" * 32,
        manifest_size_bytes=1,
        parent_id=head.checkpoint_id if head else None,
        to_epoch=state.epoch,
        retire=[],
    )
    return msgspec.structs.replace(made, **fields)


def apply(state: State, repair: Repair) -> State:
    return protocol_state.apply(state, repair, number=99, append_id="e" * 32, at_ms=0)


def test_a_repair_is_a_claim_a_rollback_and_a_release(tmp_path: Path) -> None:
    state = state_of(make_pipeline(tmp_path, 3, release=False))
    assert state.settled_epoch == 2
    after = apply(state, change(state, retire=[1, 3]))
    assert (after.generation, after.epoch, after.settled_epoch) == (99, 5, 2)
    assert after.claim_append_id == after.release_append_id == "e" * 32 and after.has("e" * 32)
    assert [(entry.epoch, entry.rollback_to, entry.repair) for entry in after.live] == [(2, None, False), (5, 3, True)]
    assert [entry.epoch for entry in after.retired] == [1, 3]
    assert states.find_contradiction(after, 99) is None
    # Only a repair may have an open target.
    plain = [msgspec.structs.replace(entry, repair=False) for entry in after.live]
    assert states.find_contradiction(msgspec.structs.replace(after, live=plain), 99) is not None
    too_far = msgspec.structs.replace(after, settled_epoch=1)
    assert states.find_contradiction(too_far, 99) is not None


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"epoch": 3}, "checkpoint.out_of_order", "does not follow"),
        ({"parent_id": None}, "checkpoint.out_of_order", "does not follow"),
        ({"to_epoch": 9}, "checkpoint.not_found", ""),
        ({"retire": [5]}, "retire.not_allowed", ""),
        ({"retire": [4]}, "retire.not_allowed", ""),
    ],
)
def test_a_repair_that_does_not_fit_is_refused(tmp_path: Path, fields: dict[str, Any], code: str, words: str) -> None:
    state = state_of(make_pipeline(tmp_path, 3))
    with pytest.raises(SlackwaterError) as caught:
        apply(state, change(state, **fields))
    assert caught.value.code == code and words in str(caught.value)


def test_an_empty_pipeline_is_not_repaired(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    with pytest.raises(Conflict, match="does not follow"):
        apply(driver.driver.state, change(driver.driver.state))


def test_records_that_may_have_been_trimmed_are_not_looked_at(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    flip(newest(pipeline))
    log = Log(open_store(str(pipeline)), SystemClock(), Settings(), kept_records=1)
    lost = log.look_back(int(newest(pipeline).stem))
    assert lost.numbers == [5] and lost.before is None
    assert cast(Any, Log(open_store(str(pipeline)), SystemClock(), Settings()).look_back(5).before).number == 4
