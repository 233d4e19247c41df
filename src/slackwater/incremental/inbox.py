"""An inbox: a durable, ordered queue of messages that a receiver was pushed, until a pipeline has covered them.

append ─ group ─ WRITE (synced) ─ publish how far readers may read ─ acknowledge;  covered ─ drop
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import Conflict, Corrupt, SlackwaterError, Unavailable
from ..failpoints import reach
from ..formats import inbox as documents
from ..formats.inbox import COVERED_FILE, PUBLISHED_FILE, Covered, Description, Gap, Published
from ..settings import MIB
from ..world import RealWorld, World
from . import inbox_layout as layout
from .documents import read_document, replace_document
from .rocks import Change, Rocks

logger = logging.getLogger("slackwater")

KILLED = "the receiver ended without a word: it was killed, or its machine went down"
STOPPED = "the receiver was stopped"
_LOOK_S = 0.25
# After a write that failed, the database is opened again not sooner than this.
_AGAIN_S = 0.5
_GROUP_BYTES = 8 * MIB
_GROUP_MESSAGES = 20_000
_KEYS_AT_ONCE = 10_000
_MAX_GAPS = 1_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much an inbox takes before it asks senders to wait."""

    max_messages: int = 100_000_000
    max_bytes: int = 16 * 1024 * MIB
    # Of what waits to become durable.
    max_waiting_bytes: int = 64 * MIB
    max_keys: int = 10_000_000
    # A key is known for at least so long, in the time that receivers ran, and until what it names is covered.
    keep_keys_s: float = 3600.0
    # When nothing comes, that the receiver is there is written down so often.
    heartbeat_s: float = 5.0


class Appended(msgspec.Struct, frozen=True):
    """Where messages are. ``repeated``: they had been there before."""

    first: int
    last: int
    repeated: bool = False


class Session:
    """Appends that must not overtake each other: after one that has failed, those behind it fail, too."""

    def __init__(self) -> None:
        self.broken = False


class _Append(msgspec.Struct, kw_only=True):
    messages: Sequence[bytes]
    size_bytes: int
    key: bytes | None
    token: str | None
    # What to do with other messages under a known key.
    other: Literal["refuse", "take"]
    session: Session | None
    done: Future[Appended]


class _Drop(msgspec.Struct):
    position: int
    done: Future[None]


class _Presence(msgspec.Struct):
    """The receiver receives from now on (None), or does not, for a reason."""

    away: str | None
    done: Future[None]
    since_ms: int | None = None


_Work = _Append | _Drop | _Presence


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

    def __init__(self, folder: Path, limits: Limits | None = None, *, world: World | None = None) -> None:
        self.folder = folder
        self.limits = limits or Limits()
        # What ended it for good: damage, or another receiver in its place. Nothing is taken any more.
        self.failure: SlackwaterError | None = None
        self._world = world or RealWorld()
        self._changed = threading.Condition()
        self._hindrance: Unavailable | None = None
        self._waiting: deque[_Work] = deque()
        self._waiting_bytes = self._waiting_messages = 0
        self._garbage = self._oversized = 0
        self._closing = False
        self._live = False
        self._covered_seen: tuple[int, int] | None = None
        self._published: Published | None = None
        self._rocks: Rocks | None = Rocks(folder / layout.DATABASE)
        try:
            self._description = _describe(self._rocks, self._world)
            self._began, self._began_uptime_ms = self._world.monotonic(), self._description.uptime_ms
            self._written_at = self._world.monotonic()
            self._write([])  # its uid, and all that is there, are durable before anybody is told of them
            self._publish(durably=True)
            reach("inbox.open.after")
        except BaseException:
            self._close_rocks()
            raise
        self._thread = threading.Thread(target=self._run, name="slackwater-inbox", daemon=True)
        self._thread.start()

    # --- from any thread

    @property
    def hindrance(self) -> SlackwaterError | None:
        """What keeps it from taking messages: its end, or a disk that is full."""
        return self.failure or self._hindrance

    @property
    def description(self) -> Description:
        return self._description

    def append(
        self,
        messages: Sequence[bytes],
        *,
        key: bytes | None = None,
        token: str | None = None,
        other: Literal["refuse", "take"] = "refuse",
        session: Session | None = None,
    ) -> Future[Appended]:
        """Append messages, all or none; they are durable when the future has its result.

        Under a ``key`` that is known they are not appended again: the answer is the first one. Other messages under a
        known key are refused, or taken. ``token`` is where the upstream stands with these.
        """
        size_bytes = sum(map(len, messages))
        work = _Append(
            messages=messages,
            size_bytes=size_bytes,
            key=key,
            token=token,
            other=other,
            session=session,
            done=Future(),
        )
        with self._changed:
            self._check_open()
            self._check_room(len(messages), size_bytes, key)
            self._waiting.append(work)
            self._waiting_bytes += size_bytes
            self._waiting_messages += len(messages)
            self._changed.notify_all()
        return work.done

    def refuse(self, *, garbage: int = 0, oversized: int = 0) -> None:
        """Count what was not taken. It goes on record with the next write."""
        with self._changed:
            self._garbage += garbage
            self._oversized += oversized

    @property
    def refused(self) -> tuple[int, int]:
        """Tell how many were garbage and how many oversized, by now."""
        with self._changed:
            return self._description.garbage + self._garbage, self._description.oversized + self._oversized

    def drop_through(self, position: int) -> Future[None]:
        """Drop all up to a position: what a durable checkpoint covers."""
        return self._do(_Drop(position, Future()))

    def begin_receiving(self) -> Future[None]:
        """Say that from now on messages are received; the time since they last were is a gap."""
        return self._do(_Presence(None, Future()))

    def end_receiving(self, why: str, since_ms: int | None = None) -> Future[None]:
        """Say that none are received any more, perhaps since before now."""
        return self._do(_Presence(why[:300], Future(), since_ms))

    def now_ms(self) -> int:
        """Tell the time: that of the clock, unless it was set back."""
        return max(self._world.now_ms(), self._description.now_ms)

    def close(self) -> None:
        """Write what waits, and let the folder go."""
        with self._changed:
            if self._closing:
                return
            if self._live and self.failure is None:
                self._waiting.append(_Presence(STOPPED, Future()))
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._close_rocks()

    def _do(self, work: Any) -> Future[None]:
        with self._changed:
            self._check_open()
            self._waiting.append(work)
            self._changed.notify_all()
        done: Future[None] = work.done
        return done

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closing:
            raise Unavailable("the inbox is closed", code="inbox.closed", hint="send it again once a receiver runs")

    def _check_room(self, messages: int, size_bytes: int, key: bytes | None) -> None:
        known, limits = self._description, self.limits
        held = known.last - known.dropped + self._waiting_messages
        held_bytes = known.total_bytes - known.dropped_bytes + self._waiting_bytes
        if self._waiting_bytes and self._waiting_bytes + size_bytes > limits.max_waiting_bytes:
            raise _full("more is on its way to the disk than it can take at once")
        if held + messages > limits.max_messages or held_bytes + size_bytes > limits.max_bytes:
            raise _full(f"{held} messages of {held_bytes} bytes wait for a pipeline to cover them")
        if key is not None and known.keys - known.keys_dropped >= limits.max_keys:
            raise _full(f"{limits.max_keys} keys are remembered")

    # --- in the inbox's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing, _LOOK_S)
                group = self._take_group()
                if not group and self._closing:
                    return
            self._act(group)
            self._look_around(bool(group))

    def _take_group(self) -> list[_Work]:
        """Take what waits, in its order: one synced write makes all of it durable."""
        group: list[_Work] = []
        size_bytes = messages = 0
        while self._waiting and size_bytes < _GROUP_BYTES and messages < _GROUP_MESSAGES:
            work = self._waiting.popleft()
            group.append(work)
            if isinstance(work, _Append):
                size_bytes += work.size_bytes
                messages += len(work.messages)
        return group

    def _act(self, group: list[_Work]) -> None:
        if not group:
            return
        size_bytes = sum(work.size_bytes for work in group if isinstance(work, _Append))
        messages = sum(len(work.messages) for work in group if isinstance(work, _Append))
        results: list[Any] = []
        try:
            results = self._try_to_write(group)
        except BaseException as error:
            results = [self._note_failure(error)] * len(group)
            for work in group:
                if isinstance(work, _Append) and work.session is not None:
                    work.session.broken = True
        finally:
            with self._changed:
                self._waiting_bytes -= size_bytes
                self._waiting_messages -= messages
        for work, result in zip(group, results, strict=True):
            if isinstance(result, BaseException):
                work.done.set_exception(result)
            else:
                work.done.set_result(result)

    def _note_failure(self, error: BaseException) -> BaseException:
        """Tell what may be tried again, once the disk has room, from what ends the inbox."""
        self._close_rocks()
        if isinstance(error, Unavailable):
            if self._hindrance is None:
                logger.warning("nothing is acknowledged for now: %s", error)
            self._hindrance, self._written_at = error, self._world.monotonic()
            return error
        if not isinstance(error, SlackwaterError):
            error = SlackwaterError(f"the inbox has failed: {error!r:.200}", code="inbox.failed")
        self.failure = error
        return error

    def _look_around(self, busy: bool) -> None:
        """Do what nobody waits for: drop what is covered, forget old keys, say that the receiver is there."""
        try:
            self._drop_covered()
            due = self._world.monotonic() - self._written_at >= self.limits.heartbeat_s
            if due and not busy and self.failure is None:
                self._try_to_write([])
            if self._rocks is not None and self._published != self._publishable():
                self._publish()
        except BaseException as error:
            self._note_failure(error)

    def _try_to_write(self, group: list[_Work]) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        if self._rocks is None:
            if self._hindrance is not None and self._world.monotonic() - self._written_at < _AGAIN_S:
                raise self._hindrance
            self._reopen()
        return self._write(group)

    def _reopen(self) -> None:
        """Open again after a write that failed: RocksDB itself takes no more, and what it has of that write counts."""
        rocks = Rocks(self.folder / layout.DATABASE)
        try:
            found = _describe(rocks, self._world)
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

    def _write(self, group: list[_Work]) -> list[Any]:
        assert self._rocks is not None
        with self._changed:
            garbage, oversized = self._garbage, self._oversized
        batch = _Batch(self._rocks, self._description, self.now_ms(), self._uptime_ms())
        batch.count(garbage=garbage, oversized=oversized)
        live = self._live
        batch.find([work for work in group if isinstance(work, _Append)])
        for work in group:
            if isinstance(work, _Append):
                batch.append(work)
            elif isinstance(work, _Drop):
                batch.drop(work.position)
            else:
                live = work.away is None
                batch.set_presence(work.away, work.since_ms)
        batch.forget_keys(round(1000 * self.limits.keep_keys_s))
        if live:
            batch.stay()
        reach("inbox.write.before")
        self._rocks.write(batch.finish(), dropped=batch.dropped)
        reach("inbox.write.after")
        with self._changed:
            self._description, self._live = batch.description, live
            self._garbage -= garbage
            self._oversized -= oversized
        self._written_at = self._world.monotonic()
        if group:
            # What is durable is acknowledged, even if readers cannot be told of it yet.
            with suppress(OSError, SlackwaterError):
                self._publish()
            reach("inbox.publish.after")
        return batch.results

    def _uptime_ms(self) -> int:
        return self._began_uptime_ms + round(1000 * (self._world.monotonic() - self._began))

    def _publishable(self) -> Published:
        known = self._description
        return Published(inbox=known.uid, position=known.last, dropped=known.dropped)

    def _publish(self, durably: bool = False) -> None:
        """Tell readers how far they may read: never beyond what is durable, so that no power loss takes it back."""
        published = self._publishable()
        if published != self._published:
            replace_document(self.folder / PUBLISHED_FILE, documents.encode(published), durably=durably)
            self._published = published

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
                self._try_to_write([_Drop(covered.position, Future())])
                reach("inbox.drop.after")
        self._covered_seen = seen

    def _close_rocks(self) -> None:
        rocks, self._rocks = self._rocks, None
        if rocks is not None:
            with suppress(Exception):  # One that has failed may fail here, too.
                rocks.close()


class _Batch:
    """The changes of one group, made up before any of them is written."""

    def __init__(self, rocks: Rocks, description: Description, now_ms: int, uptime_ms: int) -> None:
        self._rocks, self._now_ms, self._stored = rocks, now_ms, description.last
        self.description = msgspec.structs.replace(description, now_ms=now_ms, uptime_ms=uptime_ms)
        self.dropped: tuple[bytes, bytes] | None = None
        self.results: list[Any] = []
        self._changes: list[Change] = []
        self._keys: dict[bytes, layout.KeyEntry | None] = {}

    def _set(self, **changes: Any) -> None:
        self.description = msgspec.structs.replace(self.description, **changes)

    def count(self, *, garbage: int, oversized: int) -> None:
        known = self.description
        self._set(garbage=known.garbage + garbage, oversized=known.oversized + oversized)

    def find(self, appends: Sequence[_Append]) -> None:
        """Look up all keys of the group at once."""
        keys = [work.key for work in appends if work.key is not None]
        found = self._rocks.get([layout.key_key(key) for key in keys])
        self._keys = {key: layout.decode_key(data) if data else None for key, data in zip(keys, found, strict=True)}

    def append(self, work: _Append) -> None:
        known = self.description
        digest = _digest(work.messages) if work.key is not None else b""
        entry = self._keys.get(work.key) if work.key is not None else None
        if work.session is not None and work.session.broken:
            self.results.append(
                Unavailable("a message before this one was not taken", code="inbox.overtaken", hint="send both again")
            )
            return
        if entry is not None and entry.digest == digest:
            self._set(repeated=known.repeated + len(work.messages))
            self.results.append(Appended(entry.first, entry.last, True))
            return
        if entry is not None and work.other == "refuse":
            self.results.append(_reused())
            return
        first, total_bytes = known.last + 1, known.total_bytes
        for position, message in enumerate(work.messages, first):
            total_bytes += len(message)
            self._changes.append(
                (layout.message_key(position), layout.encode_message(self._now_ms, total_bytes, message))
            )
        last = known.last + len(work.messages)
        self._set(last=last, total_bytes=total_bytes)
        if work.token is not None:
            self._set(token=work.token)
        if work.key is not None:
            entry = layout.KeyEntry(first, last, known.keys, self.description.uptime_ms, digest)
            self._keys[work.key] = entry
            self._changes.append((layout.key_key(work.key), layout.encode_key(entry)))
            self._changes.append((layout.index_key(known.keys), work.key))
            self._set(keys=known.keys + 1)
        self.results.append(Appended(first, last))

    def drop(self, position: int) -> None:
        known = self.description
        position = min(position, self._stored)
        if position > known.dropped:
            begin = layout.message_key(known.dropped + 1) if self.dropped is None else self.dropped[0]
            (data,) = self._rocks.get([layout.message_key(position)])
            if data is None:
                raise Corrupt(
                    f"message {position} of the inbox in {self._rocks.folder} is missing",
                    code="inbox.incomplete",
                    hint="restore the folder from a copy; what was received since then is lost",
                )
            self.dropped = (begin, layout.message_key(position + 1))
            self._set(dropped=position, dropped_bytes=layout.decode_message(data)[1])
        self.results.append(None)

    def set_presence(self, away: str | None, since_ms: int | None) -> None:
        known = self.description
        if away is not None:
            at = self._now_ms if since_ms is None else min(since_ms, self._now_ms)
            # Already away: since when, and why, stays.
            if known.away is None:
                self._set(away=away, alive_at_ms=max(at, known.alive_at_ms or 0))
        else:
            if known.alive_at_ms is not None:
                gap = Gap(from_ms=known.alive_at_ms, to_ms=self._now_ms, after=known.last, why=known.away or KILLED)
                self._changes.append((layout.gap_key(known.gaps), documents.encode(gap)))
                if known.gaps >= _MAX_GAPS:
                    self._changes.append((layout.gap_key(known.gaps - _MAX_GAPS), None))
                self._set(gaps=known.gaps + 1)
            self._set(away=None, alive_at_ms=self._now_ms)
        self.results.append(None)

    def stay(self) -> None:
        """Say that the receiver is there now."""
        self._set(alive_at_ms=self._now_ms)

    def forget_keys(self, keep_ms: int) -> None:
        """Forget keys that are old enough, oldest first, as far as what they name is dropped."""
        known = self.description
        if known.keys == known.keys_dropped or known.dropped == 0:
            return
        most = min(known.keys, known.keys_dropped + _KEYS_AT_ONCE)
        count = 0
        for place, key in self._rocks.scan(layout.index_key(known.keys_dropped), layout.index_key(most)):
            number = known.keys_dropped + count
            entry = self._entry(key)
            # A key that was taken again belongs to a newer number, and goes with that one.
            if entry is not None and entry.number == number:
                young = known.uptime_ms - entry.uptime_ms < keep_ms
                if young or entry.last > known.dropped:
                    break
                self._changes.append((layout.key_key(key), None))
            self._changes.append((place, None))
            count += 1
        self._set(keys_dropped=known.keys_dropped + count)

    def _entry(self, key: bytes) -> layout.KeyEntry | None:
        if key not in self._keys:
            (data,) = self._rocks.get([layout.key_key(key)])
            self._keys[key] = layout.decode_key(data) if data is not None else None
        return self._keys[key]

    def finish(self) -> list[Change]:
        return [*self._changes, (layout.DESCRIPTION, documents.encode(self.description))]


def _describe(rocks: Rocks, world: World) -> Description:
    """Read what is known of an inbox; make a new one in an empty folder."""
    (stored,) = rocks.get([layout.DESCRIPTION])
    if stored is not None:
        return documents.decode(stored, Description)
    if any(rocks.scan(b"", b"\xff")):
        raise layout.not_an_inbox(rocks.folder)
    return Description(uid=world.random_id())


def _digest(messages: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256()
    for message in messages:
        digest.update(len(message).to_bytes(8, "big"))
        digest.update(message)
    return digest.digest()


def _full(why: str) -> Unavailable:
    return Unavailable(
        f"the inbox takes no more at the moment: {why}",
        code="inbox.full",
        hint="send it again later; see that the pipeline runs and makes checkpoints",
    )


def _reused() -> Conflict:
    return Conflict(
        "this idempotency key was given to other messages before",
        code="inbox.key_reused",
        hint="give each request a key of its own, and a repeated one the same key and content",
    )
