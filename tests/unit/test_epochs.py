"""Which micro-batches make one epoch, when it closes, and when the next one must wait."""

from __future__ import annotations

import itertools
import math

from slackwater.streaming import epochs as module
from slackwater.streaming.epochs import Epochs, StagedBatch


class Clocked:
    """Epochs with a clock that a test sets."""

    def __init__(self, *, interval_s: float = 10.0, in_flight: int = 2, ahead: int = 16) -> None:
        self.epochs = Epochs(interval_s=interval_s, in_flight=in_flight, ahead=ahead)
        self._ids = itertools.count(1)

    def begin(self, at: float) -> str:
        return self.epochs.begin(at, lambda: f"attempt-{next(self._ids)}")

    def stage(self, micro_batch: int, at: float, size: int = 0) -> str:
        assert self.epochs.has_room(micro_batch, at)
        attempt = self.begin(at)
        self.epochs.end(StagedBatch(micro_batch, {"sink": {"n": micro_batch, "text": "x" * size}}), at)
        return attempt

    def closed(self) -> list[list[int]]:
        return [[staged.micro_batch for staged in epoch.staged] for epoch in self.epochs.closed]


def test_without_an_interval_every_micro_batch_is_an_epoch_that_closes_at_once():
    clocked = Clocked(interval_s=0)
    assert clocked.stage(0, at=1.0) != clocked.stage(1, at=1.0)
    assert clocked.closed() == [[0], [1]]
    assert not clocked.epochs.has_room(2, 1.0)
    clocked.epochs.settle()
    assert clocked.epochs.has_room(2, 1.0)
    assert clocked.epochs.settled == 0


def test_an_epoch_has_one_attempt_and_all_that_begins_before_its_deadline():
    clocked = Clocked()
    attempts = [clocked.stage(0, at=100), clocked.stage(1, at=105), clocked.stage(2, at=109.9)]
    assert len(set(attempts)) == 1
    assert clocked.closed() == []
    assert clocked.stage(3, at=110) not in attempts
    assert clocked.closed() == [[0, 1, 2]]
    assert len(clocked.epochs) == 2


def test_a_quiet_source_does_not_keep_an_epoch_open():
    clocked = Clocked()
    clocked.stage(0, at=100)
    assert clocked.epochs.due_in_s(104) == 6
    clocked.epochs.close_due(109.9)
    assert clocked.closed() == []
    clocked.epochs.close_due(110)
    assert clocked.closed() == [[0]]
    assert clocked.epochs.due_in_s(110) == math.inf


def test_a_stage_that_began_before_the_deadline_is_waited_for():
    clocked = Clocked()
    clocked.stage(0, at=100)
    clocked.begin(109)
    clocked.epochs.close_due(200)
    assert clocked.closed() == []
    assert clocked.epochs.due_in_s(200) == math.inf
    clocked.epochs.end(StagedBatch(1, {}), 201)
    assert clocked.closed() == [[0, 1]]


def test_a_micro_batch_that_could_not_be_staged_leaves_the_others_in_the_epoch():
    clocked = Clocked()
    clocked.stage(0, at=100)
    clocked.begin(101)
    clocked.epochs.end(None, 102)
    assert clocked.closed() == []
    clocked.epochs.close_through()
    clocked.epochs.close_due(102)
    assert clocked.closed() == [[0]]


def test_an_epoch_in_which_nothing_was_staged_is_never_closed():
    clocked = Clocked()
    clocked.begin(100)
    clocked.epochs.end(None, 300)
    clocked.epochs.close_through()
    clocked.epochs.close_due(300)
    assert clocked.closed() == []


def test_closing_through_a_micro_batch_leaves_a_later_epoch_open():
    clocked = Clocked()
    clocked.stage(4, at=100)
    clocked.epochs.close_through(clocked.epochs.newest)
    clocked.epochs.close_due(100)
    clocked.stage(5, at=101)
    clocked.epochs.close_due(101)
    assert clocked.closed() == [[4]]


def test_what_spark_has_not_committed_is_cut_off_at_the_end():
    clocked = Clocked()
    for micro_batch in (5, 6, 7):
        clocked.stage(micro_batch, at=100)
    clocked.epochs.close_through()
    clocked.epochs.close_due(100)
    epoch = clocked.epochs.closed[0]
    assert epoch.cut(lambda n: n <= 6)
    assert [staged.micro_batch for staged in epoch.staged] == [5, 6]
    # Its commit file may be gone by now: only the newest decides.
    assert epoch.cut(lambda n: n == 6)
    assert epoch.first == 5
    assert not epoch.cut(lambda n: False)


def test_no_micro_batch_begins_that_would_let_spark_clean_up_what_a_closed_epoch_needs():
    clocked = Clocked(in_flight=16, ahead=3)
    clocked.stage(0, at=100)
    for micro_batch in (1, 2, 3):
        clocked.stage(micro_batch, at=110)
    assert not clocked.epochs.has_room(4, 111)
    clocked.epochs.settle()
    assert clocked.epochs.has_room(4, 111)
    # An open epoch needs the files of its newest micro-batch only.
    for micro_batch in range(4, 20):
        clocked.stage(micro_batch, at=111)


def test_an_open_epoch_takes_more_while_as_many_as_may_be_are_in_flight():
    clocked = Clocked(in_flight=1)
    clocked.stage(0, at=100)
    clocked.stage(1, at=101)
    assert not clocked.epochs.has_room(2, 110)
    clocked.epochs.settle()
    assert clocked.epochs.has_room(2, 110)


def test_an_epoch_closes_early_before_its_descriptors_outgrow_the_manifest(monkeypatch):
    monkeypatch.setattr(module, "MAX_DESCRIPTOR_BYTES", 1000)
    clocked = Clocked()
    clocked.stage(0, at=100, size=600)
    assert clocked.closed() == []
    clocked.stage(1, at=101, size=600)
    assert clocked.closed() == [[0, 1]]


def test_an_epoch_is_open_for_a_micro_batch_only_when_another_one_was_staged_before_it():
    clocked = Clocked()
    clocked.begin(at=100)
    assert not clocked.epochs.is_open  # its first: the tables that it reads are brought up to date
    clocked.epochs.end(StagedBatch(0, {}), 100)
    assert clocked.epochs.is_open
    clocked.epochs.close_due(110)
    assert not clocked.epochs.is_open
