"""An inbox in a folder, closed when its test has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slackwater.inboxes.group_commit import Limits
from slackwater.inboxes.inbox import Inbox


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "inbox"


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[..., Inbox]]:
    made: list[Inbox] = []

    def open_inbox(**limits: float) -> Inbox:
        made.append(Inbox(folder, Limits(**limits)))  # type: ignore[arg-type]
        return made[-1]

    yield open_inbox
    for inbox in made:
        inbox.close()
