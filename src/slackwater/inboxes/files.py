"""The two files of an inbox: how far readers may read, by its receiver; how far it may drop, by its pipeline."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

from ..clock import Clock
from ..errors import Corrupt, NotFound, SlackwaterError, Unavailable
from ..store.files import overwrite_file, remove_unfinished, replace_file, sync_overwritten
from .documents import COVERED_FILE, MAX_DOCUMENT_BYTES, PUBLISHED_FILE, Covered, Published, decode, encode
from .errors import disk_errors

logger = logging.getLogger("slackwater")

# What readers are told is written over in place: who sees a part of it looks again for so long.
_PATIENCE_S = 0.5
# It is synced not more often than this.
_SYNC_S = 1.0

FIRST_ITS_RECEIVER = "if the machine went down, start the inbox's receiver first"


def read_file(path: Path) -> bytes:
    with disk_errors(path):
        try:
            with open(path, "rb") as opened:
                return opened.read(MAX_DOCUMENT_BYTES)
        except FileNotFoundError:
            raise NotFound(
                f"there is no {path}",
                code="inbox.not_found",
                hint="name the folder that a receiver writes to"
                if path.parent.is_dir() and any(path.parent.iterdir())
                else f"start its receiver once: slackwater receive http {path.parent}",
            ) from None


def read_published(folder: Path) -> Published:
    """Read how far the receiver lets readers read."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return decode(read_file(folder / PUBLISHED_FILE), Published)
        except Corrupt as error:
            if time.monotonic() > deadline:
                raise Corrupt(error.message, code=error.code, hint=f"{FIRST_ITS_RECEIVER}; {error.hint}") from None
            time.sleep(0.001)


def read_covered(folder: Path) -> Covered | None:
    """Read how far a pipeline lets the receiver drop."""
    try:
        return decode(read_file(folder / COVERED_FILE), Covered)
    except NotFound:
        return None


def write_covered(folder: Path, covered: Covered) -> None:
    """Let the receiver drop."""
    with disk_errors(folder / COVERED_FILE):
        replace_file(folder / COVERED_FILE, encode(covered))


class Publisher:
    """Tells readers how far they may read: never beyond what is durable, so that no power loss takes it back.

    What is durable is acknowledged, even if readers cannot be told of it yet: that is tried again.
    """

    def __init__(self, folder: Path, published: Published, clock: Clock) -> None:
        self._path, self._clock = folder / PUBLISHED_FILE, clock
        with disk_errors(self._path):
            remove_unfinished(self._path)
            replace_file(self._path, encode(published))
        self._told = self._synced = published
        self._told_at = self._synced_at = clock.monotonic()
        self._hindered = False

    @property
    def silent_s(self) -> float:
        """For how long readers were not told anything."""
        return self._clock.monotonic() - self._told_at

    def publish(self, published: Published) -> None:
        if published != self._told:
            self._write(published)

    def publish_again(self, published: Published) -> None:
        """Tell readers, unless they find it: somebody may have put back an older file, or none."""
        with suppress(SlackwaterError):
            if published == self._told and read_file(self._path) == encode(published):
                return
        self._write(published)

    def sync(self) -> None:
        """Bring to the disk what readers are told, now and then: a power loss should not take them back by much.

        Who had read further would take this inbox for an older copy, until its receiver runs.
        """
        now = self._clock.monotonic()
        if self._told == self._synced or now - self._synced_at < _SYNC_S:
            return
        with suppress(SlackwaterError), disk_errors(self._path):
            sync_overwritten(self._path)
            self._synced, self._synced_at = self._told, now

    def _write(self, published: Published) -> None:
        try:
            with disk_errors(self._path):
                overwrite_file(self._path, encode(published))
        except Unavailable as error:
            if not self._hindered:
                logger.warning("readers are not told of new messages for now: %s", error)
            self._hindered = True
        else:
            self._told, self._told_at, self._hindered = published, self._clock.monotonic(), False
