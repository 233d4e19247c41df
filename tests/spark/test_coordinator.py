"""The coordinator without Spark: which of two failures is told, and that nothing staged is lost from sight."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

import slackwater as sw
from slackwater.ops.pipelines import read_pipeline
from slackwater.sources.acknowledgement import Acknowledgements
from slackwater.spark.working_directory import WorkingDirectory
from slackwater.streaming.coordinator import Coordinator
from slackwater.streaming.workspace import Workspace
from tests.pipelines import Driver, FolderSink


class StagingSink(FolderSink):
    """A sink that stages what it is told, without a frame."""

    delivery = "exactly-once"

    def serve(self, output_mode: str) -> None:
        pass

    def stage(self, *_: Any) -> Any:
        return {}


class FailingSink(StagingSink):
    """A sink whose staging fails."""

    def __init__(self, root: Path, error: Exception) -> None:
        super().__init__(root)
        self._error = error

    def stage(self, *_: Any) -> NoReturn:
        raise self._error


class Query:
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    def stop(self) -> None:
        self._ended.set()

    def awaitTermination(self) -> None:
        self._ended.wait()


def coordinate(driver: Driver, sink: Any, folder: Path) -> Coordinator:
    workspace = Workspace(WorkingDirectory(folder), ["rate"], {})
    return Coordinator(driver.driver, {"totals": sink}, workspace, Acknowledgements(driver.store, {}), ahead=1)


def write(folder: Path, *names: str) -> None:
    """Write what Spark would, below its checkpoint."""
    for name in names:
        path = folder / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1")


def fail(root: Path, error: Exception, *, fenced: bool) -> BaseException | None:
    """Run until staging fails, perhaps beside a newer driver; return what the caller is told."""
    driver, query = Driver(root), Query()
    coordinator = coordinate(driver, FailingSink(root / "lake", error), root / "run")
    write(root / "run", "offsets/0")
    if fenced:
        Driver(root)
    coordinator.start(query)
    with pytest.raises(type(error)):
        coordinator.stage(None, 0)  # type: ignore[arg-type]
    query.stop()
    assert coordinator.ended.wait(30)
    return coordinator.failure


FIRST = [
    sw.NotFound("the staged folder is gone", code="store.not_found"),
    sw.Unavailable("the working directory cannot be read", code="folder.unavailable"),
    sw.Corrupt("a file is missing", code="capture.damaged"),
    ValueError("from a function"),
]


@pytest.mark.parametrize("first", FIRST, ids=lambda error: type(error).__name__)
def test_a_driver_that_was_fenced_says_so_whatever_failed_first(tmp_path: Path, first: Exception) -> None:
    told = fail(tmp_path, first, fenced=True)
    assert isinstance(told, sw.Conflict)
    assert (told.code, told.exit_code, told.__cause__) == ("driver.fenced", 11, first)


@pytest.mark.parametrize("first", FIRST, ids=lambda error: type(error).__name__)
def test_a_driver_that_was_not_fenced_tells_what_failed_and_ends_on_record(tmp_path: Path, first: Exception) -> None:
    assert fail(tmp_path, first, fenced=False) is first
    assert read_pipeline(str(tmp_path / "store" / "orders")).state.release_append_id is not None


def test_a_driver_whose_store_is_away_does_not_ask_it(tmp_path: Path) -> None:
    first = sw.Unavailable("no answer", code="store.unavailable")
    assert fail(tmp_path, first, fenced=True) is first


@pytest.mark.parametrize("there", [[], ["offsets/0"]], ids=["nothing", "no commit"])
def test_a_spark_that_keeps_its_logs_elsewhere_is_an_error_not_a_pipeline_without_checkpoints(
    tmp_path: Path, there: list[str]
) -> None:
    query, folder = Query(), tmp_path / "run"
    coordinator = coordinate(Driver(tmp_path), StagingSink(tmp_path / "lake"), folder)
    coordinator.start(query)
    if there:
        write(folder, *there)
        coordinator.stage(None, 0)  # type: ignore[arg-type]
        write(folder, "offsets/1")
    with pytest.raises(sw.Corrupt, match=f"micro-batch {len(there)}, and .* is not in {folder}") as raised:
        coordinator.stage(None, len(there))  # type: ignore[arg-type]
    query.stop()
    assert coordinator.ended.wait(30)
    assert raised.value.code == "capture.damaged" and coordinator.failure is raised.value


def test_a_micro_batch_that_was_staged_and_not_committed_is_told_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query, folder = Query(), tmp_path / "run"
    coordinator = coordinate(Driver(tmp_path), StagingSink(tmp_path / "lake"), folder)
    coordinator.start(query)
    write(folder, "offsets/0")
    coordinator.stage(None, 0)  # type: ignore[arg-type]
    query.stop()
    assert coordinator.ended.wait(30)
    assert "WARNING" in caplog.text and "without committing micro-batch 0: the next start does it again" in caplog.text


def test_a_sink_that_ends_the_thread_while_it_discards_lets_nobody_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """As code below Python raises it: no Exception."""

    driver, query = Driver(tmp_path), Query()
    coordinator = coordinate(driver, FailingSink(tmp_path / "lake", ValueError("first")), tmp_path / "run")

    def panic(_attempts: Any) -> NoReturn:
        raise Panic

    monkeypatch.setattr(driver.sinks["totals"], "discard", panic)
    write(tmp_path / "run", "offsets/0")
    coordinator.start(query)
    with pytest.raises(ValueError, match="first"):
        coordinator.stage(None, 0)  # type: ignore[arg-type]
    query.stop()
    assert coordinator.ended.wait(30) and not (tmp_path / "run").exists()
    assert isinstance(coordinator.failure, ValueError)
