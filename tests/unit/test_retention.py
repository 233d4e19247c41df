"""Retention: what is deleted, what an unreadable checkpoint still protects, and the way out of a full pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.errors import Conflict, Unavailable
from slackwater.formats.keys import manifest_key
from slackwater.formats.state import LiveCheckpoint, RetiredCheckpoint, State
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.rollback import rollback
from slackwater.ops.savepoint import create_label, delete_label
from slackwater.ops.verify import verify
from slackwater.protocol import keep_rules as plans
from slackwater.protocol import state as states
from slackwater.protocol.retention import References
from slackwater.store import Store
from tests.pipelines import Driver


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach; in the code they are 5,000, 100 and 1,000."""
    monkeypatch.setattr(states, "MAX_LIVE", 20)
    monkeypatch.setattr(states, "ROOM_FOR_ROLLBACKS", 2)
    monkeypatch.setattr(plans, "_MAX_WAITING", 5)


def fill(root: Path, patch: pytest.MonkeyPatch) -> Driver:
    """Run while every delete is denied, until no checkpoint counts any more."""
    driver = Driver(root, keep_last=3)

    def denied(self: Store, keys: list[str]) -> None:
        raise Unavailable("access was denied", code="store.denied")

    with patch.context() as context:
        context.setattr(type(driver.store), "delete", denied)
        with pytest.raises(Conflict) as caught:
            for _ in range(60):
                try:
                    driver.step(600)
                except Unavailable:
                    continue  # as the coordinator does
    assert caught.value.code == "checkpoint.too_many"
    return driver


@pytest.mark.usefixtures("small")
def test_a_full_pipeline_starts_again_once_deletes_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = fill(tmp_path, monkeypatch)
    assert (len(full.driver.state.live), len(full.driver.state.retired)) == (18, 5)
    driver = Driver(tmp_path, keep_last=3)
    for _ in range(4):
        driver.step(600)
    assert len(driver.driver.state.live) == 3
    driver.release()
    assert read_pipeline(str(driver.pipeline)).state.retired == []
    assert verify(driver.pipeline, read_data=True).sound


@pytest.mark.usefixtures("small")
def test_a_full_pipeline_can_be_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = fill(tmp_path, monkeypatch)
    newest = full.driver.state.epoch
    assert rollback(str(full.pipeline), str(newest - 1)).epoch == newest + 1
    Driver(tmp_path, keep_last=3).step(600)


def entry_of(driver: Driver, epoch: int) -> LiveCheckpoint:
    entry = driver.driver.state.find(epoch)
    assert entry is not None
    return entry


def test_a_savepoint_that_cannot_be_read_keeps_what_it_may_need_and_no_more(tmp_path: Path) -> None:
    driver = Driver(tmp_path, keep_last=2)
    for _ in range(3):
        driver.step()
    create_label(driver.log, "old")
    old = entry_of(driver, 3)
    driver.step()
    driver.release()
    manifest = driver.pipeline / manifest_key(old.checkpoint_id)
    copy = manifest.read_bytes()
    manifest.unlink()
    driver = Driver(tmp_path, keep_last=2)
    for _ in range(4):
        driver.step()
    state = driver.driver.state
    assert [entry.epoch for entry in state.live] == [3, 7, 8]
    # Deletes have gone on: the manifests of those that were retired meanwhile are gone.
    assert len(list(driver.pipeline.glob("checkpoints/*/manifest.json"))) == 2
    # What is put back from a copy can be restored.
    manifest.write_bytes(copy)
    assert verify(str(driver.pipeline), old.epoch, read_data=True).sound
    manifest.unlink()
    # Given up, it goes like any other, and what only it needed goes with the next sweep.
    delete_label(driver.log, "old")
    driver.step()
    driver.release()
    last = Driver(tmp_path, keep_last=2)
    assert [entry.epoch for entry in last.driver.state.live] == [8, 9]
    assert last.driver.state.retired == []


def test_only_what_a_newer_checkpoint_wrote_is_surely_not_needed_by_one_that_cannot_be_read(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    for _ in range(3):
        driver.step()
    entries = [entry_of(driver, epoch) for epoch in (1, 2, 3)]
    (driver.pipeline / manifest_key(entries[1].checkpoint_id)).unlink()
    state = State(
        **{
            **{name: getattr(driver.driver.state, name) for name in State.__struct_fields__},
            "live": entries[:2],
            "retired": [
                RetiredCheckpoint(
                    epoch=3, checkpoint_id=entries[2].checkpoint_id, manifest_sha256=entries[2].manifest_sha256
                )
            ],
        }
    )
    needed = References(driver.place).of_live(state)
    unknown = "checkpoints/0192d3f0-7b7c-7000-8000-0123456789ab/batches/x"
    folders = [f"checkpoints/{entry.checkpoint_id}/batches/x" for entry in entries]
    assert [key in needed for key in [*folders, unknown]] == [True, True, False, True]
