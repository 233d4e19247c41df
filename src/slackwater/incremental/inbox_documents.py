"""The documents of an inbox on disk: files that are replaced as a whole, and the description in its database."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import BinaryIO

from ..errors import NotFound, Unavailable
from ..failpoints import reach
from ..formats import inbox as documents
from ..formats.inbox import MAX_DOCUMENT_BYTES, Description
from . import inbox_layout as layout
from .folders import is_full, sync_folder
from .rocks import Rocks


def read_document(path: Path) -> bytes:
    try:
        with open(path, "rb") as opened:
            return opened.read(MAX_DOCUMENT_BYTES)
    except FileNotFoundError:
        raise NotFound(
            f"there is no {path}",
            code="inbox.not_there",
            hint=f"start its receiver once: slackwater receive http {path.parent}",
        ) from None
    except OSError as error:
        raise _unusable(path, error) from error


def replace_document(path: Path, data: bytes, *, durably: bool) -> None:
    """Replace a file in one step; with ``durably``, no power loss takes it back."""
    # A name of its own, so that two programs do not write into one file.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(unfinished, "wb") as opened:
            opened.write(data)
            if durably:
                opened.flush()
                os.fsync(opened.fileno())
        if durably:
            reach("document.write.after")
        os.replace(unfinished, path)
        if durably:
            sync_folder(path.parent)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise _unusable(path, error) from error


def remove_unfinished(path: Path) -> None:
    """Remove what writers of a file that were killed have left; only for one that nobody else writes now."""
    try:
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            left.unlink()
    except OSError as error:
        raise _unusable(path, error) from error


class RewrittenDocument:
    """A file that one program writes again and again: in place, where the new content is as long as the old.

    A reader may then see half of each. To replace it takes a file system many times as long, and some room.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: BinaryIO | None = None
        self._size_bytes = 0

    def replace(self, data: bytes, *, durably: bool = False) -> None:
        self.close()
        replace_document(self._path, data, durably=durably)
        try:
            self._opened = open(self._path, "r+b", buffering=0)  # noqa: SIM115 - it stays open
        except OSError as error:
            raise _unusable(self._path, error) from error
        self._size_bytes = len(data)

    def write(self, data: bytes) -> None:
        try:
            if self._opened is not None and len(data) == self._size_bytes and self._is_there(self._opened):
                os.pwrite(self._opened.fileno(), data, 0)
                return
        except OSError as error:
            raise _unusable(self._path, error) from error
        self.replace(data)

    def _is_there(self, opened: BinaryIO) -> bool:
        """Tell whether the name still leads to this file: else readers would not see what is written to it."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(opened.fileno()))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def read_description(rocks: Rocks) -> Description:
    """Read what is known of an inbox as a whole."""
    (stored,) = rocks.get([layout.DESCRIPTION])
    if stored is None:
        raise layout.not_an_inbox(rocks.folder)
    return documents.decode(stored, Description)


def _unusable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"{path} cannot be read or written: {error.strerror}",
        code="keyed.full" if is_full(error) else "inbox.unavailable",
        hint="see that this user may write there and that the disk has room",
    )
