"""What tests of an inbox do with it: read all of it, let it drop something, set its clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from slackwater.clock import SystemClock
from slackwater.inboxes import documents
from slackwater.inboxes.documents import COVERED_FILE, Covered
from slackwater.inboxes.files import read_published
from slackwater.inboxes.inbox import Inbox
from slackwater.inboxes.reader import Message, read_messages


class SetClock(SystemClock):
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at_ms, self.running_s = 1_000_000, 0.0

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic(self) -> float:
        return self.running_s


def read_all(folder: Path, begin: int = 0) -> list[Message]:
    published = read_published(folder)
    chunks = read_messages(folder, published.inbox, begin, published.position, patience_s=0.2)
    return [message for chunk in chunks for message in chunk]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def cover(folder: Path, position: int, inbox: str) -> None:
    document = documents.encode(Covered(inbox=inbox, position=position, pipeline=32 * "a"))
    (folder / "new").write_bytes(document)
    (folder / "new").rename(folder / COVERED_FILE)


def drop(inbox: Inbox, position: int) -> None:
    """Let it drop all up to a position, as a pipeline does."""
    cover(inbox.folder, position, inbox.description.uid)
    wait_until(lambda: inbox.description.dropped >= position)
