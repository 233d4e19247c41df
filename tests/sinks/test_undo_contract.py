"""What every sink that undoes must hold to, whoever else drives it at that moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from slackwater.errors import InvalidInput, SlackwaterError

from .conftest import Bench, new_attempt
from .test_sink_contract import COMMIT_POINTS, UNDO_POINTS


def test_an_undo_takes_back_what_came_after_and_epochs_go_on_above_it(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3)
    sink.undo(1, 4)
    assert bench.rows() == bench.plain_rows() == [1]
    assert sink.epoch() == bench.sink().epoch() == 4 and sink.staged() == []
    bench.fill(sink, 5, 6)
    assert bench.rows() == bench.plain_rows() == [1, 5, 6]


def test_undoing_twice_is_undoing_once(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3)
    sink.undo(1, 4)
    versions = bench.versions()
    for again in (sink, bench.sink()):
        again.undo(1, 4)
        assert bench.rows() == [1] and again.epoch() == 4 and bench.versions() == versions
    bench.fill(sink, 5)
    # A driver that slept all this time.
    bench.sink().undo(1, 4)
    assert bench.rows() == bench.plain_rows() == [1, 5] and sink.epoch() == 5


@pytest.mark.parametrize("to_epoch", [2, 3, 7])
def test_an_undo_of_nothing_moves_the_epoch_all_the_same(bench: Bench, to_epoch: int) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    late = bench.stage_by_hand(new_attempt(), 3)
    assert sink.plan_undo(to_epoch) == "nothing"
    sink.undo(to_epoch, 8)
    assert bench.rows() == bench.plain_rows() == [1, 2] and sink.epoch() == 8
    sink.commit([late], 3)
    assert bench.rows() == bench.plain_rows() == [1, 2]


def test_an_undo_of_all_that_there_is_leaves_nothing(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 5, 6)
    sink.undo(2, 7)
    assert bench.rows() == bench.plain_rows() == [] and sink.epoch() == 7
    bench.fill(sink, 8)
    assert bench.rows() == [8]


def test_an_undo_may_go_back_past_an_earlier_one_or_not(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    sink.undo(1, 3)
    bench.fill(sink, 4, 5)
    sink.undo(4, 6)
    assert bench.rows() == bench.plain_rows() == [1, 4]
    sink.undo(3, 7)
    assert bench.rows() == bench.plain_rows() == [1]
    bench.fill(sink, 8)
    assert sink.plan_undo(1) == "1 file, 1 row of 1 epoch" if bench.kind == "files" else sink.plan_undo(1)
    sink.undo(1, 9)
    assert bench.rows() == bench.plain_rows() == [1] and sink.epoch() == 9
    sink.undo(0, 10)
    assert bench.rows() == bench.plain_rows() == []


def test_an_undone_epoch_is_never_committed_again(bench: Bench) -> None:
    sink, zombie = bench.sink(), bench.sink()
    bench.fill(sink, 1)
    undone, unsettled = (bench.stage_by_hand(new_attempt(), epoch) for epoch in (2, 3))
    sink.commit([undone], 2)
    sink.undo(1, 4)
    for epoch, staged in ((2, undone), (3, unsettled)):
        for driver in (zombie, sink, bench.sink()):
            driver.commit([staged], epoch)
            assert bench.rows() == bench.plain_rows() == [1] and driver.epoch() == 4


def test_nothing_of_a_target_that_was_never_written_gets_visible_after_an_undo(bench: Bench) -> None:
    sink, attempt = bench.sink(), new_attempt()
    staged = bench.stage_by_hand(attempt, 1)
    for _ in range(2):
        sink.undo(0, 2)
    with suppress(SlackwaterError):
        bench.sink().commit([staged], 1)
    assert bench.rows() == bench.plain_rows() == []
    assert not any((bench.root / file["path"]).exists() for file in staged["files"])
    bench.fill(sink, 3)
    assert bench.rows() == bench.plain_rows() == [3]


def test_keeping_leaves_the_rows_and_moves_the_epoch(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    unsettled = bench.stage_by_hand(new_attempt(), 3)
    for keeper in (sink, sink, bench.sink()):
        keeper.keep(4)
        assert bench.rows() == bench.plain_rows() == [1, 2] and keeper.epoch() == 4
    sink.commit([unsettled], 3)
    assert bench.rows() == bench.plain_rows() == [1, 2]
    sink.undo(1, 4)
    assert bench.rows() == [1, 2], "the epoch was passed"
    bench.fill(sink, 5)
    sink.undo(4, 6)
    assert bench.rows() == bench.plain_rows() == [1, 2]


def test_keeping_what_is_not_there_yet(bench: Bench) -> None:
    sink = bench.sink()
    sink.keep(2)
    sink.keep(2)
    assert bench.rows() == []
    bench.fill(sink, 3)
    assert bench.rows() == [3]


def test_a_plan_says_what_would_be_undone_and_writes_nothing(bench: Bench) -> None:
    sink = bench.sink()
    assert sink.plan_undo(0) == "nothing" and not bench.root.exists()
    bench.fill(sink, 1)
    for epoch in (2, 3, 4):
        sink.commit([bench.stage_by_hand(new_attempt(), *range(10 * epoch, 10 * epoch + 400))], epoch)
    before, versions = bench.paths(), bench.versions()
    assert sink.plan_undo(1) == "1,200 files, 1,200 rows of 3 epochs"
    assert sink.plan_undo(3) == "400 files, 400 rows of 1 epoch"
    assert sink.plan_undo(4) == "nothing"
    assert bench.paths() == before and bench.versions() == versions


def test_an_unbound_sink_undoes_nothing(bench: Bench) -> None:
    sink = bench.sink(bound=False)
    for call in (lambda: sink.undo(1, 2), lambda: sink.keep(2), lambda: sink.plan_undo(1)):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.code == "sink.invalid" and "was not bound to a pipeline" in str(caught.value)


@pytest.mark.parametrize("place", UNDO_POINTS, ids=lambda place: place[1])
@pytest.mark.parametrize("verb", ["undo", "keep"])
def test_a_crash_is_mended_by_undoing_again(tmp_path: Path, arm, place: tuple[str, str], verb: str) -> None:
    bench = Bench(place[0], tmp_path / "target")
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3)
    unsettled, kept = bench.stage_by_hand(new_attempt(), 4), [1] if verb == "undo" else [1, 2, 3]

    def move(sink: Any, epoch: int) -> None:
        if verb == "undo":
            sink.undo(1, epoch)
        else:
            sink.keep(epoch)

    arm(place[1])
    with pytest.raises(SlackwaterError, match=place[1]):
        move(sink, 5)
    # All or nothing to the exact reader, and from the atomic step on the undone epoch is ignored.
    fresh = bench.sink()
    done = fresh.epoch() == 5
    assert done == (place[1] != "files.undo.before")
    assert bench.rows() == (kept if done else [1, 2, 3])
    if done:
        fresh.commit([unsettled], 4)
        assert bench.rows() == kept
    move(fresh, 5)
    fresh.commit([unsettled], 4)
    assert bench.rows() == bench.plain_rows() == kept and fresh.epoch() == 5
    bench.fill(fresh, 6)
    assert bench.rows() == bench.plain_rows() == [*kept, 6]


@pytest.mark.parametrize("place", UNDO_POINTS, ids=lambda place: place[1])
@pytest.mark.parametrize("verb", ["undo", "keep"])
def test_a_second_rollback_may_come_before_the_first_was_finished(
    tmp_path: Path, arm, place: tuple[str, str], verb: str
) -> None:
    bench = Bench(place[0], tmp_path / "target")
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3)
    arm(place[1])
    with pytest.raises(SlackwaterError, match=place[1]):
        sink.undo(2, 4)
    fresh = bench.sink()
    undone = fresh.epoch() == 4
    if verb == "undo":
        fresh.undo(1, 5)
        assert bench.rows() == bench.plain_rows() == [1]
    else:
        fresh.keep(5)
        assert bench.rows() == bench.plain_rows() == ([1, 2] if undone else [1, 2, 3])
    assert fresh.epoch() == 5


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the time of syncing, where hundreds of runs look at other things."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def steps_of(sink: Any) -> list[tuple[Any, str]]:
    """What a sink does outside itself, one call after the other; to get what never changes is no such step."""
    store = ("list", "create", "move", "delete")
    if sink.kind == "files":
        return [(sink._store, verb) for verb in store]
    return [
        *((sink._table, name) for name in ("load", "create", "at")),
        *((sink, name) for name in ("_write", "_restore")),
        *((sink._table.target.store, verb) for verb in store),
    ]


class Interrupted:
    """A sink in whose midst, before the nth thing that it does, somebody else acts."""

    def __init__(self, sink: Any, number: int, act: Callable[[], None]) -> None:
        self.sink, self.calls, self._number, self._act = sink, 0, number, act
        for owner, name in steps_of(sink):
            setattr(owner, name, self._wrapped(getattr(owner, name)))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._number:
                self._act()
            return call(*args, **options)

        return wrapped


class Sleeper:
    """A driver that falls asleep before the nth thing that its sink does, until it is woken."""

    def __init__(self, sink: Any, number: int, work: Callable[[], None]) -> None:
        self._asleep, self._woken = threading.Event(), threading.Event()
        self.run = Interrupted(sink, number, self._sleep)
        self._thread = threading.Thread(target=self._work, args=(work,), daemon=True)
        self._thread.start()
        assert self._asleep.wait(30)

    def _sleep(self) -> None:
        self._asleep.set()
        assert self._woken.wait(30)

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._asleep.set()  # It never slept: its work had fewer steps.

    def wake(self) -> None:
        """Let it go on, and wait for its end."""
        self._woken.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("verb", ["undo", "keep"])
@pytest.mark.parametrize("before", [[], [1, 2]], ids=["nothing", "two"])
def test_an_undone_epoch_is_not_seen_after_the_undo_however_the_two_interleave(
    bench: Bench, tmp_path: Path, verb: str, before: list[int]
) -> None:
    """Before each single step of the commit it falls asleep, and wakes before each single step of the undo."""

    def move(sink: Any) -> None:
        if verb == "undo":
            sink.undo(1, 4)
        else:
            sink.keep(4)

    kept = [row for row in before if verb == "keep" or row <= 1]

    def interleave(falls_asleep: int, wakes: int) -> tuple[bool, bool]:
        """Run both; tell whether the commit, and whether the undo, had fewer steps."""
        bench.root = tmp_path / f"{falls_asleep} {wakes}"
        bench.fill(bench.sink(), *before)
        staged, zombie = bench.stage_by_hand(new_attempt(), 3, 33), bench.sink()

        def commit(sink: Any) -> None:
            with suppress(SlackwaterError):  # A driver that is fenced may fail; it must not be seen.
                sink.commit([staged], 3)

        sleeper = Sleeper(zombie, falls_asleep, lambda: commit(zombie))
        undo = Interrupted(bench.sink(), wakes, sleeper.wake)
        move(undo.sink)
        got = bench.rows()
        # What was committed when a keep came stays, whole.
        assert got == kept or (verb == "keep" and got == [*kept, 3, 33]), (falls_asleep, wakes)
        assert bench.plain_rows() == got, (falls_asleep, wakes)
        # It may sleep until after the undo; from then on nothing changes.
        sleeper.wake()
        move(bench.sink())
        commit(bench.sink())
        assert bench.rows() == bench.plain_rows() == got, (falls_asleep, wakes)
        return sleeper.run.calls < falls_asleep, undo.calls < wakes

    for falls_asleep in range(1, 50):
        for wakes in range(1, 50):
            committed_first, undone_first = interleave(falls_asleep, wakes)
            if undone_first:
                break
        if committed_first:
            break
    assert 4 < falls_asleep < 49 and 4 < wakes < 49


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("verb", ["undo", "keep"])
@pytest.mark.parametrize("before", [[], [1, 2]], ids=["nothing", "two"])
def test_an_undo_that_is_killed_before_any_of_its_steps_is_mended_by_another(
    bench: Bench, tmp_path: Path, verb: str, before: list[int]
) -> None:
    """And at that very moment, another driver commits the undone epoch."""

    class Killed(BaseException):
        pass

    def move(sink: Any) -> None:
        if verb == "undo":
            sink.undo(1, 4)
        else:
            sink.keep(4)

    for zombie in (False, True):
        for number in range(1, 100):
            bench.root = tmp_path / f"{zombie} {number}"
            bench.fill(bench.sink(), *before)
            staged, other = bench.stage_by_hand(new_attempt(), 3, 33), bench.sink()

            def commit(sink: Any, staged: Any = staged) -> None:
                with suppress(SlackwaterError):
                    sink.commit([staged], 3)

            def kill(zombie: bool = zombie, other: Any = other, commit: Any = commit) -> None:
                if zombie:
                    commit(other)
                raise Killed

            run = Interrupted(bench.sink(), number, kill)
            with suppress(Killed):
                move(run.sink)
            if run.calls < number:
                break
            move(bench.sink())
            got, kept = bench.rows(), [row for row in before if verb == "keep" or row <= 1]
            assert got == kept or (zombie and verb == "keep" and got == [*kept, 3, 33]), number
            commit(bench.sink())
            bench.fill(bench.sink(), 5)
            assert bench.rows() == bench.plain_rows() == sorted([*got, 5]), number
        assert 4 < number < 99


@pytest.mark.parametrize("place", COMMIT_POINTS, ids=lambda place: place[1])
def test_an_epoch_whose_commit_was_killed_is_undone_or_stays_whole(tmp_path: Path, arm, place: tuple[str, str]) -> None:
    for to_epoch in (1, 2):
        bench = Bench(place[0], tmp_path / str(to_epoch))
        sink = bench.sink()
        bench.fill(sink, 1)
        staged = bench.stage_by_hand(new_attempt(), 2, 22)
        arm(place[1])
        with pytest.raises(SlackwaterError, match=place[1]):
            sink.commit([staged], 2)
        fresh = bench.sink()
        expected = [1, 2, 22] if fresh.epoch() == 2 and to_epoch == 2 else [1]
        fresh.undo(to_epoch, 3)
        assert bench.rows() == bench.plain_rows() == expected
        fresh.commit([staged], 2)
        assert bench.rows() == bench.plain_rows() == expected
