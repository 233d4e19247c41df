"""What RocksDB, or the disk below it, has to say of a folder, as an error of whoever owns the database."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import SlackwaterError

# RocksDB's binding tells errors by words alone.
_FULL = ("No space left", "Disk quota exceeded")
# Given a message, and details by name.
Error = Callable[..., SlackwaterError]


class Owner(NamedTuple):
    """Whose database it is: the errors that it has for what may happen, each with a code and a hint of its own."""

    taken: Error
    unavailable: Error
    full: Error
    removed: Error
    damaged: Error
    log_damaged: Error
    log_missing: Error
    unreadable: Error
    closed: Error

    def unusable(self, path: Path, why: str, *, full: bool) -> SlackwaterError:
        return (self.full if full else self.unavailable)(f"{path} cannot be read or written: {why}")


@contextmanager
def disk_errors(path: Path, owner: Owner) -> Iterator[None]:
    """Raise errors of ours for those of the disk."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise owner.unusable(path, error.strerror or "unknown", full=full) from error


@contextmanager
def translated(folder: Path, owner: Owner) -> Iterator[None]:
    """Raise errors of ours for those of RocksDB, whose binding knows but one class of them, and of the disk."""
    try:
        with disk_errors(folder, owner):
            yield
    except (SlackwaterError, ImportError):
        raise
    except Exception as error:
        raise _translate(folder, str(error), owner) from error


def _translate(folder: Path, text: str, owner: Owner) -> SlackwaterError:
    first_line = text.splitlines()[0][:300]
    if text.startswith("Corruption"):
        return owner.damaged(f"the database in {folder} is damaged: {first_line}")
    if "lock" in text.lower() and "LOCK" in text:
        return taken(folder, owner)
    if text.startswith("Not implemented") or "No such file or directory" in text:
        return owner.unreadable(f"{folder} cannot be opened as a database: {first_line}")
    return owner.unusable(folder, first_line, full=any(words in text for words in _FULL))


def taken(folder: Path, owner: Owner) -> SlackwaterError:
    return owner.taken(f"the database in {folder} is open in another process, or twice in this one")
