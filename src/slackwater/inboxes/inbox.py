"""An inbox: a durable, ordered queue of messages that a receiver was pushed, until a pipeline has covered them.

append ─ group ─ WRITE (synced) ─ publish how far readers may read ─ acknowledge;  covered ─ drop
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from ..clock import Clock, SystemClock
from ..errors import SlackwaterError, Unavailable
from ..settings import MIB
from .documents import Description
from .group_commit import Append, Appended, Limits, Presence, Session, Work, full
from .writer import Writer

STOPPED = "the receiver was stopped"
_LOOK_S = 0.25
_GROUP_BYTES = 8 * MIB
_GROUP_MESSAGES = 20_000


class Inbox:
    """An inbox in a folder, for one receiver. Its methods may be called from any thread; one of its own writes.

    >>> import tempfile
    >>> inbox = Inbox(Path(tempfile.mkdtemp()) / "clicks")
    >>> inbox.append([b"1", b"2"], key=b"a").result()
    Appended(first=1, last=2, repeated=False)
    >>> inbox.append([b"1", b"2"], key=b"a").result()
    Appended(first=1, last=2, repeated=True)
    >>> inbox.close()
    """

    def __init__(self, folder: Path, limits: Limits | None = None, *, clock: Clock | None = None) -> None:
        self.folder = folder
        self._limits = limits or Limits()
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._waiting_bytes = 0
        self._closing = False
        self._writer = Writer(folder, self._limits, clock or SystemClock())
        self._thread = threading.Thread(target=self._run, name="slackwater-inbox", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> SlackwaterError | None:
        """What ended it for good: nothing is taken any more."""
        return self._writer.failure

    @property
    def hindrance(self) -> SlackwaterError | None:
        """What keeps it from taking messages: its end, a disk that is full, or that it has as many as it may have."""
        return self._writer.hindrance

    @property
    def description(self) -> Description:
        """What is known of it as a whole, as far as that is durable."""
        return self._writer.description

    @property
    def refused(self) -> tuple[int, int]:
        """Tell how many were garbage and how many oversized, by now."""
        return self._writer.refused

    def count_refused(self, *, garbage: int = 0, oversized: int = 0) -> None:
        """Count what was not taken. It goes on record with the next write."""
        with self._changed:
            before = self._writer.refused
            self._writer.refused = before[0] + garbage, before[1] + oversized

    def now_ms(self) -> int:
        """Tell the time: that of the clock, unless it was set back."""
        return self._writer.now_ms()

    def append(
        self,
        messages: Sequence[bytes],
        *,
        key: bytes | None = None,
        token: str | None = None,
        unique: bool = False,
        session: Session | None = None,
    ) -> Future[Appended]:
        """Append messages, all or none; they are durable when the future has its result.

        Under a ``key`` that is known they are not appended again: the answer is the first one. Other messages under a
        known key are refused. ``token`` is the position that the upstream gave them, ``unique`` if it gives it to no
        others: else more may come at it until another one does.
        """
        work = Append(
            messages=messages,
            size_bytes=sum(map(len, messages)),
            key=key,
            token=token,
            unique=unique,
            session=session,
            done=Future(),
        )
        self._submit(work)
        return work.done

    def begin_receiving(self) -> Future[None]:
        """Say that from now on messages are received; the time since they last were is a gap."""
        work = Presence(None, Future())
        self._submit(work)
        return work.done

    def end_receiving(self, why: str, since_ms: int | None = None) -> Future[None]:
        """Say that none are received any more, perhaps since before now."""
        work = Presence(why[:300], Future(), since_ms)
        self._submit(work)
        return work.done

    def close(self) -> None:
        """Write what waits, and let the folder go."""
        with self._changed:
            if self._closing:
                return
            if self._writer.receiving and self.failure is None:
                self._waiting.append(Presence(STOPPED, Future()))
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._writer.close()

    def _submit(self, work: Work) -> None:
        work.done.set_running_or_notify_cancel()  # from here on nobody can take it back
        with self._changed:
            if self.failure is not None:
                raise self.failure
            if self._closing:
                raise Unavailable(
                    "the inbox is closed", code="inbox.unavailable", hint="send it again once a receiver runs"
                )
            size_bytes = self._waiting_bytes + work.size_bytes
            if isinstance(work, Append) and self._waiting_bytes and size_bytes > self._limits.max_waiting_bytes:
                raise full("more is on its way to the disk than it can take at once")
            self._waiting.append(work)
            self._waiting_bytes = size_bytes
            self._changed.notify_all()

    # --- in the inbox's own thread

    def _run(self) -> None:
        group: list[Work] = []
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._closing, _LOOK_S)
                    group = self._take_group()
                    if not group and self._closing:
                        return
                if group:
                    self._write(group)
                self._writer.look_around(busy=bool(group))
        except BaseException as error:
            self._give_up(error, group)

    def _take_group(self) -> list[Work]:
        """Take what waits, in its order: one synced write makes all of it durable."""
        group: list[Work] = []
        size_bytes = messages = 0
        while self._waiting and size_bytes < _GROUP_BYTES and messages < _GROUP_MESSAGES:
            work = self._waiting.popleft()
            group.append(work)
            size_bytes += work.size_bytes
            messages += len(work.messages)
        return group

    def _write(self, group: list[Work]) -> None:
        """Write a group, publish it, and answer."""
        try:
            results = self._writer.write(group)
            self._writer.publish(more=bool(self._waiting))
        except BaseException as error:
            results = [self._writer.note(error)] * len(group)
            for work in group:
                if isinstance(work, Append) and work.session is not None:
                    work.session.broken = True
        finally:
            with self._changed:
                self._waiting_bytes -= sum(work.size_bytes for work in group)
        for work, result in zip(group, results, strict=True):
            if isinstance(result, BaseException):
                work.done.set_exception(result)
            else:
                work.done.set_result(result)

    def _give_up(self, error: BaseException, group: list[Work]) -> None:
        """Tell all who wait, now or later, that this thread has ended: else they would wait for ever."""
        failure = self._writer.fail(error)
        with self._changed:
            left = [*group, *self._waiting]
            self._waiting.clear()
        for work in left:
            if not work.done.done():
                work.done.set_exception(failure)
