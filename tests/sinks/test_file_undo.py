"""Undoing in a folder: the entries, the readers, and consumers who have been there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from slackwater.errors import Conflict, Corrupt, SlackwaterError, Unsupported
from slackwater.formats import sealed
from slackwater.sinks.files.reader import read_committed

from .conftest import OTHER_UID, UID, Bench, new_attempt


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("files", tmp_path / "folder")


def undo_entry(bench: Bench, epoch: int) -> Path:
    return bench.root / f"_slackwater/{UID}/totals/log/{epoch:020d}.undo.json"


def published(bench: Bench, epoch: int) -> list[Path]:
    return sorted(bench.root.glob(f"{epoch:020d}-*.parquet"))


def test_the_entry_says_what_is_withdrawn(bench: Bench) -> None:
    sink, (left, ticketed) = bench.sink(), sorted([new_attempt(), new_attempt()])
    bench.fill(sink, 1, 2, 3)
    for attempt in (left, ticketed):
        bench.stage_by_hand(attempt, 9)
    sink._staging.tick(ticketed)
    sink.undo(1, 4)
    text = undo_entry(bench, 4).read_text()
    body = {"attempts": [left, ticketed], "epoch": 4, "to_epoch": 1, "version": 1}
    assert json.loads(text)["body"] == body
    assert text.startswith('{"body":' + json.dumps(body, sort_keys=True, separators=(",", ":")))
    assert not list(bench.root.glob("_slackwater/*/*/data/*/*/*")) and sink.staged() == [ticketed]
    sink.discard([ticketed])
    assert sink.staged() == []


def test_what_a_consumer_has_taken_cannot_be_withdrawn(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3)
    for path in published(bench, 1):
        path.unlink()  # This one is not asked back.
    sink.undo(2, 4)
    bench.fill(sink, 5, 6)
    for path in published(bench, 5):
        path.unlink()
    before = bench.paths()
    for call in (lambda: sink.undo(4, 7), lambda: sink.plan_undo(4), lambda: bench.sink().undo(2, 7)):
        with pytest.raises(Conflict) as caught:
            call()
        assert caught.value.code == "sink.undo_refused" and "--keep NAME" in str(caught.value)
        assert f"1 files are no longer in {bench.root.as_uri().replace('%20', ' ')}" in str(caught.value).replace(
            "%20", " "
        )
    assert bench.paths() == before and sink.epoch() == 6
    sink.undo(5, 7)
    assert bench.rows() == bench.plain_rows() == [2]
    sink.keep(8)
    assert bench.rows() == [2] and sink.epoch() == 8


def test_an_undo_past_the_entries_that_are_kept_goes_by_the_published_names(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, *range(1, 131))
    assert bench.versions() == 100
    assert sink.plan_undo(5) == "125 files, 125 rows of 125 epochs"
    published(bench, 6)[0].write_bytes(b"cut")
    assert sink.plan_undo(5) == "125 files of 125 epochs", "a file that cannot be read can be withdrawn all the same"
    sink.undo(5, 131)
    assert bench.rows() == bench.plain_rows() == [1, 2, 3, 4, 5] and sink.epoch() == 131


def test_the_entry_of_an_undo_is_never_deleted(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    sink.undo(1, 3)
    bench.fill(sink, *range(4, 140))
    assert undo_entry(bench, 3).exists() and bench.versions() == 101
    assert bench.rows() == bench.plain_rows() == [1, *range(4, 140)]


def test_a_file_that_comes_back_later_is_not_read(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    (file,) = published(bench, 2)
    shutil.copy(file, aside := bench.root.parent / "aside")
    sink.undo(1, 3)
    shutil.copy(aside, file)  # as a copy within an object store would, that was begun before
    bench.fill(sink, 4)
    assert bench.rows() == [1, 4]
    # An undo that is driven again cleans up.
    sink.undo(3, 5)
    assert bench.rows() == [1]


def test_the_exact_reader_knows_an_undo_from_its_entry_on(bench: Bench, arm) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    arm("files.undo.entry")
    with pytest.raises(SlackwaterError):
        sink.undo(1, 3)
    assert bench.rows() == [1] and bench.plain_rows() == [1, 2]
    bench.sink().undo(1, 3)
    assert bench.plain_rows() == [1]


def test_an_epoch_that_stays_is_published_whole_before_the_undo(bench: Bench, arm) -> None:
    sink = bench.sink()
    bench.fill(sink, 1)
    staged = bench.stage_by_hand(new_attempt(), 2, 22, 222)
    arm("files.publish.between")
    with pytest.raises(SlackwaterError):
        sink.commit([staged], 2)
    fresh = bench.sink()
    fresh.undo(4, 5)
    assert bench.rows() == bench.plain_rows() == [1, 2, 22, 222] and fresh.epoch() == 5
    assert not list(bench.root.glob("_slackwater/*/*/data/*"))


def test_two_that_keep_agree_on_what_is_kept(bench: Bench) -> None:
    """The first sleeps while an epoch is committed and another driver keeps that."""
    bench.fill(bench.sink(), 1)
    staged, sleeper = bench.stage_by_hand(new_attempt(), 2), bench.sink()
    create = sleeper._store.create

    def after_a_long_sleep(key: str, data: bytes) -> bool:
        sleeper._store.create = create
        bench.sink().commit([staged], 2)
        bench.sink().keep(3)
        bench.fill(bench.sink(), 4)
        done: bool = create(key, data)
        return done

    sleeper._store.create = after_a_long_sleep
    sleeper.keep(3)
    assert bench.rows() == bench.plain_rows() == [1, 2, 4]


def test_a_sleeping_undo_leaves_alone_what_was_staged_after_it(bench: Bench) -> None:
    bench.fill(bench.sink(), 1, 2)
    sleeper, staged = bench.sink(), []
    create = sleeper._store.create

    def after_a_long_sleep(key: str, data: bytes) -> bool:
        sleeper._store.create = create
        bench.sink().undo(1, 3)
        staged.append(bench.stage_by_hand(new_attempt(), 4))
        done: bool = create(key, data)
        return done

    sleeper._store.create = after_a_long_sleep
    sleeper.undo(1, 3)
    bench.sink().commit(staged, 4)
    assert bench.rows() == bench.plain_rows() == [1, 4]


def test_other_sinks_of_the_folder_keep_their_rows(bench: Bench) -> None:
    sink, other = bench.sink(), bench.sink(uid=OTHER_UID, pipeline="refunds")
    bench.fill(sink, 1, 2, 3)
    tagged = [path.name[-16:-8] for path in published(bench, 2)]
    other.keep(1)
    for path in published(bench, 2):
        shutil.copy(path, path.with_name(path.name.replace(tagged[0], other._tag)))
    assert bench.rows() == [1, 2, 2, 3]
    sink.undo(1, 4)
    assert bench.rows() == bench.plain_rows() == [1, 2]
    other.undo(1, 3)
    assert bench.rows() == bench.plain_rows() == [1]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "swapped", "newer"])
def test_a_damaged_undo_is_never_believed(bench: Bench, damage: str) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    sink.undo(1, 3)
    sink.undo(1, 4)
    entry = undo_entry(bench, 4)
    data = entry.read_bytes()
    damaged = {
        "flipped": data.replace(b'"to_epoch":1', b'"to_epoch":0'),
        "cut": data[:-1],
        "empty": b"",
        "swapped": undo_entry(bench, 3).read_bytes(),
        "newer": sealed.seal(bytes(json.dumps({**json.loads(data)["body"], "version": 2}), "ascii")),
    }[damage]
    assert damaged != data
    entry.write_bytes(damaged)
    newer = (Unsupported, "format.unknown_version")
    kind, code = newer if damage == "newer" else (Corrupt, "sink.damaged")
    for call in (lambda: read_committed(bench.root), lambda: bench.sink().undo(1, 4), lambda: bench.sink().keep(5)):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.code == code and "the entry" in caught.value.message


def test_an_epoch_is_either_a_commit_or_an_undo(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    staged: Any = bench.stage_by_hand(new_attempt(), 4)
    for call in (lambda: sink.undo(1, 2), lambda: (sink.keep(3), sink.commit([staged], 3))):
        with pytest.raises(Conflict) as caught:
            call()
        assert caught.value.code == "sink.ahead" and "has epoch" in str(caught.value)
    assert bench.rows() == bench.plain_rows() == [1, 2]


def test_the_owner_is_noted_by_an_undo_too(bench: Bench) -> None:
    bench.sink().keep(1)
    with pytest.raises(Conflict) as caught:
        bench.sink(uid=OTHER_UID)
    assert caught.value.code == "sink.other_pipeline"
