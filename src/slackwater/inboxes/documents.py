"""The documents of an inbox on disk: its two files, and the description in its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import NotFound, Unavailable
from ..rocks.database import Rocks
from ..rocks.errors import is_full
from ..store import files
from . import format as documents
from . import layout
from .format import MAX_DOCUMENT_BYTES, Description


def read_document(path: Path) -> bytes:
    with _disk_errors(path):
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


def replace_document(path: Path, data: bytes) -> None:
    """Replace a file in one step that no power loss takes back."""
    with _disk_errors(path):
        files.replace_file(path, data)


def remove_unfinished(path: Path) -> None:
    """Remove what writers of a file that were killed have left; only for one that nobody else writes now."""
    with _disk_errors(path):
        files.remove_unfinished(path)


def write_document(path: Path, data: bytes) -> None:
    """Write over a file, or replace it. A reader may see a part of each; a power loss leaves one of the two."""
    with _disk_errors(path):
        files.overwrite_file(path, data)


def sync_document(path: Path) -> None:
    """Make what was written over durable."""
    with _disk_errors(path):
        files.sync_overwritten(path)


def read_description(rocks: Rocks) -> Description:
    """Read what is known of an inbox as a whole."""
    (stored,) = rocks.get([layout.DESCRIPTION])
    if stored is None:
        raise layout.not_an_inbox(rocks.folder)
    return documents.decode(stored, Description)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be read or written: {error.strerror}",
            code="keyed.full" if is_full(error) else "inbox.unavailable",
            hint="see that this user may write there and that the disk has room",
        ) from error
