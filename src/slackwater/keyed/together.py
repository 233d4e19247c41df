"""What several threads ask for at once, done by one of them for all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ..errors import InvalidInput, Unavailable

T = TypeVar("T")

# As much as is done at once, but for what is larger by itself.
_MOST_AT_ONCE = 20_000


class _Turn(Generic[T]):
    """One thread's item. Once it is ``over``, it was ``done``, or has failed with ``error``, or nobody can tell."""

    def __init__(self, item: T, size: int) -> None:
        self.item, self.size = item, size
        self.over = self.done = False
        self.error: Exception | None = None


class Together(Generic[T]):
    """While one thread is at it, the others wait, and one of those then does what all of them wait for.

    A sync of the disk serves them all. ``act`` does items, all of them or none, and is called by one thread at a time;
    if it refuses them as input, each is tried alone. Wherever a thread is interrupted, nothing counts as done that is
    not, and the others go on.
    """

    def __init__(self, act: Callable[[Sequence[T]], None]) -> None:
        self._act = act
        self._changed = threading.Condition()
        self._waiting: deque[_Turn[T]] = deque()
        # The turn of the thread that is at it.
        self._at_work: _Turn[T] | None = None

    def do(self, item: T, size: int) -> None:
        """Return when the item is done; raise what it has failed with."""
        mine = _Turn(item, size)
        while not mine.over:
            turns: list[_Turn[T]] = []
            leaves = True
            try:
                self._await(mine, turns)
                self._try(turns)
                leaves = False
            finally:
                try:
                    self._end(mine, turns, leaves=leaves)
                except BaseException:
                    self._end(mine, turns, leaves=True)  # interrupted here, too: else the others would wait for ever
                    raise
        if mine.error is not None:
            raise mine.error
        if not mine.done:
            raise Unavailable(
                "the thread that wrote for this one, too, was interrupted",
                code="keyed.unavailable",
                hint="open it again: it says what was written",
            )

    def _await(self, mine: _Turn[T], turns: list[_Turn[T]]) -> None:
        """Wait until a turn is over; or until it is on this thread, which then takes all that is to be done."""
        with self._changed:
            if mine not in self._waiting:
                self._waiting.append(mine)
            self._changed.wait_for(lambda: mine.over or self._at_work is None)
            if not mine.over:
                self._at_work = mine
                self._take(turns)

    def _take(self, turns: list[_Turn[T]]) -> None:
        size = 0
        while self._waiting and (not turns or size + self._waiting[0].size <= _MOST_AT_ONCE):
            size += self._waiting[0].size
            turns.append(self._waiting[0])
            self._waiting.popleft()

    def _try(self, turns: Sequence[_Turn[T]]) -> None:
        if not turns:
            return
        try:
            self._act([turn.item for turn in turns])
        except InvalidInput as error:
            if len(turns) == 1:
                turns[0].error = error
                return
            for turn in turns:
                self._try([turn])
        except Exception as error:
            for turn in turns:
                turn.error = error
        else:
            for turn in turns:
                turn.done = True

    def _end(self, mine: _Turn[T], turns: Sequence[_Turn[T]], *, leaves: bool) -> None:
        """Let the others go on; a thread that leaves without an answer waits no longer. A second call is harmless."""
        if not (turns or leaves):
            return  # another thread has done it
        with self._changed:
            for turn in turns:
                turn.over = True
            if leaves and mine in self._waiting:
                self._waiting.remove(mine)
            if self._at_work is mine:
                self._at_work = None
            self._changed.notify_all()
