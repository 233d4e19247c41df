"""Restore: one function for the checkpoints of every kind, and where it does not write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from slackwater.errors import InvalidInput, NotFound, Unsupported
from slackwater.keyed.opening import open_keyed
from slackwater.keyed.state import KeyedState
from slackwater.ops.restore import restore
from slackwater.program import open_pipeline
from slackwater.spark.capture import capture
from tests.keyed_pipelines import config_of
from tests.pipelines import make_pipeline


def make_keyed(root: Path) -> Path:
    with open_keyed(config_of(root)) as counts:
        counts.put(b"n", b"1")
        counts.create_checkpoint()
    return root / "store" / "counts"


def make_program(root: Path) -> Path:
    with open_pipeline(root / "store", "words") as words:
        words.checkpoint(offsets={"input": {"byte": 7}}, state={"counts": {0: b"one"}})
    return root / "store" / "words"


def test_the_checkpoint_of_a_spark_query_is_a_checkpoint_location(tmp_path: Path) -> None:
    done = restore(make_pipeline(tmp_path, 3), tmp_path / "out", at=2)
    assert (done.kind, done.epoch, done.micro_batch, done.passed_over) == ("spark", 2, 1, [])
    assert done.directory == str(tmp_path / "out") and done.pipeline == "orders"
    assert capture(tmp_path / "out", 1).operators[0].name == "0-stateStoreSave"
    sizes = [path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert (done.files, done.size_bytes) == (len(sizes), sum(sizes))


def test_the_checkpoint_of_a_program_is_its_offsets_and_its_state(tmp_path: Path) -> None:
    assert restore(make_program(tmp_path), tmp_path / "out").kind == "program"
    assert json.loads((tmp_path / "out" / "offsets.json").read_text()) == {"input": {"byte": "7"}}
    (file,) = (tmp_path / "out" / "state" / "counts" / "0").iterdir()
    assert file.read_bytes() == b"one"


def test_the_checkpoint_of_a_keyed_state_is_a_database(tmp_path: Path) -> None:
    assert restore(make_keyed(tmp_path), str(tmp_path / "out")).kind == "keyed"
    restored = KeyedState(tmp_path / "out" / "keyed" / "state", read_only=True)
    assert dict(restored.scan()) == {b"n": b"1"}
    restored.close()


@pytest.mark.parametrize("to", ["", " ", "s3://bucket/x", "store/counts/x", "store/counts.wal/x", "x/../store/counts"])
def test_what_is_no_directory_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    url = make_keyed(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInput) as caught:
        restore(url, to)
    assert caught.value.code == "option.invalid" and sorted(tmp_path.rglob("*")) == before


def test_beside_a_pipeline_a_folder_may_be_named_as_one_likes(tmp_path: Path) -> None:
    url = make_pipeline(tmp_path, 1)
    assert restore(url, url.with_name("orders.wal")).epoch == 1


def test_without_the_library_a_keyed_state_is_not_restored_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_keyed(tmp_path)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    for at in ("latest", "newest-verified"):
        with pytest.raises(Unsupported) as caught:
            restore(url, tmp_path / "out" / "here", at=at)
        assert caught.value.code == "extra.missing" and list((tmp_path / "out").iterdir()) == []


def test_what_is_not_there_is_not_restored(tmp_path: Path) -> None:
    url = make_pipeline(tmp_path, 1)
    for place, at in ((url, 7), (url.with_name("order"), "latest")):
        with pytest.raises(NotFound):
            restore(place, tmp_path / "out", at=at)
    assert not (tmp_path / "out").exists()
