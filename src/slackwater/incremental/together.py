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
    """One thread's item. ``over`` says that it was done, or has failed with ``error``."""

    def __init__(self, item: T, size: int) -> None:
        self.item, self.size = item, size
        self.over = False
        self.error: Exception | None = None


class Together(Generic[T]):
    """While one thread is at it, the others wait, and one of those then does what all of them wait for.

    A sync of the disk serves them all. ``act`` does items, all of them or none, and is called by one thread at a time;
    if it refuses them as input, each is tried alone.
    """

    def __init__(self, act: Callable[[Sequence[T]], None]) -> None:
        self._act = act
        self._changed = threading.Condition()
        self._waiting: deque[_Turn[T]] = deque()
        self._busy = False

    def do(self, item: T, size: int) -> None:
        """Return when the item is done; raise what it has failed with."""
        mine = _Turn(item, size)
        while (turns := self._await(mine)) is not None:
            try:
                self._try(turns)
            finally:
                with self._changed:
                    for turn in turns:
                        turn.over = True
                    self._busy = False
                    self._changed.notify_all()
        if mine.error is not None:
            raise mine.error

    def _await(self, mine: _Turn[T]) -> list[_Turn[T]] | None:
        """Wait until a turn is over, and return None; or until it is on this thread, and return all to be done."""
        with self._changed:
            if not (mine.over or mine in self._waiting):
                self._waiting.append(mine)
            try:
                self._changed.wait_for(lambda: mine.over or not self._busy)
            except BaseException:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                raise
            if mine.over:
                return None
            self._busy = True
            return self._take()

    def _take(self) -> list[_Turn[T]]:
        taken, size = list[_Turn[T]](), 0
        while self._waiting and (not taken or size + self._waiting[0].size <= _MOST_AT_ONCE):
            taken.append(self._waiting.popleft())
            size += taken[-1].size
        return taken

    def _try(self, turns: Sequence[_Turn[T]]) -> None:
        try:
            self._act([turn.item for turn in turns])
        except InvalidInput as error:
            if len(turns) > 1:
                for turn in turns:
                    self._try([turn])
                return
            turns[0].error = error
        except Exception as error:
            for turn in turns:
                turn.error = error
        except BaseException:
            for turn in turns:
                turn.error = _interrupted()
            raise


def _interrupted() -> Unavailable:
    return Unavailable(
        "the thread that wrote for this one, too, was interrupted",
        code="keyed.unavailable",
        hint="open it again: it says what was written",
    )
