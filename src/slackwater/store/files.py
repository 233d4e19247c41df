"""Durable local files: the one module that syncs to disk.

A name that leads to something outlasts a power loss only when its folder was synced, and bytes when their file was.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..failpoints import reach


def sync(descriptor: int) -> None:
    """Make the bytes of an open file durable, or the names in an open folder."""
    os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable, whoever wrote them."""
    with open(path, "rb", buffering=0) as file:
        sync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder that is there after a power loss, too: what is in it may be synced, and nothing lead to it."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if folder.exists():
        shutil.rmtree(folder)


def write_file(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file and sync its bytes; whoever makes several syncs their folder once, at the end."""
    with open(path, "wb") as file:
        file.writelines(parts)
        file.flush()
        sync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file in one step that no power loss takes back."""
    # A name of its own, so that two programs do not write into one file.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        write_file(unfinished, [data])
        reach("document.write.after")
        os.replace(unfinished, path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise


def remove_unfinished(path: Path) -> None:
    """Remove what writers of a file that were killed have left; only for one that nobody else replaces now."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink()


def overwrite_file(path: Path, data: bytes) -> None:
    """Write over a file where the new content is as long as the old, which is many times as fast; else replace it.

    A reader may then see a part of each. A power loss before ``sync_overwritten`` leaves one of the two, if they are
    shorter than a disk's sector.
    """
    with suppress(FileNotFoundError), open(path, "r+b", buffering=0) as file:
        if os.fstat(file.fileno()).st_size == len(data):
            os.pwrite(file.fileno(), data, 0)
            return
    replace_file(path, data)  # it is seldom, and some file systems would leave an empty one


def sync_overwritten(path: Path) -> None:
    """Make what was written over durable; the file's size and name are."""
    with open(path, "rb", buffering=0) as file:
        os.fdatasync(file.fileno())
