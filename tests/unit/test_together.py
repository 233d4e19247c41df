"""Threads that wait for one of them to do what all have asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from slackwater.errors import InvalidInput, Unavailable
from slackwater.keyed import together as module
from slackwater.keyed.together import Together


class Work:
    """Notes what is done at once; the first call waits until the test lets it go on."""

    def __init__(self, *, refuse: int | None = None, fail: BaseException | None = None) -> None:
        self.done: list[list[int]] = []
        self.began, self.goes_on = threading.Event(), threading.Event()
        self._refuse, self._fail = refuse, fail
        self.together: Together[int] = Together(self)

    def __call__(self, items: Sequence[int]) -> None:
        if not self.began.is_set():
            self.began.set()
            assert self.goes_on.wait(30)
        if self._refuse in items:
            raise InvalidInput("not this one", code="keyed.not_pairs")
        if self._fail is not None and items != [0]:
            raise self._fail
        self.done.append(list(items))

    def run(self, count: int, size: int = 1) -> list[Future[None]]:
        """Let one thread begin, and all the others ask while it is at it; return what became of each."""
        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(self.together.do, 0, size)]
            assert self.began.wait(30)
            for number in range(1, count):
                futures.append(pool.submit(self.together.do, number, size))
                while len(self.together._waiting) < number:
                    pass
            self.goes_on.set()
        return futures


def test_all_who_ask_while_one_is_at_it_are_served_at_once_in_their_order():
    work = Work()
    assert [future.result() for future in work.run(8)] == [None] * 8
    assert work.done == [[0], [1, 2, 3, 4, 5, 6, 7]]


def test_one_that_is_refused_is_told_so_and_the_others_are_done():
    work = Work(refuse=2)
    futures = work.run(5)
    with pytest.raises(InvalidInput, match="not this one"):
        futures[2].result()
    assert [futures[number].result() for number in (0, 1, 3, 4)] == [None] * 4
    assert work.done == [[0], [1], [3], [4]]


def test_what_fails_fails_for_all_that_were_to_be_done_with_it():
    work = Work(fail=Unavailable("the disk is full", code="keyed.unavailable"))
    futures = work.run(4)
    assert futures[0].result() is None
    for future in futures[1:]:
        with pytest.raises(Unavailable, match="the disk is full"):
            future.result()


def test_a_thread_that_is_interrupted_takes_nobody_else_with_it():
    work = Work(fail=KeyboardInterrupt())
    futures = work.run(4)
    raised = [type(future.exception()) for future in futures[1:]]
    assert sorted(kind.__name__ for kind in raised) == ["KeyboardInterrupt", "Unavailable", "Unavailable"]
    work.together.do(0, 1)  # nobody is left waiting, nor at it
    assert work.done == [[0], [0]]


def test_an_interrupt_while_each_is_tried_alone_tells_nobody_that_it_was_done():
    work = Work(refuse=3, fail=KeyboardInterrupt())
    futures = work.run(4)
    raised = [type(future.exception()).__name__ for future in futures[1:]]
    assert sorted(raised) == ["KeyboardInterrupt", "Unavailable", "Unavailable"]
    assert work.done == [[0]]


@pytest.mark.parametrize("step", ["_await", "_take", "_try", "_end"])
def test_an_interrupt_at_any_step_leaves_nobody_waiting_and_nothing_done_that_is_not(monkeypatch, step):
    work = Work()
    work.began.set()
    real, struck = getattr(Together, step), list[bool]()

    def strike(*given, **named):
        if not struck:
            struck.append(True)
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(Together, step, strike)
    with pytest.raises(KeyboardInterrupt):
        work.together.do(1, 1)
    assert work.done == ([[1]] if step == "_end" else [])
    assert work.together._at_work is None and not work.together._waiting
    work.together.do(2, 1)
    assert work.done[-1] == [2]


def test_what_is_done_at_once_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 20)
    work = Work()
    assert [future.result() for future in work.run(6, size=9)] == [None] * 6
    assert work.done == [[0], [1, 2], [3, 4], [5]]
    work = Work()
    assert [future.result() for future in work.run(3, size=99)] == [None] * 3
    assert work.done == [[0], [1], [2]]
