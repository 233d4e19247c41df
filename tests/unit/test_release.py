"""After which failures a run ends on record: one rule, whoever drives the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import slackwater as sw
from slackwater.errors import Conflict, InvalidInput, SlackwaterError, Unavailable
from slackwater.formats import record as records
from slackwater.formats.change import Change, Release
from slackwater.ops import rollback as rolling_back
from slackwater.ops.import_ import import_folder
from slackwater.protocol import checkpoint as checkpointing
from slackwater.protocol.driver import claim_driver, may_release, open_driver
from slackwater.protocol.log import Log
from slackwater.protocol.pipeline import locate
from slackwater.protocol.sinks import SinkFailed
from tests.laminar_folders import v2_folder
from tests.pipelines import Driver, FolderSink, SparkDirectory, make_pipeline

STORE_AWAY = [
    Unavailable("no answer in time", code="store.unavailable"),
    Unavailable("access was denied", code="store.denied"),
    Unavailable("the log is too busy to append to", code="log.busy"),
]
FENCED = Conflict("another driver has taken over", code="driver.fenced")
OTHERS: list[BaseException] = [
    Unavailable("a file of the working directory cannot be read", code="folder.unavailable"),
    Conflict("a sink has output to commit, and is not in the pipeline", code="sink.missing"),
    Conflict("somebody else has written", code="sink.undo_refused"),
    InvalidInput("the manifest could not be read again", code="checkpoint.unwritable"),
    ZeroDivisionError(),
    KeyboardInterrupt(),
    SystemExit(),
]


class Failing:
    """Stands where a step after the claim does, and fails; notes what is appended from then on.

    ``meanwhile`` happens right before.
    """

    def __init__(
        self, pipeline: Path, patch: pytest.MonkeyPatch, failure: BaseException, meanwhile: Callable[[], object]
    ) -> None:
        self._pipeline, self._patch, self._failure, self._meanwhile = pipeline, patch, failure, meanwhile
        self.tried = 0
        self._before: list[Path] = []

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        self._meanwhile()
        append = Log.append

        def noting(log: Log, *given: Any, **fields: Any) -> Any:
            self.tried += 1
            return append(log, *given, **fields)

        self._patch.setattr(Log, "append", noting)
        self._before = self._records()
        raise self._failure

    def _records(self) -> list[Path]:
        return sorted((self._pipeline / "log").iterdir())

    def appended(self) -> list[Change]:
        assert self._before, "it did not come to the step that fails"
        return [change_of(path) for path in self._records()[len(self._before) :]]


def change_of(path: Path) -> Change:
    return records.decode(path.read_bytes(), number=int(path.stem)).change


Way = Callable[[Path, pytest.MonkeyPatch, Failing], None]


def program(root: Path, patch: pytest.MonkeyPatch, failing: Failing) -> None:
    with sw.open_pipeline(root / "store", "orders") as pipeline:
        pipeline.checkpoint(offsets={}, state={})
        patch.setattr(checkpointing, "put_artifacts", failing)
        pipeline.checkpoint(offsets={}, state={})


def start(root: Path, patch: pytest.MonkeyPatch, failing: Failing) -> None:
    make_pipeline(root, 2)
    open_driver(locate(str(root / "store" / "orders")), "test", hydrate=failing)


def roll_back(root: Path, patch: pytest.MonkeyPatch, failing: Failing) -> None:
    make_pipeline(root, 3)
    patch.setattr(rolling_back, "roll_back", failing)
    sw.rollback(root / "store" / "orders", "1")


def adopt(root: Path, patch: pytest.MonkeyPatch, failing: Failing) -> None:
    work = SparkDirectory(root / "checkpoint")
    work.commit(0, [2000, 200])
    patch.setattr(checkpointing, "put_artifacts", failing)
    sw.adopt(work.root, store=root / "store", pipeline="orders")


def imported(root: Path, patch: pytest.MonkeyPatch, failing: Failing) -> None:
    patch.setattr(checkpointing, "put_artifacts", failing)
    import_folder(str(v2_folder(root / "db")), str(root / "store" / "orders"))


WAYS = [program, start, roll_back, adopt, imported]


def fail(
    way: Way,
    root: Path,
    patch: pytest.MonkeyPatch,
    failure: BaseException,
    *,
    meanwhile: Callable[[], object] = lambda: None,
) -> Failing:
    """Let a way fail after its claim; see that the failure is told as it is."""
    failing = Failing(root / "store" / "orders", patch, failure, meanwhile)
    with pytest.raises(type(failure)) as caught:
        way(root, patch, failing)
    assert caught.value is failure
    return failing


def name_of(given: Any) -> str:
    return given.code if isinstance(given, SlackwaterError) else getattr(given, "__name__", type(given).__name__)


@pytest.mark.parametrize("way", WAYS, ids=name_of)
@pytest.mark.parametrize("failure", OTHERS, ids=name_of)
def test_a_run_that_fails_after_its_claim_ends_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, failure: BaseException
) -> None:
    (release,) = fail(way, tmp_path, monkeypatch, failure).appended()
    assert isinstance(release, Release)
    state = locate(str(tmp_path / "store" / "orders")).log.read()
    assert state is not None and state.release_append_id is not None and state.generation == release.generation


@pytest.mark.parametrize("way", WAYS, ids=name_of)
@pytest.mark.parametrize("failure", [FENCED, *STORE_AWAY], ids=name_of)
def test_a_run_that_was_fenced_or_whose_store_is_away_does_not_try_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, failure: BaseException
) -> None:
    failing = fail(way, tmp_path, monkeypatch, failure)
    assert failing.appended() == [] and failing.tried == 0


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_a_run_that_learns_only_then_that_it_was_fenced_tells_what_failed_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    newer = locate(str(tmp_path / "store" / "orders"))
    failing = fail(way, tmp_path, monkeypatch, ZeroDivisionError(), meanwhile=lambda: claim_driver(newer, "newer"))
    assert failing.appended() == [] and failing.tried == 1
    assert newer.log.read() is not None and newer.state.release_append_id is None


# --- a sink that failed


class Broken(FolderSink):
    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        raise OSError("password=hunter2")

    undo = commit  # type: ignore[assignment]


def newest_change(pipeline: Path) -> Change:
    return change_of(max((pipeline / "log").iterdir()))


def statuses(pipeline: Path) -> tuple[int, dict[str, tuple[str, str | None]]]:
    change = newest_change(pipeline)
    assert isinstance(change, Release) and change.settled is not None
    return change.settled.epoch, {name: (told.status, told.reason) for name, told in change.settled.sinks.items()}


def test_a_program_says_on_record_which_sink_failed_and_why(tmp_path: Path) -> None:
    sound, broken, last = (FolderSink(tmp_path / "a"), Broken(tmp_path / "b"), FolderSink(tmp_path / "c"))
    sinks = {"a": sound, "b": broken, "c": last}
    with pytest.raises(SinkFailed), sw.open_pipeline(tmp_path, "orders", sinks=sinks) as pipeline:
        staged = {name: sink.stage(pipeline.attempt, "row").descriptors for name, sink in sinks.items()}
        pipeline.checkpoint(offsets={}, state={}, staged=staged)
    assert statuses(tmp_path / "orders") == (
        1, {"a": ("Committed", None), "b": ("Failed", "OSError"), "c": ("Pending", None)},
    )  # fmt: skip
    state = locate(str(tmp_path / "orders")).log.read()
    assert state is not None and state.settled_epoch == 0


def test_a_start_says_on_record_which_sink_did_not_follow_a_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    sw.rollback(pipeline, "1")
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "sink_at", staticmethod(lambda root, name, sink: Broken(root / "lake" / name / sink)))
        with pytest.raises(SinkFailed):
            Driver(tmp_path)
    assert statuses(pipeline) == (4, {"totals": ("Failed", "OSError")})


def test_a_checkpoint_that_is_interrupted_once_it_counts_is_not_said_to_be_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known is how the epoch before it was settled, and that is no news."""
    driver = Driver(tmp_path)
    driver.step()

    def interrupted(key: str, data: bytes) -> bool:
        create(key, data)
        raise KeyboardInterrupt

    create = driver.store.create
    with monkeypatch.context() as patch:
        patch.setattr(driver.store, "create", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            driver.step()
    assert driver.driver.end(caught.value) is None
    change = newest_change(driver.pipeline)
    assert isinstance(change, Release) and change.settled is None
    state = locate(str(driver.pipeline)).log.read()
    assert state is not None and (state.epoch, state.settled_epoch) == (2, 1)


# --- the rule by itself


@pytest.mark.parametrize("failure", [None, *OTHERS], ids=name_of)
def test_every_other_end_may_be_said(failure: BaseException | None) -> None:
    assert may_release(failure)


@pytest.mark.parametrize("failure", [FENCED, *STORE_AWAY], ids=name_of)
def test_that_of_a_fenced_run_and_of_one_without_its_store_may_not(failure: BaseException) -> None:
    assert not may_release(failure)


def test_a_second_end_does_nothing(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.step()
    driver.release()
    before = driver.log.number
    assert driver.driver.end() is None and driver.driver.end(ZeroDivisionError()) is None
    assert driver.log.read() is not None and driver.log.number == before


def test_what_was_staged_and_not_taken_is_discarded_only_once_the_end_is_on_record(tmp_path: Path) -> None:
    driver, fenced = Driver(tmp_path), Driver(tmp_path, name="fenced")
    Driver(tmp_path, name="fenced")
    for one, left in ((driver, []), (fenced, ["open"])):
        sink = one.sinks["totals"]
        sink.stage("open", "rows")
        hindrance = one.driver.end(None, ["open"])
        assert sink.staged() == left
        assert (hindrance is None) == (left == [])
