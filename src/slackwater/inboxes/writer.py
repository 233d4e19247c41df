"""The one who writes an inbox's folder: groups of messages, what readers are told, what is dropped."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..clock import Clock
from ..errors import Code, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable
from ..failpoints import reach
from ..rocks.database import Rocks
from . import documents, layout
from .documents import COVERED_FILE, PUBLISHED_FILE, Description, Published
from .errors import OWNER
from .files import Publisher, read_covered, read_file
from .group_commit import Append, GroupCommit, Limits, Work
from .reader import read_description

logger = logging.getLogger("slackwater")

# While messages come without a pause: to look around, and to tell readers, takes as long as to write some.
_LOOK_BUSY_S, _PUBLISH_BUSY_S = 0.05, 0.005
# After a write that failed, the database is opened again not sooner than this.
_AGAIN_S = 0.5
# For so long nothing had to wait before that is said.
_CALM_S = 5.0


class Writer:
    """The folder of an inbox, open for writing. One thread calls its methods; others may read what is public."""

    def __init__(self, folder: Path, limits: Limits, clock: Clock) -> None:
        self._folder, self._limits, self._clock = folder, limits, clock
        # What ended it for good: damage, or another receiver in its place. Nothing is written any more.
        self.failure: SlackwaterError | None = None
        # Whether messages are received now, as far as that is written.
        self.receiving = False
        self._hindrance: Unavailable | None = None
        # Why messages have to wait, and when some last had to, until that was long ago.
        self._full: Unavailable | None = None
        self._full_at: float | None = None
        self._covered_seen: tuple[int, int] | None = None
        _refuse_other_folder(folder)
        self._rocks: Rocks | None
        self._rocks, found = _open_database(folder, clock)
        try:
            # What others had to wait for need not be what they have to wait for now.
            self.description = msgspec.structs.replace(found, full=None)
            # How many messages were refused, ever: garbage, and oversized ones. They go on record with the next write.
            self.refused = found.garbage, found.oversized
            _refuse_other_database(folder, found)
            self._began = self._looked_at = self._written_at = clock.monotonic()
            self._began_uptime_ms = found.uptime_ms
            self.write([])  # its uid, and all that is there, are durable before anybody is told of them
            self._publisher = Publisher(folder, self._durable, clock)
            reach("inbox.open.after")
        except BaseException:
            self.close()
            raise

    @property
    def hindrance(self) -> SlackwaterError | None:
        """What keeps it from taking messages: its end, a disk that is full, or that it has as many as it may have."""
        return self.failure or self._hindrance or self._full

    def now_ms(self) -> int:
        """Tell the time: that of the clock, unless it was set back."""
        return max(self._clock.now_ms(), self.description.now_ms)

    def write(self, group: Sequence[Work], *, covered: int = 0) -> list[Any]:
        """Make a group durable, and drop what is covered; return the result of each, which may be an error.

        What is raised is of all of them, and is to be noted.
        """
        if self.failure is not None:
            raise self.failure
        if self._rocks is None:
            if self._hindrance is not None and self._clock.monotonic() - self._written_at < _AGAIN_S:
                raise self._hindrance
            self._rocks = self._open_again()
        garbage, oversized = self.refused
        known = msgspec.structs.replace(self.description, garbage=garbage, oversized=oversized)
        commit = GroupCommit(self._rocks, known, self._limits, self.now_ms(), self._uptime_ms())
        commit.find([work for work in group if isinstance(work, Append)])
        receiving = self.receiving
        for work in group:
            if isinstance(work, Append):
                commit.append(work)
            else:
                receiving = work.away is None
                commit.set_presence(work.away, work.since_ms)
        commit.drop(covered)
        commit.forget_keys()
        if receiving:
            commit.stay()
        reach("inbox.write.before")
        self._rocks.write(commit.finish(), dropped=commit.dropped)
        reach("inbox.write.after")
        self.description = known = commit.description
        self.receiving = receiving
        self._durable = Published(inbox=known.uid, position=known.last, dropped=known.dropped)
        self._written_at = self._clock.monotonic()
        self._note_room(commit.refusal)
        return commit.results

    def publish(self, *, more: bool) -> None:
        """Tell readers of what was written. If they were told just now, and ``more`` waits, its write tells them."""
        if not more or self._publisher.silent_s >= _PUBLISH_BUSY_S:
            self._publisher.publish(self._durable)
        reach("inbox.publish.after")

    def look_around(self, *, busy: bool) -> None:
        """Do what nobody waits for: drop what is covered, forget old keys, say that the receiver is there."""
        now = self._clock.monotonic()
        if busy and now - self._looked_at < _LOOK_BUSY_S:
            return
        self._looked_at = now
        try:
            if not busy and self._rocks is not None:
                self._rocks.refuse_removed()
            self._drop_covered()
            if not busy and self._clock.monotonic() - self._written_at >= self._limits.heartbeat_s:
                self.write([])
        except BaseException as error:
            self.note(error)
        if self.failure is None:  # else what lies there may be another one's
            if busy:
                self._publisher.publish(self._durable)
            else:
                self._publisher.publish_again(self._durable)
            self._publisher.sync()

    def note(self, error: BaseException) -> SlackwaterError:
        """Tell what may be tried again, once the disk has room, from what ends the inbox."""
        if not isinstance(error, Unavailable):
            return self.fail(error)
        self.close()
        if self._hindrance is None:
            logger.warning("nothing is acknowledged for now: %s", error)
        # The old one, said again, is no new try: else nobody who asks often would ever see one.
        if error is not self._hindrance:
            self._hindrance, self._written_at = error, self._clock.monotonic()
        return error

    def fail(self, error: BaseException) -> SlackwaterError:
        """End the inbox."""
        self.close()
        if not isinstance(error, SlackwaterError):
            error = SlackwaterError(f"the inbox has failed: {error!r:.200}", code="inbox.failed")
        self.failure = error
        return error

    def close(self) -> None:
        """Let the database go."""
        rocks, self._rocks = self._rocks, None
        if rocks is not None:
            with suppress(Exception):  # One that has failed may fail here, too.
                rocks.close()

    def _open_again(self) -> Rocks:
        """Open again after a write that failed: RocksDB itself takes no more, and what it has of that write counts."""
        rocks, found = _open_database(self._folder, self._clock)
        if found.uid != self.description.uid or found.last < self.description.last:
            rocks.close()
            raise Corrupt(
                f"the inbox in {self._folder} was exchanged while it was open",
                code=Code.INBOX_SWAPPED,
                hint="put back the folder that was there; what was acknowledged is in that one",
            )
        self.description, self._hindrance = found, None
        logger.info("the inbox in %s takes messages again", self._folder)
        return rocks

    def _note_room(self, refusal: Unavailable | None) -> None:
        """Say once that messages have to wait, and once that they have not: small ones may fit where others do not."""
        if refusal is not None:
            if self._full_at is None:
                logger.warning("messages have to wait: %s", refusal)
            self._full, self._full_at = refusal, self._written_at
        elif self.description.full is None:
            self._full = None
            if self._full_at is not None and self._written_at - self._full_at >= _CALM_S:
                self._full_at = None
                logger.info("the inbox in %s has room again", self._folder)

    def _uptime_ms(self) -> int:
        return self._began_uptime_ms + round(1000 * (self._clock.monotonic() - self._began))

    def _drop_covered(self) -> None:
        """Drop what the pipeline says that it has, if it says something new."""
        path = self._folder / COVERED_FILE
        try:
            status = path.stat()
        except FileNotFoundError:
            return
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._covered_seen or self.failure is not None:
            return
        known = self.description
        try:
            covered = read_covered(self._folder)
            if covered is not None and (covered.inbox != known.uid or covered.position > known.last):
                raise Corrupt(
                    f"{path} covers position {covered.position} of the inbox {covered.inbox}, and this is "
                    f"{known.uid}, at {known.last}",
                    code=Code.INBOX_SWAPPED,
                    hint="put back the folder that was there; nothing was dropped",
                )
        except SlackwaterError as error:
            logger.warning("nothing was dropped: %s", error)
        else:
            if covered is not None and covered.position > known.dropped:
                self.write([], covered=covered.position)
                reach("inbox.drop.after")
        self._covered_seen = seen


def _open_database(folder: Path, clock: Clock) -> tuple[Rocks, Description]:
    """Open the database of an inbox, and read what is known of it; in an empty folder, make a new one."""
    rocks = Rocks(folder / layout.DATABASE, OWNER)
    try:
        empty = not any(rocks.scan(b"", b"\xff"))
        return rocks, Description(uid=clock.random_id()) if empty else read_description(rocks)
    except BaseException:
        rocks.close()
        raise


def _refuse_other_folder(folder: Path) -> None:
    """Refuse to make an inbox among other things: nobody would find it there, nor dare to remove it."""
    if (folder / layout.DATABASE).exists() or not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder", code="inbox.invalid", hint="name one, or a new name")
    if any(path.name not in (PUBLISHED_FILE, COVERED_FILE) for path in folder.iterdir()):
        raise InvalidInput(
            f"{folder} is not an inbox, and not empty",
            code="inbox.invalid",
            hint="name a folder that does not exist yet, or that a receiver has written to before",
        )


def _refuse_other_database(folder: Path, found: Description) -> None:
    """Refuse a database that is not, or no longer, the one of which readers were told."""
    try:
        data = read_file(folder / PUBLISHED_FILE)
    except NotFound:
        return
    if not data.strip(b"\0"):
        return  # it is not synced with every message, and a power loss may leave a name without content
    try:
        published = documents.decode(data, Published)
    except Corrupt as error:
        raise Corrupt(
            f"{error.message}, in {folder / PUBLISHED_FILE}",
            code=error.code,
            hint="after a power loss, delete that file and start again: the messages are in the database beside it; "
            "otherwise restore the folder from a copy",
        ) from None
    if published.inbox != found.uid or published.position > found.last:
        raise Corrupt(
            f"the inbox in {folder} has acknowledged all up to message {published.position}, and its database "
            f"{'ends at ' + str(found.last) if published.inbox == found.uid else 'is another one'}",
            code="inbox.damaged" if published.inbox == found.uid else Code.INBOX_SWAPPED,
            hint=f"put back {folder / layout.DATABASE} from a copy; or, to begin anew without what was received, name "
            "another folder",
        )
