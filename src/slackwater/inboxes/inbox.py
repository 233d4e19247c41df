"""An inbox: a durable, ordered queue of messages that a receiver was pushed, until a pipeline has covered them.

append ─ group ─ WRITE (synced) ─ publish how far readers may read ─ acknowledge;  covered ─ drop
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..clock import Clock, SystemClock
from ..errors import Corrupt, SlackwaterError, Unavailable
from ..failpoints import reach
from ..rocks.database import Rocks
from ..settings import MIB
from . import format as documents
from . import layout
from .batch import Append, Appended, Batch, Presence, Session, Work
from .documents import read_document, remove_unfinished, replace_document, sync_document, write_document
from .format import COVERED_FILE, PUBLISHED_FILE, Covered, Description, Published
from .limits import Limits, full
from .opening import describe, refuse_other_database, refuse_other_folder

logger = logging.getLogger("slackwater")

STOPPED = "the receiver was stopped"
_LOOK_S = 0.25
# While messages come without a pause: to look, and to tell readers, takes as long as to write some.
_LOOK_BUSY_S, _PUBLISH_BUSY_S = 0.05, 0.005
# After a write that failed, the database is opened again not sooner than this.
_AGAIN_S = 0.5
# For so long nothing had to wait before that is said.
_CALM_S = 5.0
# What readers are told is synced not more often than this.
_SYNC_S = 1.0
_GROUP_BYTES = 8 * MIB
_GROUP_MESSAGES = 20_000


class Inbox:
    """An inbox in a folder, for one receiver. Its methods may be called from any thread.

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
        self.limits = limits or Limits()
        # What ended it for good: damage, or another receiver in its place. Nothing is taken any more.
        self.failure: SlackwaterError | None = None
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._hindrance: Unavailable | None = None
        # Why messages have to wait, and when some last had to, until that was long ago.
        self._full: Unavailable | None = None
        self._full_at: float | None = None
        self._waiting: deque[Work] = deque()
        self._waiting_bytes = 0
        self._garbage = self._oversized = 0
        self._closing = False
        self._live = False
        self._covered_seen: tuple[int, int] | None = None
        refuse_other_folder(folder)
        self._rocks: Rocks | None = Rocks(folder / layout.DATABASE)
        try:
            # What others had to wait for need not be what they have to wait for now.
            self._description = msgspec.structs.replace(describe(self._rocks, self._clock), full=None)
            refuse_other_database(folder, self._description)
            remove_unfinished(folder / PUBLISHED_FILE)
            self._began, self._began_uptime_ms = self._clock.monotonic(), self._description.uptime_ms
            self._written_at = self._clock.monotonic()
            self._write([])  # its uid, and all that is there, are durable before anybody is told of them
            self._published = self._durable
            self._untold = False
            self._published_at = self._looked_at = self._clock.monotonic()
            self._synced_published, self._synced_at = self._published, self._clock.monotonic()
            replace_document(folder / PUBLISHED_FILE, documents.encode(self._published))
            reach("inbox.open.after")
        except BaseException:
            self._close_rocks()
            raise
        self._thread = threading.Thread(target=self._run, name="slackwater-inbox", daemon=True)
        self._thread.start()

    # --- from any thread

    @property
    def hindrance(self) -> SlackwaterError | None:
        """What keeps it from taking messages: its end, a disk that is full, or that it has as many as it may have."""
        return self.failure or self._hindrance or self._full

    @property
    def description(self) -> Description:
        return self._description

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
        size_bytes = sum(map(len, messages))
        work = Append(
            messages=messages,
            size_bytes=size_bytes,
            key=key,
            token=token,
            unique=unique,
            session=session,
            done=Future(),
        )
        work.done.set_running_or_notify_cancel()  # from here on nobody can take it back
        with self._changed:
            self._check_open()
            if self._waiting_bytes and self._waiting_bytes + size_bytes > self.limits.max_waiting_bytes:
                raise full("more is on its way to the disk than it can take at once")
            self._waiting.append(work)
            self._waiting_bytes += size_bytes
            self._changed.notify_all()
        return work.done

    def count_refused(self, *, garbage: int = 0, oversized: int = 0) -> None:
        """Count what was not taken. It goes on record with the next write."""
        with self._changed:
            self._garbage += garbage
            self._oversized += oversized

    @property
    def refused(self) -> tuple[int, int]:
        """Tell how many were garbage and how many oversized, by now."""
        with self._changed:
            return self._description.garbage + self._garbage, self._description.oversized + self._oversized

    def begin_receiving(self) -> Future[None]:
        """Say that from now on messages are received; the time since they last were is a gap."""
        return self._do(Presence(None, Future()))

    def end_receiving(self, why: str, since_ms: int | None = None) -> Future[None]:
        """Say that none are received any more, perhaps since before now."""
        return self._do(Presence(why[:300], Future(), since_ms))

    def now_ms(self) -> int:
        """Tell the time: that of the clock, unless it was set back."""
        return max(self._clock.now_ms(), self._description.now_ms)

    def close(self) -> None:
        """Write what waits, and let the folder go."""
        with self._changed:
            if self._closing:
                return
            if self._live and self.failure is None:
                self._waiting.append(Presence(STOPPED, Future()))
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._close_rocks()

    def _do(self, work: Presence) -> Future[None]:
        work.done.set_running_or_notify_cancel()
        with self._changed:
            self._check_open()
            self._waiting.append(work)
            self._changed.notify_all()
        return work.done

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closing:
            raise Unavailable("the inbox is closed", code="inbox.closed", hint="send it again once a receiver runs")

    # --- in the inbox's thread

    def _run(self) -> None:
        group: list[Work] = []
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._closing, _LOOK_S)
                    group = self._take_group()
                    if not group and self._closing:
                        return
                self._act(group)
                if not group or self._clock.monotonic() - self._looked_at >= _LOOK_BUSY_S:
                    self._look_around(bool(group))
        except BaseException as error:
            self._give_up(error, group)

    def _give_up(self, error: BaseException, group: list[Work]) -> None:
        """Tell all who wait, now or later, that this thread has ended: else they would wait for ever."""
        failure = self._fail(error)
        with self._changed:
            left = [*group, *self._waiting]
            self._waiting.clear()
        for work in left:
            if not work.done.done():
                work.done.set_exception(failure)

    def _take_group(self) -> list[Work]:
        """Take what waits, in its order: one synced write makes all of it durable."""
        group: list[Work] = []
        size_bytes = messages = 0
        while self._waiting and size_bytes < _GROUP_BYTES and messages < _GROUP_MESSAGES:
            work = self._waiting.popleft()
            group.append(work)
            if isinstance(work, Append):
                size_bytes += work.size_bytes
                messages += len(work.messages)
        return group

    def _act(self, group: list[Work]) -> None:
        if not group:
            return
        size_bytes = sum(work.size_bytes for work in group if isinstance(work, Append))
        try:
            results = self._try_to_write(group)
        except BaseException as error:
            results = [self._note_failure(error)] * len(group)
            for work in group:
                if isinstance(work, Append) and work.session is not None:
                    work.session.broken = True
        finally:
            with self._changed:
                self._waiting_bytes -= size_bytes
        for work, result in zip(group, results, strict=True):
            if isinstance(result, BaseException):
                work.done.set_exception(result)
            else:
                work.done.set_result(result)

    def _note_failure(self, error: BaseException) -> SlackwaterError:
        """Tell what may be tried again, once the disk has room, from what ends the inbox."""
        if not isinstance(error, Unavailable):
            return self._fail(error)
        self._close_rocks()
        if self._hindrance is None:
            logger.warning("nothing is acknowledged for now: %s", error)
        # The old one, said again, is no new try: else nobody who asks often would ever see one.
        if error is not self._hindrance:
            self._hindrance, self._written_at = error, self._clock.monotonic()
        return error

    def _fail(self, error: BaseException) -> SlackwaterError:
        self._close_rocks()
        if not isinstance(error, SlackwaterError):
            error = SlackwaterError(f"the inbox has failed: {error!r:.200}", code="inbox.failed")
        self.failure = error
        return error

    def _look_around(self, busy: bool) -> None:
        """Do what nobody waits for: drop what is covered, forget old keys, say that the receiver is there."""
        self._looked_at = self._clock.monotonic()
        try:
            if not busy and self._rocks is not None:
                self._rocks.refuse_removed()
            self._drop_covered()
            due = self._clock.monotonic() - self._written_at >= self.limits.heartbeat_s
            if due and not busy and self.failure is None:
                self._try_to_write([])
        except BaseException as error:
            self._note_failure(error)
        if self.failure is None:  # else what lies there may be another one's
            self._publish(again=not busy and not self._is_told())
            self._sync_published()

    def _try_to_write(self, group: list[Work], *, covered: int = 0) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        if self._rocks is None:
            if self._hindrance is not None and self._clock.monotonic() - self._written_at < _AGAIN_S:
                raise self._hindrance
            self._reopen()
        return self._write(group, covered)

    def _reopen(self) -> None:
        """Open again after a write that failed: RocksDB itself takes no more, and what it has of that write counts."""
        rocks = Rocks(self.folder / layout.DATABASE)
        try:
            found = describe(rocks, self._clock)
            if found.uid != self._description.uid or found.last < self._description.last:
                raise Corrupt(
                    f"the inbox in {self.folder} was exchanged while it was open",
                    code="inbox.swapped",
                    hint="put back the folder that was there; what was acknowledged is in that one",
                )
        except BaseException:
            rocks.close()
            raise
        self._rocks, self._description, self._hindrance = rocks, found, None
        logger.info("the inbox in %s takes messages again", self.folder)

    def _write(self, group: list[Work], covered: int = 0) -> list[Any]:
        assert self._rocks is not None
        with self._changed:
            garbage, oversized = self._garbage, self._oversized
        batch = Batch(self._rocks, self._description, self.limits, self.now_ms(), self._uptime_ms())
        batch.count(garbage=garbage, oversized=oversized)
        live = self._live
        batch.find([work for work in group if isinstance(work, Append)])
        for work in group:
            if isinstance(work, Append):
                batch.append(work)
            else:
                live = work.away is None
                batch.set_presence(work.away, work.since_ms)
        batch.drop(covered)
        batch.forget_keys()
        if live:
            batch.stay()
        reach("inbox.write.before")
        self._rocks.write(batch.finish(), dropped=batch.dropped)
        reach("inbox.write.after")
        with self._changed:
            self._description, self._live = batch.description, live
            self._garbage -= garbage
            self._oversized -= oversized
        known = self._description
        self._durable = Published(inbox=known.uid, position=known.last, dropped=known.dropped)
        self._written_at = self._clock.monotonic()
        self._note_room(batch.refusal)
        if group or covered:
            # Where others wait already, their write tells readers of this one, too, if that was not long ago.
            if not self._waiting or self._written_at - self._published_at >= _PUBLISH_BUSY_S:
                self._publish()
            reach("inbox.publish.after")
        return batch.results

    def _note_room(self, refusal: Unavailable | None) -> None:
        """Say once that messages have to wait, and once that they have not: small ones may fit where others do not."""
        if refusal is not None:
            if self._full_at is None:
                logger.warning("messages have to wait: %s", refusal)
            self._full, self._full_at = refusal, self._written_at
        elif self._description.full is None:
            self._full = None
            if self._full_at is not None and self._written_at - self._full_at >= _CALM_S:
                self._full_at = None
                logger.info("the inbox in %s has room again", self.folder)

    def _uptime_ms(self) -> int:
        return self._began_uptime_ms + round(1000 * (self._clock.monotonic() - self._began))

    def _publish(self, *, again: bool = False) -> None:
        """Tell readers how far they may read: never beyond what is durable, so that no power loss takes it back.

        What is durable is acknowledged, even if readers cannot be told of it yet: that is tried again.
        """
        published = self._durable
        if published == self._published and not again:
            return
        try:
            write_document(self.folder / PUBLISHED_FILE, documents.encode(published))
        except Unavailable as error:
            if not self._untold:
                logger.warning("readers are not told of new messages for now: %s", error)
            self._untold = True
        else:
            self._published, self._untold = published, False
            self._published_at = self._written_at

    def _is_told(self) -> bool:
        """Tell whether readers find what was written for them: somebody may have put back an older file, or none."""
        with suppress(SlackwaterError):
            return read_document(self.folder / PUBLISHED_FILE) == documents.encode(self._durable)
        return False

    def _sync_published(self) -> None:
        """Bring to the disk what readers are told, now and then: a power loss should not take them back by much.

        Who had read further would take this inbox for an older copy, until its receiver runs.
        """
        now = self._clock.monotonic()
        if self._published == self._synced_published or now - self._synced_at < _SYNC_S:
            return
        with suppress(SlackwaterError):
            sync_document(self.folder / PUBLISHED_FILE)
            self._synced_published, self._synced_at = self._published, now

    def _drop_covered(self) -> None:
        """Drop what the pipeline says that it has, if it says something new."""
        path = self.folder / COVERED_FILE
        try:
            status = path.stat()
        except FileNotFoundError:
            return
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._covered_seen or self.failure is not None:
            return
        try:
            covered = documents.decode(read_document(path), Covered)
            if covered.inbox != self._description.uid or covered.position > self._description.last:
                raise Corrupt(
                    f"{path} covers position {covered.position} of the inbox {covered.inbox}, and this is "
                    f"{self._description.uid}, at {self._description.last}",
                    code="inbox.swapped",
                    hint="put back the folder that was there; nothing was dropped",
                )
        except SlackwaterError as error:
            logger.warning("nothing was dropped: %s", error)
        else:
            if covered.position > self._description.dropped:
                self._try_to_write([], covered=covered.position)
                reach("inbox.drop.after")
        self._covered_seen = seen

    def _close_rocks(self) -> None:
        rocks, self._rocks = self._rocks, None
        if rocks is not None:
            with suppress(Exception):  # One that has failed may fail here, too.
                rocks.close()
