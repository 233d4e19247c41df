"""Versions of reference tables on the driver's side, without Spark: who reads which, and what a checkpoint takes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import slackwater as sw
from slackwater.errors import Conflict, InvalidInput
from slackwater.keyed.state import KeyedState
from slackwater.protocol.cut import Cut
from slackwater.spark.working_directory import WorkingDirectory
from slackwater.tables.table import Table
from slackwater.tables.versions import Tables

SCHEMA = StructType([StructField("id", LongType()), StructField("risk", StringType())])
NOTHING = Cut(micro_batch=0, watermark_ms=0, sources={}, operators=[], files=[])


class Scene:
    """A table, its feed, and a working directory in which a test writes down offsets as Spark does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.feed = folder, folder / "feed"
        self.feed.mkdir()
        self.work = WorkingDirectory(folder / "run")
        (self.work.checkpoint / "offsets").mkdir(parents=True)
        self.table: Table = sw.table("risks", key="id", schema=SCHEMA, feed=sw.FileFeed(self.feed))
        self.tables = Tables({"risks": self.table}, self.work)

    def change(self, number: int, **row: Any) -> None:
        (self.feed / f"{number:04d}.json").write_text(json.dumps({"id": 1, "risk": str(number), **row}))

    def offsets(self, micro_batch: int) -> None:
        (self.work.checkpoint / "offsets" / str(micro_batch)).touch()

    def told(self, micro_batch: int) -> Path:
        return Path((self.table.published.path / str(micro_batch)).read_text())

    def risk(self, folder: Path) -> bytes | None:
        state = KeyedState(folder, read_only=True)
        try:
            return state.get(self.table.codec.encode_keys([_ids(1)])[0] or b"")
        finally:
            state.close()

    def taken(self, attempt: str) -> Path:
        """The version that a checkpoint takes."""
        cut = self.tables.add(NOTHING, attempt, ())
        (operator,) = cut.operators
        source = operator.partitions[0].files[0].source
        assert isinstance(source, Path) and cut.vnode_count == 256
        return source.parent


def _ids(*values: int) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa.array(values)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def scene(tmp_path: Path) -> Any:
    made = Scene(tmp_path)
    yield made
    made.tables.close()


def test_a_checkpoint_takes_the_version_that_its_micro_batches_have_read_whatever_came_since(scene: Scene) -> None:
    scene.change(1)
    scene.tables.begin("first", 0)
    scene.change(2)
    scene.tables.begin("second", 1)
    assert scene.taken("first") == scene.told(0) != scene.told(1) == scene.taken("second")
    assert scene.risk(scene.taken("first")) != scene.risk(scene.taken("second"))
    assert scene.tables.add(NOTHING, "first", ()).table_offsets["risks"].offsets == {"file": "0001.json"}


def test_the_micro_batches_of_one_attempt_read_one_version(scene: Scene) -> None:
    scene.change(1)
    scene.tables.begin("first", 0)
    scene.change(2)
    scene.tables.begin("first", 1)
    assert scene.told(0) == scene.told(1)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_version_is_there_when_spark_has_written_down_the_offsets(scene: Scene, is_open: bool) -> None:
    scene.change(1)
    scene.tables.begin("first", 0)
    scene.offsets(0)
    scene.tables.start(lambda: is_open)
    scene.change(2)
    scene.offsets(1)
    eventually((scene.table.published.path / "1").exists)
    # While an epoch is open, the micro-batch may belong to it: then it must not read anything newer.
    assert (scene.told(1) == scene.told(0)) == is_open
    before = scene.told(1)
    scene.change(3)
    scene.tables.begin("second", 1)
    assert scene.told(1) == before == scene.taken("second")


def test_without_changes_the_version_stays(scene: Scene) -> None:
    scene.tables.begin("first", 0)
    scene.tables.begin("second", 1)
    assert scene.told(0) == scene.told(1)


def test_what_nothing_reads_any_more_is_removed_and_nothing_else(scene: Scene) -> None:
    for number in range(3):
        scene.change(number + 1)
        scene.tables.begin(f"attempt-{number}", number)
    versions = [scene.told(number) for number in range(3)]
    scene.tables.settle("attempt-1", 1)
    assert [version.exists() for version in versions] == [False, False, True]
    assert sorted(path.name for path in scene.table.published.path.iterdir()) == ["2"]
    scene.tables.settle("attempt-2", 2)
    assert versions[2].exists(), "the next one may read it, if nothing changes"


def test_a_feed_that_fails_ends_the_tasks_that_wait_and_is_told(scene: Scene) -> None:
    scene.change(1, id=None)
    scene.tables.start(lambda: False)
    scene.offsets(0)
    eventually((scene.table.published.path / "0").exists)
    assert (scene.table.published.path / "0").read_text() == ""
    assert isinstance(scene.tables.error, InvalidInput)
    with pytest.raises(InvalidInput, match="without a key"):
        scene.tables.begin("first", 0)
    # The next run of this process publishes in the same folder, and may have a micro-batch of the same number.
    scene.tables.close()
    scene.tables = Tables({"risks": scene.table}, WorkingDirectory(scene.folder / "next"))
    assert list(scene.table.published.path.iterdir()) == []


def test_a_run_goes_on_from_the_folder_of_the_one_before(scene: Scene) -> None:
    scene.change(1)
    scene.tables.begin("first", 0)
    scene.tables.close()
    (scene.feed / "0001.json").unlink()
    folder = scene.work.checkpoint / "keyed" / "risks"
    again = KeyedState(folder)
    assert again.key_count == 1 and again.offsets["feed"] == {"file": "0001.json"}
    again.close()
    scene.tables = Tables({}, scene.work)


def test_a_second_run_of_a_table_is_refused_until_the_first_has_ended(scene: Scene) -> None:
    scene.change(1)
    scene.tables.begin("first", 0)
    with pytest.raises(Conflict, match=r"pipeline\.running.*another query of this process reads"):
        Tables({"risks": scene.table}, WorkingDirectory(scene.folder / "next"))
    assert scene.told(0).exists(), "the first still has what it was told"
    scene.tables.close()
    scene.tables = Tables({"risks": scene.table}, WorkingDirectory(scene.folder / "next"))


class Waiting(sw.Feed):
    """A feed whose changes do not come before it is stopped."""

    kind = "waiting"

    def __init__(self) -> None:
        self.reading, self.stopped, self.stops = threading.Event(), threading.Event(), 0

    def read(self, position: Mapping[str, str], schema: Any) -> Any:
        self.reading.set()
        assert self.stopped.wait(30)
        raise OSError("the connection was closed")

    def stop(self) -> None:
        self.stops += 1
        self.stopped.set()


def test_the_end_of_a_run_ends_a_feed_that_waits_and_is_no_failure(tmp_path: Path) -> None:
    work, feed = WorkingDirectory(tmp_path / "run"), Waiting()
    (work.checkpoint / "offsets").mkdir(parents=True)
    tables = Tables({"risks": sw.table("risks", key="id", schema=SCHEMA, feed=feed)}, work)
    tables.start(lambda: False)
    (work.checkpoint / "offsets" / "0").touch()
    assert feed.reading.wait(30)
    tables.close()
    assert tables.error is None


def test_who_waits_for_a_feed_that_waits_is_let_go_when_the_run_is_stopped(tmp_path: Path) -> None:
    work, feed = WorkingDirectory(tmp_path / "run"), Waiting()
    (work.checkpoint / "offsets").mkdir(parents=True)
    made = sw.table("risks", key="id", schema=SCHEMA, feed=feed)
    tables = Tables({"risks": made}, work)
    tables.start(lambda: False)
    (work.checkpoint / "offsets" / "0").touch()
    assert feed.reading.wait(30)
    told: Future[None] = Future()

    def begin() -> None:
        try:
            tables.begin("first", 0)
            told.set_result(None)
        except BaseException as error:
            told.set_exception(error)

    threading.Thread(target=begin, daemon=True).start()
    tables.stop()
    error = told.exception(30)
    assert isinstance(error, sw.SlackwaterError) and error.code == "pipeline.stopping"
    tables.close()
    assert tables.error is None
    # Another run may have the table, and so its feed, by now.
    tables.stop()
    assert feed.stops == 1


def test_a_feed_that_fails_to_stop_is_told_when_all_is_let_go(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("the connection is gone")

    monkeypatch.setattr(scene.table.feed, "stop", fail)
    scene.tables.stop()
    with pytest.raises(OSError, match="connection is gone"):
        scene.tables.close()
    monkeypatch.undo()
    scene.tables = Tables({"risks": scene.table}, WorkingDirectory(scene.folder / "next"))


def test_rooms_of_runs_that_were_killed_are_swept_with_their_working_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_WORK", str(tmp_path / "root"))
    root = tmp_path / "root"
    root.mkdir()
    (root / "table-risks-killed").symlink_to(tmp_path / "removed")
    (root / "table-risks-running").symlink_to(tmp_path)
    scene = Scene(tmp_path)
    assert {path.name for path in root.iterdir()} == {"table-risks-running", scene.table.published.path.name}
    scene.tables.close()
    assert [path.name for path in root.iterdir()] == ["table-risks-running"]
