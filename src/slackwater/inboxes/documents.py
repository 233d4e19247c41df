"""The documents of an inbox on disk: its two files, and the description in its database."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ..errors import NotFound, Unavailable
from ..failpoints import reach
from ..rocks.database import Rocks
from ..rocks.errors import is_full
from ..store.files import sync_folder
from . import format as documents
from . import layout
from .format import MAX_DOCUMENT_BYTES, Description


def read_document(path: Path) -> bytes:
    try:
        with open(path, "rb") as opened:
            return opened.read(MAX_DOCUMENT_BYTES)
    except FileNotFoundError:
        raise NotFound(
            f"there is no {path}",
            code="inbox.not_there",
            hint="name the folder that a receiver writes to"
            if path.parent.is_dir() and any(path.parent.iterdir())
            else f"start its receiver once: slackwater receive http {path.parent}",
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


def write_document(path: Path, data: bytes) -> None:
    """Write over a file where the new content is as long as the old, which is many times as fast; else replace it.

    A reader may then see a part of each. A power loss leaves one of the two, for it is shorter than a disk's sector.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        replace_document(path, data, durably=True)
        return
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        in_place = os.fstat(descriptor).st_size == len(data)
        if in_place:
            os.pwrite(descriptor, data, 0)
    except OSError as error:
        raise _unusable(path, error) from error
    finally:
        os.close(descriptor)
    if not in_place:
        replace_document(path, data, durably=True)  # it is seldom, and some file systems would leave an empty one


def sync_document(path: Path) -> None:
    """Make what was written over durable."""
    try:
        with open(path, "rb") as opened:
            os.fdatasync(opened.fileno())
    except OSError as error:
        raise _unusable(path, error) from error


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
