"""A log whose newest records are gone: nobody goes on from the older state, and deletes what the lost ones name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import slackwater as sw
from slackwater.errors import Conflict, Corrupt
from slackwater.formats.keys import LATEST, manifest_key
from slackwater.ops.forget import forget
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.rollback import rollback
from slackwater.ops.savepoint import create_label
from slackwater.protocol.driver import claim_driver
from slackwater.protocol.pipeline import locate
from tests.pipelines import Driver, make_pipeline


def lose(pipeline: Path, epoch: int) -> None:
    """Take the log back to before the record of ``epoch``: what a copy of it from then would hold."""
    for record in sorted((pipeline / "log").iterdir(), reverse=True):
        state = msgspec.json.decode(record.read_bytes())["body"]["state"]
        if state["epoch"] < epoch:
            return
        record.unlink()


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def claim(pipeline: Path) -> None:
    claim_driver(locate(str(pipeline)), "test:1")


WAYS: dict[str, Callable[[Path], object]] = {
    "start": claim,
    "rollback": lambda pipeline: rollback(str(pipeline), "1"),
    "forget": lambda pipeline: forget(pipeline, keep_last=1),
}


@pytest.mark.parametrize("way", WAYS)
def test_nobody_goes_on_from_a_log_that_has_lost_its_newest_records(tmp_path: Path, way: str) -> None:
    pipeline = make_pipeline(tmp_path, 5)
    lose(pipeline, 4)
    before = contents(tmp_path)
    with pytest.raises(Corrupt, match="epoch 5, and the log ends at 3") as caught:
        WAYS[way](pipeline)
    assert caught.value.code == "log.records_lost" and LATEST in str(caught.value.hint)
    assert contents(tmp_path) == before, "it was refused, and something was changed all the same"


def test_what_forget_would_do_is_refused_too(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 5)
    lose(pipeline, 4)
    with pytest.raises(Corrupt, match="newer records have been lost"):
        forget(pipeline, keep_last=1, dry_run=True)


def test_a_program_is_refused_and_goes_on_once_the_log_is_back(tmp_path: Path) -> None:
    log, copy = tmp_path / "p" / "log", tmp_path / "copy"
    with sw.open_pipeline(tmp_path, "p") as pipeline:
        for number in range(1, 6):
            pipeline.checkpoint(offsets={"s": {"n": number}}, state={"c": {0: b"%d" % number * 30_000}})
    log.rename(copy)
    log.mkdir()
    for record in sorted(copy.iterdir())[:3]:
        (log / record.name).write_bytes(record.read_bytes())
    with pytest.raises(Corrupt, match=r"log\.records_lost"):
        sw.open_pipeline(tmp_path, "p")
    for record in copy.iterdir():
        (log / record.name).write_bytes(record.read_bytes())
    with sw.open_pipeline(tmp_path, "p") as pipeline:
        assert (pipeline.epoch, pipeline.offsets) == (5, {"s": {"n": "5"}})


def test_who_deletes_the_pointer_goes_on_from_the_older_epoch(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 5)
    lose(pipeline, 4)
    (pipeline / LATEST).unlink()
    driver = Driver(tmp_path, sinks=["other"], dropped=["totals"])
    assert driver.driver.state.epoch == 3
    driver.step()
    claim(pipeline)


def newest(pipeline: Path) -> Path:
    return pipeline / manifest_key((pipeline / LATEST).read_text())


def rewrite(**fields: object) -> Callable[[Path], None]:
    def change(pipeline: Path) -> None:
        path = newest(pipeline)
        path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **fields}))

    return change


@pytest.mark.parametrize(
    "harm",
    [
        lambda pipeline: (pipeline / LATEST).unlink(),
        lambda pipeline: (pipeline / LATEST).write_bytes(b""),
        lambda pipeline: (pipeline / LATEST).write_bytes(b"\xff\x00../../etc"),
        lambda pipeline: (pipeline / LATEST).write_bytes(b"x" * 200),
        lambda pipeline: (pipeline / LATEST).write_text("0192d3f0-7b7c-7000-8000-0123456789ab"),
        lambda pipeline: newest(pipeline).unlink(),
        lambda pipeline: newest(pipeline).write_bytes(b""),
        lambda pipeline: newest(pipeline).write_bytes(b"[" * 100_000),
        lambda pipeline: newest(pipeline).write_bytes(b'{"epoch": "5"}'),
        rewrite(uid="0" * 32),
        rewrite(epoch=3),
        rewrite(epoch=2**60),
        rewrite(checkpoint_id="0192d3f0-7b7c-7000-8000-0123456789ab"),
    ],
    ids=[
        "gone",
        "empty",
        "garbled",
        "long",
        "dangling",
        "bare",
        "cut",
        "deep",
        "typed",
        "foreign",
        "old",
        "far",
        "else",
    ],
)
def test_a_pointer_that_says_nothing_sure_decides_nothing(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    pipeline = make_pipeline(tmp_path, 5)
    lose(pipeline, 4)
    harm(pipeline)
    claim(pipeline)


def test_a_driver_that_appends_meanwhile_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path)
    driver.step()
    place = locate(str(driver.pipeline))
    get = type(place.store).get
    met: list[str] = []

    def late(self: object, key: str, **fields: int) -> bytes:
        if key == LATEST and not met:
            met.append(key)
            driver.step()
        return get(self, key, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(type(place.store), "get", late)
    assert claim_driver(place, "test:1").state.epoch == 2 and met


def test_a_late_pointer_of_a_driver_that_was_fenced_is_no_loss(tmp_path: Path) -> None:
    first = Driver(tmp_path, keep_last=1)
    first.step()
    stale = (first.pipeline / LATEST).read_bytes()
    second = Driver(tmp_path, keep_last=1)
    for _ in range(4):
        second.step()
    (first.pipeline / LATEST).write_bytes(stale)
    with pytest.raises(Conflict, match=r"driver\.fenced"):
        first.step()
    assert Driver(tmp_path).driver.state.epoch == 5


def test_a_rollback_and_a_start_after_it_are_no_loss(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 3)
    rollback(str(pipeline), "1")
    create_label(read_pipeline(str(pipeline)).log, "back")
    driver = Driver(tmp_path)
    driver.step()
    assert driver.driver.state.epoch == 5


def test_a_start_asks_for_the_pointer_once_and_only_if_it_is_there(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, 2)
    counts = []
    for _ in range(2):
        place = locate(str(pipeline))
        claim_driver(place, "test:1")
        counts.append(place.store.requests.gets)
        (pipeline / LATEST).unlink(missing_ok=True)
    assert counts == [2, 1], "one record; and the pointer"
