"""Rollback in the storage core: what it does on record, at the next start, and when it dies in between."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from slackwater import failpoints
from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError
from slackwater.formats import record as records
from slackwater.formats.change import Checkpoint, Release, Settlement
from slackwater.formats.keys import manifest_key
from slackwater.formats.manifest import Manifest, references
from slackwater.ops import rollback as rollback_tool
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.rollback import rollback
from slackwater.ops.savepoint import create_label
from slackwater.ops.verify import verify
from slackwater.protocol.artifacts import Holdings, get_artifacts
from slackwater.protocol.driver import Claimed, open_driver
from slackwater.protocol.kinds import refuse_foreign
from slackwater.protocol.pipeline import locate
from slackwater.protocol.sinks import SinkFailed
from slackwater.protocol.verified_reads import load_manifest, verify_restorable
from slackwater.spark import hydrate as hydrating
from slackwater.store import open_store
from slackwater.testing.faulty_store import Fault, Faults, FaultyStore, Kind
from tests.pipelines import Driver, FolderSink, make_pipeline


def rows(*micro_batches: int) -> list[str]:
    return [f"rows of {micro_batch}" for micro_batch in micro_batches]


def statuses(error: SinkFailed) -> dict[str, str]:
    return {name: sink.status for name, sink in error.settlement.sinks.items()}


def state_of(pipeline: Path):
    return read_pipeline(str(pipeline)).state


def damage(pipeline: Path, epoch: int) -> str:
    """Flip a bit in an object that this epoch wrote itself; return its key."""
    opened = read_pipeline(str(pipeline))
    entry = opened.state.find(epoch)
    assert entry is not None
    own = [key for key in references(load_manifest(opened.store, entry)) if entry.checkpoint_id in key]
    victim = pipeline / sorted(own)[0]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    return sorted(own)[0]


@contextmanager
def dies_at(point: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Expect the body to end at a failpoint, as if the process had died there."""
    with patch.context() as armed:
        armed.setattr(failpoints, "_armed", {point: (1, "raise")})
        armed.setattr(failpoints, "_hits", {})
        # A sink's failure is told in other words.
        with pytest.raises(SlackwaterError, match=f"failpoint {point}"):
            yield


def test_the_next_start_goes_on_from_the_older_checkpoint_and_takes_back_what_came_after(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 5)
    plan = rollback(str(pipeline), "2")
    assert (plan.epoch, plan.undone_epochs, plan.done) == (6, [3, 4, 5], False)
    state = state_of(pipeline)
    assert [(entry.epoch, entry.undone, entry.rollback_to) for entry in state.live] == [
        (1, False, None), (2, False, None), (3, True, None), (4, True, None), (5, True, None), (6, False, 2),
    ]  # fmt: skip
    assert state.release_append_id is not None and state.settled_epoch == 5
    driver = Driver(tmp_path)
    assert driver.micro_batch == 1
    assert driver.sinks["totals"].rows() == rows(0, 1)
    assert driver.sinks["totals"].epoch() == 6
    for _ in range(3):
        driver.step()
    assert driver.sinks["totals"].rows() == rows(0, 1, 2, 3, 4)
    assert driver.driver.state.settled_epoch == 8
    assert verify(pipeline, read_data=True).sound


def test_nothing_has_to_be_committed_before_it_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path)
    driver.step()
    driver.step()
    monkeypatch.setattr(driver.sinks["totals"], "commit", lambda descriptors, epoch: 1 / 0)
    with pytest.raises(Exception, match="did not commit epoch 3"):
        driver.step()
    assert driver.driver.state.settled_epoch == 2
    rollback(str(driver.pipeline), "2")
    again = Driver(tmp_path)
    assert again.sinks["totals"].rows() == rows(0, 1)
    assert again.sinks["totals"].staged() == []
    again.step()
    assert again.sinks["totals"].rows() == rows(0, 1, 2)


def test_a_running_driver_is_fenced_and_its_late_commit_changes_nothing(tmp_path: Path) -> None:
    running = Driver(tmp_path)
    for _ in range(3):
        running.step()
    plan = rollback(str(running.pipeline), "1")
    assert plan.running
    with pytest.raises(Conflict) as caught:
        running.step()
    assert caught.value.code == "driver.fenced"
    after = Driver(tmp_path)
    assert after.sinks["totals"].rows() == rows(0)
    # The old driver had put epoch 4 on its way; whatever it still commits is of an epoch that the sink has passed.
    running.sinks["totals"].commit([{"attempt": "unknown"}], 4)
    assert after.sinks["totals"].rows() == rows(0)


def test_rolling_back_again_goes_further_and_never_to_what_was_undone(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    rollback(str(pipeline), "3")
    with pytest.raises(Conflict) as caught:
        rollback(str(pipeline), "4")
    assert caught.value.code == "rollback.impossible" and "restore" in str(caught.value.hint)
    driver = Driver(tmp_path)
    driver.step()
    driver.release()
    assert driver.sinks["totals"].rows() == rows(0, 1, 2, 3)
    rollback(str(pipeline), "5")
    rollback(str(pipeline), "2")
    state = state_of(pipeline)
    assert [entry.epoch for entry in state.branch] == [1, 2, 8]
    # No driver started in between: two rollbacks wait, and the newest decides.
    assert state.settled_epoch == 6
    assert Driver(tmp_path).sinks["totals"].rows() == rows(0, 1)


def test_the_same_rollback_twice_is_one(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    rollback(str(pipeline), "2")
    assert rollback(str(pipeline), "2").done
    assert state_of(pipeline).epoch == 4


POINTS = ["claim.before", "claim.after", "rollback.manifest.after", "rollback.append.after", "release.before"]


@pytest.mark.parametrize("point", POINTS)
def test_a_rollback_that_dies_anywhere_is_repeated(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    with dies_at(point, monkeypatch):
        rollback(str(pipeline), "2")
    rollback(str(pipeline), "2")
    driver = Driver(tmp_path)
    assert driver.sinks["totals"].rows() == rows(0, 1)
    driver.step()
    assert driver.sinks["totals"].rows() == rows(0, 1, 2)
    # What the dead one left was swept.
    live = {manifest_key(entry.checkpoint_id) for entry in state_of(pipeline).live}
    assert {str(path.relative_to(pipeline)) for path in pipeline.glob("checkpoints/*/manifest.json")} == live


def test_a_start_that_dies_between_two_undos_does_the_rest_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, sinks=("a", "b"))
    for _ in range(3):
        driver.step()
    driver.release()
    rollback(str(driver.pipeline), "1")
    with dies_at("commit.after", monkeypatch):
        Driver(tmp_path, sinks=("a", "b"))
    assert [sink.rows() for sink in driver.sinks.values()] == [rows(0), rows(0, 1, 2)]
    again = Driver(tmp_path, sinks=("a", "b"))
    assert [sink.rows() for sink in again.sinks.values()] == [rows(0), rows(0)]


def test_a_sink_that_is_kept_keeps_its_rows_and_gets_the_repeated_ones(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    plan = rollback(str(pipeline), "2", keep=["totals"])
    assert [(sink.name, sink.action) for sink in plan.sinks] == [("totals", "keep")]
    driver = Driver(tmp_path)
    driver.step()
    assert driver.sinks["totals"].rows() == rows(0, 1, 2, 2)


def test_keeping_a_sink_that_is_not_there_is_refused(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    with pytest.raises(InvalidInput) as caught:
        rollback(str(pipeline), "1", keep=["total"])
    assert caught.value.code == "sink.invalid" and "has no sink named" in caught.value.message
    assert state_of(pipeline).epoch == 2


def test_a_plan_says_what_every_sink_and_source_will_do_and_changes_nothing(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    before = sorted(path.name for path in pipeline.rglob("*"))
    plan = rollback(str(pipeline), "2", sinks={"totals": cast(Any, Driver.sink_at(tmp_path))}, dry_run=True)
    assert [(sink.name, sink.action, sink.detail) for sink in plan.sinks] == [("totals", "undo", "2 rows")]
    (source,) = plan.sources
    assert source.now != source.then and source.source_type == "rate"
    assert sorted(path.name for path in pipeline.rglob("*")) == before


def test_a_path_an_epoch_as_a_number_and_one_name_are_taken_as_they_are_meant(tmp_path: Path) -> None:
    plan = rollback(make_pipeline(tmp_path, 3), 2, keep="totals", dry_run=True)
    assert (plan.to_epoch, [sink.action for sink in plan.sinks]) == (2, ["keep"])


def test_a_rollback_to_damaged_bytes_is_refused(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    key = damage(pipeline, 2)
    with pytest.raises(Corrupt, match=key):
        rollback(str(pipeline), "2")
    assert state_of(pipeline).epoch == 3


def test_the_newest_that_verifies_is_found_behind_damage(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    assert rollback(pipeline, "newest-verified", dry_run=True).to_epoch == 4
    damage(pipeline, 3)  # epoch 4 is built on it
    plan = rollback(str(pipeline), "newest-verified", dry_run=True)
    assert plan.to_epoch == 2 and [passed.epoch for passed in plan.passed_over] == [4, 3]
    assert all("missing or damaged" in passed.reason for passed in plan.passed_over)
    for epoch in (1, 2):
        damage(pipeline, epoch)
    with pytest.raises(Corrupt) as caught:
        rollback(str(pipeline), "newest-verified")
    assert caught.value.code == "head.none_verifies"
    assert [passed.epoch for passed in caught.value.details["passed_over"]] == [4, 3, 2, 1]


def test_a_head_whose_manifest_is_gone_can_be_rolled_back(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    head = state_of(pipeline).head
    assert head is not None
    (pipeline / manifest_key(head.checkpoint_id)).unlink()
    plan = rollback(str(pipeline), "newest-verified")
    assert (plan.to_epoch, plan.sources[0].now) == (2, None)
    assert Driver(tmp_path).sinks["totals"].rows() == rows(0, 1)


def test_a_pipeline_without_checkpoints_has_nothing_to_go_back_to(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 0)
    for to in ("1", "latest", "newest-verified"):
        with pytest.raises(NotFound):
            rollback(str(pipeline), to)


def test_retention_keeps_what_a_rollback_may_go_to_and_drops_what_was_undone(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4, keep_last=3)  # 2, 3, 4
    create_label(read_pipeline(str(pipeline)).log, "before", "2")
    rollback(str(pipeline), "before")
    driver = Driver(tmp_path, keep_last=3)
    for _ in range(2):
        driver.step()
    assert [(entry.epoch, entry.undone) for entry in driver.driver.state.live] == [
        (2, False), (5, False), (6, False), (7, False),
    ]  # fmt: skip
    assert driver.driver.state.retired == [] or driver.driver.state.retired[0].epoch in (3, 4)
    assert verify(pipeline, read_data=True).sound


def test_a_sink_that_is_gone_must_be_dropped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path, sinks=("a", "b"))
    driver.step()
    monkeypatch.setattr(driver.sinks["b"], "commit", lambda descriptors, epoch: 1 / 0)
    with pytest.raises(Exception, match="did not commit epoch 2"):
        driver.step()
    with pytest.raises(Conflict) as caught:
        Driver(tmp_path, sinks=("a",))
    assert caught.value.code == "sink.missing" and "drop_sink" in str(caught.value.hint)
    without = Driver(tmp_path, sinks=("a",), dropped=["b"])
    without.step()
    assert without.sinks["a"].rows() == rows(0, 1, 2)
    assert without.log.state is not None and without.log.state.settled_epoch == 2
    # It may come back, and starts after the head.
    both = Driver(tmp_path, sinks=("a", "b"))
    both.step()
    assert both.sinks["b"].rows() == rows(0, 3)


def test_an_undo_in_a_sink_that_is_gone_must_be_dropped_too(tmp_path: Path) -> None:
    driver = Driver(tmp_path, sinks=("a", "b"))
    driver.step()
    driver.step()
    driver.release()
    rollback(str(driver.pipeline), "1")
    with pytest.raises(Conflict, match="rows to take back"):
        Driver(tmp_path, sinks=("a",))
    Driver(tmp_path, sinks=("a",), dropped=["b"]).step()
    assert driver.sinks["a"].rows() == rows(0, 1) and driver.sinks["b"].rows() == rows(0, 1)


def test_a_sink_of_which_no_kept_manifest_knows_is_undone_all_the_same(tmp_path: Path) -> None:
    first = Driver(tmp_path, sinks=("a",), keep_last=1)
    first.step()
    create_label(first.log, "start")
    first.release()
    second = Driver(tmp_path, sinks=("a", "b"), keep_last=1)
    second.step()
    second.release()
    third = Driver(tmp_path, sinks=("a",), keep_last=1)
    third.step()
    third.release()
    rollback(str(first.pipeline), "start")
    last = Driver(tmp_path, sinks=("a", "b"), keep_last=1)
    assert last.sinks["a"].rows() == rows(0) and last.sinks["b"].rows() == []
    assert last.driver.state.settled_epoch == 3
    last.step()
    assert last.driver.state.settled_epoch == 4


def test_an_undo_that_fails_is_told_as_such_and_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path, sinks=("a", "b"))
    driver.step()
    driver.step()
    driver.release()
    rollback(str(driver.pipeline), "1")
    with monkeypatch.context() as broken:
        broken.setattr(FolderSink, "undo", lambda self, to_epoch, epoch: 1 / 0)
        with pytest.raises(SinkFailed) as caught:
            Driver(tmp_path, sinks=("a", "b"))
    assert caught.value.message == "the sink 'a' did not follow the rollback to epoch 1: ZeroDivisionError"
    assert statuses(caught.value) == {"a": "Failed", "b": "Pending"}
    assert [sink.rows() for sink in Driver(tmp_path, sinks=("a", "b")).sinks.values()] == [rows(0), rows(0)]


def test_a_failing_undo_of_a_sink_that_no_manifest_names_is_told_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    rollback(str(pipeline), "1")
    stray = Driver.sink_at(tmp_path, sink="stray")
    stray.keep(2)
    monkeypatch.setattr(FolderSink, "undo", fail_at(stray.root))
    with pytest.raises(SinkFailed, match="the sink 'stray' did not follow the rollback to epoch 1") as caught:
        Driver(tmp_path, sinks=("totals", "stray"))
    assert statuses(caught.value) == {"totals": "Committed", "stray": "Failed"}


def fail_at(root: Path) -> Any:
    """Make an undo that fails in the sink at ``root``, and is the real one in all others."""
    real = FolderSink.undo

    def undo(self: FolderSink, to_epoch: int, epoch: int) -> None:
        if self.root == root:
            raise OSError
        real(self, to_epoch, epoch)

    return undo


def test_a_refused_undo_names_its_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    rollback(str(pipeline), "1")

    def refuse(self: FolderSink, to_epoch: int, epoch: int) -> None:
        raise Conflict("somebody else has written", code="sink.undo_refused", hint="--keep NAME")

    monkeypatch.setattr(FolderSink, "undo", refuse)
    with pytest.raises(Conflict, match="the sink 'totals': somebody else has written") as caught:
        Driver(tmp_path)
    assert (caught.value.code, caught.value.hint) == ("sink.undo_refused", "--keep NAME")
    assert caught.value.details == {"sink": "totals"}


def test_a_settled_head_does_not_ask_for_a_sink_that_is_gone(tmp_path: Path) -> None:
    driver = Driver(tmp_path, sinks=("a", "b"))
    driver.step()
    driver.step()
    driver.release()
    rollback(str(driver.pipeline), "1")
    Driver(tmp_path, sinks=("a", "b")).release()
    # Out of the program while the others followed the rollback, it follows when it comes back.
    late = Driver.sink_at(tmp_path, sink="c")
    late.keep(2)
    again = Driver(tmp_path, sinks=("a", "c"))
    assert (again.sinks["a"].rows(), late.epoch()) == (rows(0), 3)
    again.step()
    assert again.sinks["a"].rows() == rows(0, 1)


def test_a_damaged_head_stops_a_start_that_was_not_told_to_fall_back(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    key = damage(pipeline, 3)  # epoch 4 is built on it
    with pytest.raises(Corrupt) as caught:
        Driver(tmp_path)
    assert caught.value.code == "head.damaged"
    assert caught.value.details == {"epoch": 4, "key": key, "lost": [3, 4], "newest_verified": 2}
    assert "epochs 3 to 4 are lost" in caught.value.message and "--to 2" in str(caught.value.hint)
    driver = Driver(tmp_path, fallback=True)
    assert driver.sinks["totals"].rows() == rows(0, 1)
    driver.step()
    assert driver.sinks["totals"].rows() == rows(0, 1, 2)
    assert [entry.epoch for entry in state_of(pipeline).branch] == [1, 2, 5, 6]


def test_without_a_sound_checkpoint_there_is_nothing_to_fall_back_to(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    damage(pipeline, 1)
    with pytest.raises(Corrupt, match="no older checkpoint can be restored either") as caught:
        Driver(tmp_path, fallback=True)
    assert caught.value.details["lost"] == [1, 2] and caught.value.details["newest_verified"] is None
    assert state_of(pipeline).epoch == 2


def test_a_rollback_hands_options_to_the_client_of_the_store(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="takes no options"):
            rollback(str(pipeline), "1", dry_run=dry_run, storage_options={"region": "eu"})


def refuse_undo(self: FolderSink, *epochs: int) -> str:
    raise Conflict("somebody else has written", code="sink.undo_refused")


def test_a_fallback_that_a_sink_refuses_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    damage(pipeline, 4)
    with monkeypatch.context() as refusing:
        refusing.setattr(FolderSink, "undo", refuse_undo)
        refusing.setattr(FolderSink, "plan_undo", refuse_undo)
        with pytest.raises(Corrupt, match="the sink 'totals' would refuse that: somebody else has written") as caught:
            Driver(tmp_path, fallback=True)
        assert caught.value.code == "head.damaged"
        assert "slackwater rollback URL --to 3 --keep totals --yes" in str(caught.value.hint)
    assert [(entry.epoch, entry.undone) for entry in state_of(pipeline).live] == [(n, False) for n in (1, 2, 3, 4)]
    # Both ways out that it names are open: here the object comes back from a copy.
    damage(pipeline, 4)
    driver = Driver(tmp_path)
    driver.step()
    assert driver.sinks["totals"].rows() == rows(0, 1, 2, 3, 4)


@pytest.mark.parametrize("driven", [False, True])
def test_a_fallback_keeps_what_the_rollback_before_it_was_told_to_keep(tmp_path: Path, driven: bool) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    rollback(str(pipeline), "3", keep=["totals"])
    if driven:
        Driver(tmp_path).release()
    damage(pipeline, 3)
    driver = Driver(tmp_path, fallback=True)
    assert driver.micro_batch == 1 and driver.sinks["totals"].rows() == rows(0, 1, 2, 3)
    head = driver.driver.state.head
    assert head is not None
    again = load_manifest(driver.store, head).rollback
    assert again is not None and (again.to_epoch, again.keep) == (2, ["totals"])


@pytest.mark.parametrize("kind", ["bit-flipped", "missing"])
def test_one_bad_read_never_makes_a_fallback_give_up_more(tmp_path: Path, kind: Kind) -> None:
    """The head, which keeps rows, is damaged; what it keeps and the newest that is sound are known all the same."""
    pipeline = make_pipeline(tmp_path, 4)
    rollback(str(pipeline), "3", keep=["totals"])
    Driver(tmp_path).release()
    damage(pipeline, 3)
    for nth in range(1, 100):
        root = tmp_path / str(nth)
        for folder in ("store", "lake"):
            shutil.copytree(tmp_path / folder, root / folder)
        with Faults(Fault(kind, verb="get", key="checkpoints/*", nth=nth)).everywhere() as faults:
            driver = Driver(root, fallback=True)
        head = driver.driver.state.head
        assert head is not None
        again = load_manifest(open_store(driver.store.url), head).rollback
        assert again is not None and (again.to_epoch, again.keep) == (2, ["totals"])
        assert driver.sinks["totals"].rows() == rows(0, 1, 2, 3)
        if not faults.befell:
            break
    assert 10 < nth < 100


@pytest.mark.parametrize("kind", ["bit-flipped", "truncated", "missing"])
def test_one_bad_read_neither_stops_a_start_nor_rolls_back(tmp_path: Path, kind: Kind) -> None:
    make_pipeline(tmp_path, 3)
    for nth in range(1, 100):
        with Faults(Fault(kind, verb="get", key="checkpoints/*", nth=nth)).everywhere() as faults:
            driver = Driver(tmp_path, fallback=bool(nth % 2))
        assert driver.micro_batch == 2 and driver.driver.state.epoch == 3
        if not faults.befell:
            break
    assert 3 < nth < 100
    driver.step()
    assert driver.sinks["totals"].rows() == rows(0, 1, 2, 3)


@pytest.mark.parametrize("other", ["address", "kind"])
def test_a_sink_may_move_when_its_output_is_committed_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    driver = Driver(tmp_path)
    driver.step()
    with monkeypatch.context() as patch:
        patch.setattr(driver.sinks["totals"], "commit", lambda descriptors, epoch: 1 / 0)
        with pytest.raises(Exception, match="did not commit epoch 2"):
            driver.step()
    elsewhere, sink_at = FolderSink(tmp_path / "elsewhere"), Driver.sink_at
    if other == "kind":
        elsewhere.kind, elsewhere.address = "bucket", sink_at(tmp_path).address
    monkeypatch.setattr(Driver, "sink_at", lambda *args: elsewhere)
    with pytest.raises(Conflict, match="output to commit for epoch 2") as caught:
        Driver(tmp_path)
    assert caught.value.code == "sink.missing" and elsewhere.address in caught.value.message
    assert elsewhere.epoch() == 0
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "sink_at", staticmethod(sink_at))
        Driver(tmp_path).release()
    moved = Driver(tmp_path)
    moved.step()
    assert elsewhere.rows() == rows(2) and sink_at(tmp_path).rows() == rows(0, 1)


@pytest.mark.parametrize("other", ["address", "kind"])
def test_a_rollback_is_not_driven_into_another_target_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    rollback(str(pipeline), "2")
    elsewhere = FolderSink(tmp_path / "elsewhere")
    if other == "kind":
        elsewhere.kind, elsewhere.address = "bucket", Driver.sink_at(tmp_path).address
    monkeypatch.setattr(Driver, "sink_at", lambda *args: elsewhere)
    with pytest.raises(Conflict, match="rows to take back") as caught:
        Driver(tmp_path)
    assert caught.value.code == "sink.missing" and elsewhere.address in caught.value.message
    assert elsewhere.epoch() == 0
    driver = Driver(tmp_path, dropped=["totals"])
    driver.step()
    settled = last_settlement(pipeline)
    assert settled is not None and settled.epoch == 4 and settled.sinks["totals"].status == "Dropped"
    assert elsewhere.rows() == rows(2)
    monkeypatch.undo()
    assert Driver.sink_at(tmp_path).rows() == rows(0, 1, 2)


def last_settlement(pipeline: Path) -> Settlement | None:
    newest = max((pipeline / "log").iterdir())
    change = records.decode(newest.read_bytes(), number=int(newest.stem)).change
    return change.settled if isinstance(change, Checkpoint | Release) else None


def test_a_sink_that_is_kept_may_have_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    rollback(str(pipeline), "2", keep=["totals"])
    monkeypatch.setattr(Driver, "sink_at", lambda *args: FolderSink(tmp_path / "elsewhere"))
    assert Driver(tmp_path).sinks["totals"].epoch() == 4


def test_a_rollback_moves_even_a_sink_that_it_does_not_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Driver(tmp_path, sinks=("a",))
    first.step()
    first.step()
    first.release()
    stalled, late = Driver(tmp_path, sinks=("a", "b")), list[Any]()  # b is new
    commit = stalled.sinks["b"].commit

    def stall(*output: Any) -> None:
        late.append(output)
        raise OSError

    monkeypatch.setattr(stalled.sinks["b"], "commit", stall)
    with pytest.raises(SinkFailed):
        stalled.step()
    # Of this epoch nobody can tell any more that it had output for b.
    head = state_of(first.pipeline).head
    assert head is not None
    (first.pipeline / manifest_key(head.checkpoint_id)).unlink()
    driver = Driver(tmp_path, sinks=("a", "b"), fallback=True)
    assert driver.sinks["b"].epoch() == 4
    commit(*late[0])  # the stalled driver wakes up
    driver.step()
    assert [sink.rows() for sink in driver.sinks.values()] == [rows(0, 1, 2), rows(2)]


def test_a_pipeline_has_the_name_that_its_manifests_say_wherever_the_url_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    link = tmp_path / "store" / "current"
    link.symlink_to(pipeline)
    sink = Driver.sink_at(tmp_path)
    monkeypatch.chdir(pipeline)
    for url in (str(link), "."):
        (sink.root / "owner").unlink()
        rollback(url, "2", sinks={"totals": cast(Any, sink)}, dry_run=True)
        assert (sink.root / "owner").read_text().startswith("orders/totals/")


def test_a_start_under_another_name_is_refused_before_it_claims(tmp_path: Path) -> None:
    make_pipeline(tmp_path, 2)
    (tmp_path / "store" / "orders").rename(tmp_path / "store" / "orders2")
    place = locate(str(tmp_path / "store" / "orders2"))
    misread = FaultyStore(place.store, Faults(Fault("bit-flipped", verb="get", nth=2)))
    place = msgspec.structs.replace(place, store=misread)
    for _ in ("sound", "read wrong once"):
        with pytest.raises(InvalidInput, match="holds the pipeline 'orders'") as caught:
            refuse_foreign(place, "spark")
        assert caught.value.code == "pipeline.renamed"
    assert refuse_foreign(msgspec.structs.replace(place, name="orders"), "spark") is not None


def test_a_time_names_what_is_on_the_branch(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    rollback(str(pipeline), "2")
    driver = Driver(tmp_path)
    driver.step()
    driver.release()
    # At 10:02 there was epoch 3, which was undone; 2 is the newest before it that was not.
    plan = rollback(str(pipeline), "@2026-11-15T10:02Z", dry_run=True)
    assert plan.to_epoch == 2
    assert [(passed.epoch, passed.reason) for passed in plan.passed_over] == [(3, "undone by a rollback")]
    assert rollback(str(pipeline), "2", dry_run=True).passed_over == []


def test_a_rollback_that_fails_after_its_claim_ends_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make_pipeline(tmp_path, 3)

    def fail(*args: Any, **fields: Any) -> None:
        raise NotFound("epoch 1 is not a live checkpoint", code="checkpoint.not_found")

    monkeypatch.setattr("slackwater.ops.rollback.roll_back", fail)
    with pytest.raises(NotFound, match="epoch 1 is not a live checkpoint"):
        rollback(str(pipeline), "1")
    state = state_of(pipeline)
    assert state.release_append_id is not None and state.epoch == 3


def test_a_rollback_to_the_head_leaves_a_driver_that_runs_alone(tmp_path: Path) -> None:
    running = Driver(tmp_path)
    running.step()
    running.step()
    plan = rollback(str(running.pipeline), "2")
    assert plan.done and plan.running
    running.step()
    assert running.sinks["totals"].rows() == rows(0, 1, 2)


def test_a_fallback_passes_over_what_verifies_and_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    damage(pipeline, 4)
    real = hydrating.check_structure

    def check(directory: Path, manifest: Manifest) -> None:
        real(directory, manifest)
        if manifest.micro_batch == 2:  # as if epoch 3 had been captured from a damaged directory
            raise Corrupt("was restored, but is not whole", code="restore.damaged")

    monkeypatch.setattr(hydrating, "check_structure", check)
    driver = Driver(tmp_path, fallback=True)
    assert driver.micro_batch == 1
    driver.step()
    assert driver.sinks["totals"].rows() == rows(0, 1, 2)


@pytest.mark.parametrize("why", ["kept", "cannot undo"])
def test_a_fallback_asks_only_the_sinks_that_would_undo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    pipeline = make_pipeline(tmp_path, 4)
    if why == "kept":
        rollback(str(pipeline), "3", keep=["totals"])
    damage(pipeline, 3)
    monkeypatch.setattr(FolderSink, "plan_undo", refuse_undo)
    monkeypatch.setattr(FolderSink, "can_undo", why == "kept")
    driver = Driver(tmp_path, fallback=True)
    assert driver.micro_batch == 1 and driver.sinks["totals"].rows() == rows(0, 1, 2, 3)


def test_what_else_a_sink_has_against_a_fallback_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    damage(pipeline, 3)

    def refuse(self: FolderSink, to_epoch: int) -> str:
        raise Conflict("it knows another uid", code="sink.foreign")

    monkeypatch.setattr(FolderSink, "plan_undo", refuse)
    with pytest.raises(Conflict, match=r"sink\.foreign"):
        Driver(tmp_path, fallback=True)
    assert state_of(pipeline).epoch == 3 and state_of(pipeline).release_append_id is not None


def test_who_does_not_agree_to_a_fallback_is_asked_once_and_nothing_is_changed(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    damage(pipeline, 3)
    place, asked = locate(str(pipeline)), list[int]()

    def refuse(damage: Corrupt, target: Manifest) -> None:
        asked.append(target.epoch)
        raise NotFound("what the inbox needs has gone", code="checkpoint.not_found")

    def take(manifest: Manifest | None, claimed: Claimed) -> tuple[None, Holdings]:
        assert manifest is not None
        return None, get_artifacts(place.store, manifest, place.settings, lambda path, parts: None)

    sinks = {"totals": Driver.sink_at(tmp_path)}
    with pytest.raises(NotFound, match="what the inbox needs"):
        open_driver(place, "test", hydrate=take, sinks=sinks, fallback=refuse)
    assert asked == [2] and state_of(pipeline).epoch == 3


def test_sinks_have_the_head_before_it_is_hydrated_and_a_settled_one_is_not_settled_again(tmp_path: Path) -> None:
    """Its rows may be seen as soon as it counts, whatever becomes of this start."""
    driver = Driver(tmp_path)
    driver.step()
    with pytest.raises(SinkFailed):
        driver.sinks["totals"] = Unable(driver.sinks["totals"].root)
        driver.step()
    sinks, place = {"totals": Driver.sink_at(tmp_path)}, locate(str(driver.pipeline))
    assert sinks["totals"].rows() == rows(0)

    def see(manifest: Manifest | None, claimed: Claimed) -> tuple[list[str], Holdings]:
        return sinks["totals"].rows(), {}

    again, seen = open_driver(place, "test", hydrate=see, sinks=sinks)
    assert seen == rows(0, 1)
    assert again.end() is None
    settled = last_settlement(driver.pipeline)
    assert settled is not None and (settled.epoch, settled.sinks["totals"].status) == (2, "Committed")
    third, _ = open_driver(place, "test", hydrate=see, sinks=sinks)
    assert third.end() is None
    assert last_settlement(driver.pipeline) is None, "how it was settled is on record, with what it cost"


class Unable(FolderSink):
    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        raise OSError


def test_the_newest_that_verifies_is_read_once(tmp_path, monkeypatch):
    pipeline = make_pipeline(tmp_path, 2)
    read: list[int] = []
    real = verify_restorable

    def verify(store: Any, entry: Any, settings: Any) -> Any:
        read.append(entry.epoch)
        return real(store, entry, settings)

    monkeypatch.setattr(rollback_tool, "verify_restorable", verify)
    assert rollback(pipeline, "newest-verified", dry_run=True).to_epoch == 2
    assert read == [2]
