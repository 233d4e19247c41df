"""Epochs: the micro-batches that one checkpoint covers, kept apart from the threads that stage and settle them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

# Descriptors go into the manifest, which is bounded: an epoch that has this much closes before its time.
MAX_DESCRIPTOR_BYTES = 2 * 1024 * 1024


class StagedBatch(msgspec.Struct, frozen=True):
    """What each sink has staged of one micro-batch, by the sink's name."""

    micro_batch: int
    descriptors: dict[str, dict[str, Any]]


class Epoch(msgspec.Struct, kw_only=True):
    """The micro-batches of one attempt, in their order."""

    checkpoint_id: str
    deadline: float
    staged: list[StagedBatch] = []
    size_bytes: int = 0

    @property
    def first(self) -> int:
        return self.staged[0].micro_batch

    @property
    def last(self) -> int:
        return self.staged[-1].micro_batch

    def cut(self, is_committed: Callable[[int], bool]) -> bool:
        """Drop what Spark has not committed, which is always at the end; say whether something is left.

        The next run does it again, so its output must not come with this epoch.
        """
        while self.staged and not is_committed(self.last):
            self.staged.pop()
        return bool(self.staged)


class Epochs:
    """The open epoch, if there is one, and those that are closed and not settled, oldest first.

    ``ahead`` is how many micro-batches Spark may begin after one whose files are still needed. Not safe by itself: the
    caller holds its lock. Times are those of one monotonic clock, in seconds.
    """

    def __init__(self, *, interval_s: float, in_flight: int, ahead: int) -> None:
        self._interval_s, self._in_flight, self._ahead = interval_s, in_flight, ahead
        self._open: Epoch | None = None
        self._staging = False
        self._close_through: float = -1
        self.closed: deque[Epoch] = deque()
        # The newest micro-batch that was staged, and that was settled.
        self.newest = self.settled = -1

    def __len__(self) -> int:
        return len(self.closed) + (self._open is not None)

    @property
    def is_open(self) -> bool:
        """Whether an epoch has micro-batches already: one that has just begun is that of its first."""
        return self._open is not None and bool(self._open.staged)

    def has_room(self, micro_batch: int, now: float) -> bool:
        """Say whether this micro-batch may be staged now."""
        self.close_due(now)
        if self.closed and micro_batch - self.closed[0].last > self._ahead:
            return False
        # While one is open, there is room for it: it counts as one of them.
        return len(self.closed) < self._in_flight

    def begin(self, now: float, mint: Callable[[], str]) -> str:
        """Begin to stage a micro-batch; return the attempt that it belongs to."""
        if self._open is None:
            self._open = Epoch(checkpoint_id=mint(), deadline=now + self._interval_s)
        self._staging = True
        return self._open.checkpoint_id

    def end(self, staged: StagedBatch | None, now: float) -> None:
        """Add the micro-batch that was begun; None when it could not be staged."""
        self._staging = False
        if staged is not None and self._open is not None:
            self._open.staged.append(staged)
            self._open.size_bytes += len(msgspec.json.encode(staged.descriptors))
            self.newest = staged.micro_batch
        self.close_due(now)

    def close_through(self, micro_batch: float = math.inf) -> None:
        """Let the epoch that has this micro-batch, and all before it, close before their time."""
        self._close_through = max(self._close_through, micro_batch)

    def close_due(self, now: float) -> None:
        """Close the open epoch when its time has come; one that a micro-batch is being staged into waits for it."""
        epoch = self._open
        if epoch is None or self._staging or not epoch.staged:
            return
        full = epoch.size_bytes >= MAX_DESCRIPTOR_BYTES
        if full or now >= epoch.deadline or epoch.first <= self._close_through:
            self.closed.append(epoch)
            self._open = None

    def due_in_s(self, now: float) -> float:
        """Tell for how long the open epoch stays open if nothing else happens."""
        if self._open is None or self._staging or not self._open.staged:
            return math.inf
        return max(0.0, self._open.deadline - now)

    def settle(self) -> None:
        """Let the oldest epoch go: all that it has is settled."""
        self.settled = self.closed.popleft().last
