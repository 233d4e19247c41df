"""Adoption without Spark: of a directory as Spark leaves it, dying at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from slackwater import failpoints
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify
from slackwater.protocol import driver as drivers
from tests.pipelines import SparkDirectory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    work = SparkDirectory(tmp_path / "checkpoint")
    for micro_batch in range(3):
        work.commit(micro_batch, [2000, 200])
    return work.root


@pytest.mark.parametrize("point", ["claim.after", "artifacts.after", "manifest.after"])
def test_an_adoption_that_dies_before_it_counts_is_done_again(
    tmp_path: Path, directory: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as armed:
        armed.setattr(failpoints, "_armed", {point: (1, "raise")})
        armed.setattr(failpoints, "_hits", {})
        with pytest.raises(sw.SlackwaterError, match=point):
            sw.adopt(directory, store=str(tmp_path / "store"), pipeline="orders")
    assert read_pipeline(str(tmp_path / "store" / "orders")).state.release_append_id is not None, "its claim has ended"
    entry = sw.adopt(directory, store=str(tmp_path / "store"), pipeline="orders")
    opened = read_pipeline(str(tmp_path / "store" / "orders"))
    assert (entry.epoch, opened.state.settled_epoch) == (1, 1)
    assert verify(opened.url, read_data=True).sound


@pytest.mark.parametrize("point", ["append.after", "release.before"])
def test_an_adoption_that_dies_after_it_counts_is_told_to_start(
    tmp_path: Path, directory: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as armed:
        armed.setattr(failpoints, "_armed", {point: (1, "raise")})
        armed.setattr(failpoints, "_hits", {})
        with pytest.raises(sw.SlackwaterError, match=point):
            sw.adopt(directory, store=str(tmp_path / "store"), pipeline="orders")
    ended = read_pipeline(str(tmp_path / "store" / "orders")).state.release_append_id is not None
    assert ended == (point != "release.before"), "what fails at the release itself cannot be on record"
    with pytest.raises(sw.Conflict, match="start it: it goes on from there"):
        sw.adopt(directory, store=str(tmp_path / "store"), pipeline="orders")
    assert read_pipeline(str(tmp_path / "store" / "orders")).state.epoch == 1


def test_an_adoption_whose_directory_changes_after_its_claim_ends_on_record(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = vars(drivers)["reach"]

    def clean_up(name: str) -> None:
        if name == "claim.after":
            min((directory / "state" / "0" / "1").glob("3_*.changelog")).unlink()
        reach(name)

    monkeypatch.setattr(drivers, "reach", clean_up)
    with pytest.raises(sw.Unavailable) as caught:
        sw.adopt(directory, store=tmp_path / "store", pipeline="orders")
    assert caught.value.code == "folder.unavailable" and "has gone from the working directory" in str(caught.value)
    state = read_pipeline(str(tmp_path / "store" / "orders")).state
    assert state.release_append_id is not None and state.head is None


def test_a_pipeline_is_no_store_for_another(tmp_path: Path, directory: Path) -> None:
    sw.adopt(directory, store=str(tmp_path / "store"), pipeline="orders")
    with pytest.raises(sw.InvalidInput, match="not a store of pipelines") as raised:
        sw.adopt(directory, store=tmp_path / "store" / "orders", pipeline="inside")
    assert raised.value.code == "store.invalid"


def test_the_directory_is_only_read(tmp_path: Path, directory: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    sw.adopt(directory.as_uri(), store=str(tmp_path / "store"), pipeline="orders")
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_a_damaged_directory_is_refused_and_nothing_is_claimed(tmp_path: Path, directory: Path) -> None:
    victim = min((directory / "state" / "0" / "1").glob("3_*.changelog"))
    victim.unlink()
    with pytest.raises(sw.Corrupt):
        sw.adopt(directory, store=str(tmp_path / "store"), pipeline="orders")
    assert not (tmp_path / "store").exists()


def test_options_go_to_the_client_of_the_store(tmp_path: Path, directory: Path) -> None:
    store = str(tmp_path / "store")
    with pytest.raises(sw.InvalidInput, match="takes no options"):
        sw.adopt(directory, store=store, pipeline="orders", storage_options={"region": "eu"})


def test_store_and_directory_may_be_paths(tmp_path: Path, directory: Path) -> None:
    assert sw.adopt(directory, store=tmp_path / "store", pipeline="orders").epoch == 1
    assert read_pipeline(str(tmp_path / "store" / "orders")).state.epoch == 1


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ({"directory": "file://[x"}, "folder.unusable", "is not a local directory"),
        ({"directory": "file://host/x"}, "folder.unusable", "is not a local directory"),
        ({"directory": "//[x"}, "checkpoint.none", "is not the checkpointLocation"),
        ({"directory": b"/x"}, "store.invalid", "neither a path nor a URL"),
        ({"directory": None}, "store.invalid", "neither a path nor a URL"),
        ({"directory": "~nobody-of-this-name/x"}, "checkpoint.none", "is not the checkpointLocation"),
        ({"store": 7}, "store.invalid", "neither a path nor a URL"),
        ({"store": b"/x"}, "store.invalid", "neither a path nor a URL"),
    ],
)
def test_what_is_no_path_is_a_typed_error(
    tmp_path: Path, directory: Path, wrong: dict[str, Any], code: str, words: str
) -> None:
    with pytest.raises(sw.SlackwaterError, match=words) as raised:
        sw.adopt(**{"directory": directory, "store": tmp_path / "store", "pipeline": "orders", **wrong})
    assert raised.value.code == code
