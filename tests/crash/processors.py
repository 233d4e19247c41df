"""State of the user's own making: the processors and functions that the queries of the catalogue give to Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

HOUR_MS = 3_600_000


class Visits(StatefulProcessor):
    """Keeps a value, a list and a map for each visit, and tells them when the watermark has passed its end."""

    schema = "user string, until_ms long, views long, ns string, newest string"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.views = handle.getValueState("views", "views long")
        self.ns = handle.getListState("ns", "n long")
        self.newest = handle.getMapState("newest", "n long", "id long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        frame = pd.concat(rows)
        self.views.update(((self.views.get() or (0,))[0] + len(frame),))
        self.ns.appendList([(int(n),) for n in frame["n"]])
        for n, number in zip(frame["n"], frame["id"], strict=True):
            newest = self.newest.getValue((int(n),)) or (0,)
            self.newest.updateValue((int(n),), (max(newest[0], int(number)),))
        self.handle.registerTimer(int(key[1]))
        yield pd.DataFrame()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        ns = sorted(n for (n,) in self.ns.get())
        newest = sorted((n, number) for (n,), (number,) in self.newest.iterator())
        columns = (*key, self.views.get()[0], str(ns), str(newest))
        yield pd.DataFrame([columns], columns=["user", "until_ms", "views", "ns", "newest"])
        for state in (self.views, self.ns, self.newest):
            state.clear()

    def close(self) -> None:
        pass


class Reminders(StatefulProcessor):
    """Counts by user; each micro-batch with rows sets a timer that is due in the next one, and tells the count then."""

    schema = "user string, views long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.views = handle.getValueState("views", "views long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.views.update(((self.views.get() or (0,))[0] + sum(1 for _ in rows),))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(user=key[0], views=self.views.get()[0])

    def close(self) -> None:
        pass


class Expiring(StatefulProcessor):
    """Counts twice by user: in state that lives for an hour, and in state that is gone by the next micro-batch."""

    schema = "user string, kept long, forgotten long"

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "views long", HOUR_MS)
        self.each = handle.getListState("each", "n long", HOUR_MS)
        self.forgotten = handle.getMapState("forgotten", "user string", "views long", 1)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        ns = [(row.n,) for row in rows]
        self.each.appendList(ns)
        kept = (self.kept.get() or (0,))[0] + len(ns)
        forgotten = (self.forgotten.getValue((key[0],)) or (0,))[0] + len(ns)
        self.kept.update((kept,))
        self.forgotten.updateValue((key[0],), (forgotten,))
        yield Row(user=key[0], kept=1000 * kept + sum(n for (n,) in self.each.get()), forgotten=forgotten)

    def close(self) -> None:
        pass


class Balances(StatefulProcessor):
    """Adds to a balance that a table gave in the beginning."""

    schema = "user string, balance long"

    def init(self, handle: Any) -> None:
        self.balance = handle.getValueState("balance", "balance long")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.balance.update((initialState.balance,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        balance = (self.balance.get() or (0,))[0] + sum(row.n for row in rows)
        self.balance.update((balance,))
        yield Row(user=key[0], balance=balance)

    def close(self) -> None:
        pass


def visits(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Count a visit's views; tell the count when the watermark has passed its end."""
    if state.hasTimedOut:
        (views,) = state.get
        state.remove()
        yield pd.DataFrame([(*key, views)], columns=["user", "until_ms", "views"])
        return
    state.update(((state.getOption or (0,))[0] + sum(map(len, frames)),))
    state.setTimeoutTimestamp(int(key[1]))


def silences(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Count a user's views until a micro-batch comes without any."""
    if state.hasTimedOut:
        (views,) = state.get
        state.remove()
        yield pd.DataFrame([(*key, views)], columns=["user", "views"])
        return
    state.update(((state.getOption or (0,))[0] + sum(map(len, frames)),))
    state.setTimeoutDuration(1)


def scaled(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(n=frame["n"] * 10)
