"""Rooms: folders in which the driver tells the executors which version of a table a micro-batch reads.

A file by the number of the micro-batch, whose content is the folder of the version. The driver's half comes first.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

_POLL_S = 0.005
# The first version may be a whole table.
_PATIENCE_S = 600


def open_room(room: Path, folder: Path) -> None:
    """Let a room, whose path is in the plan, lead to a folder of this run.

    Rooms of runs that were killed lead nowhere once their working directories are removed: then they go, too.
    """
    folder.mkdir(parents=True)
    for other in room.parent.glob("table-*"):
        if other.is_symlink() and not other.exists():
            with suppress(OSError):  # somebody else's, or gone by now
                other.unlink()
    room.symlink_to(folder)


def publish(room: Path, micro_batch: int, version: Path | None) -> None:
    """Say which version a micro-batch reads, for the tasks of it that wait for this; None: there is none."""
    made = room / f".{micro_batch}"
    made.write_text(str(version or ""))
    made.rename(room / str(micro_batch))


def withdraw(room: Path, micro_batch: int) -> None:
    """Take back what was said to a micro-batch: it has ended."""
    (room / str(micro_batch)).unlink(missing_ok=True)


def close_room(room: Path) -> None:
    """Let the room lead nowhere: tasks that wait in it have waited long enough."""
    room.unlink(missing_ok=True)


def await_version(room: Path, micro_batch: str) -> str:
    """Wait for the driver to say which version it is: Spark may begin a moment before that. Empty: there is none."""
    deadline = time.monotonic() + _PATIENCE_S
    while room.is_dir() and time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            return (room / micro_batch).read_text()
        time.sleep(_POLL_S)
    return ""


def newest(room: Path) -> str:
    """Tell which version was published last, if one was."""
    numbers = list(room.glob("[0-9]*"))
    return max(numbers, key=lambda path: int(path.name)).read_text() if numbers else ""
