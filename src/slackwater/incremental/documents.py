"""Small files that are replaced as a whole: a reader sees the old one or the new one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ..errors import NotFound, Unavailable
from ..failpoints import reach
from ..formats.inbox import MAX_DOCUMENT_BYTES


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
            _sync_folder(path.parent)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise _unusable(path, error) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"{path} cannot be read or written: {error.strerror}",
        code="inbox.unavailable",
        hint="see that this user may write there and that the disk has room",
    )
