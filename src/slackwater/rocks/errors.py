"""What RocksDB, or the disk below it, has to say of a folder, in our own words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import Conflict, Corrupt, SlackwaterError, Unavailable, Unsupported

# RocksDB's binding tells errors by words alone.
_FULL = ("No space left", "Disk quota exceeded")


def is_full(error: OSError) -> bool:
    """Tell whether the disk, or what this user may take of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise errors of ours for those of the disk."""
    try:
        yield
    except OSError as error:
        raise unusable(folder, error.strerror or "unknown", full=is_full(error)) from error


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Raise errors of ours for those of RocksDB, whose binding knows but one class of them, and of the disk."""
    try:
        with disk_errors(folder):
            yield
    except (SlackwaterError, ImportError):
        raise
    except Exception as error:
        raise _translate(folder, error) from error


def _translate(folder: Path, error: Exception) -> SlackwaterError:
    text = str(error)
    if text.startswith("Corruption"):
        return Corrupt(
            f"the database in {folder} is damaged: {_first_line(text)}",
            code="keyed.damaged",
            hint="restore a checkpoint of it, or the folder from a copy",
        )
    if "lock" in text.lower() and "LOCK" in text:
        return taken(folder)
    if text.startswith("Not implemented") or "No such file or directory" in text:
        return Unsupported(
            f"{folder} cannot be opened as a database: {_first_line(text)}",
            code="keyed.unreadable",
            hint="see that the folder is the one that a keyed state was in",
        )
    return unusable(folder, _first_line(text), full=any(words in text for words in _FULL))


def _first_line(text: str) -> str:
    return text.splitlines()[0][:300]


def taken(folder: Path) -> Conflict:
    return Conflict(
        f"the database in {folder} is open in another process, or twice in this one",
        code="keyed.taken",
        hint="stop the other one; two writers would spoil each other's work",
    )


def unusable(folder: Path, why: str, *, full: bool = False) -> Unavailable:
    return Unavailable(
        f"the database in {folder} cannot be read or written: {why}",
        code="keyed.full" if full else "keyed.unavailable",
        hint="see that this user may write there and that the disk has room, then open it again",
    )
