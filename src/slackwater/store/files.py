"""Folders of the local disk: made to outlast a power loss, synced, removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path


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
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
