"""Writes a checkpoint's verified files into a new directory, whole or not at all: the one writer of all restores."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InvalidInput, Unavailable
from ..formats.keys import check_path
from ..formats.manifest import Manifest
from ..settings import Settings
from ..store import Store
from ..store.files import make_folder, sync_folder, write_file
from .artifacts import Holdings, get_artifacts

# Changes the bytes of a file on their way to its path; they were verified as they are stored.
Rewrite = Callable[[str, Iterator[bytes]], Iterator[bytes]]
# Looks at all that was written, before it counts as whole, and raises what is wrong with it.
Check = Callable[[Path, Manifest], None]

_unfinished: set[Path] = set()
_ending = threading.Event()
_PATIENCE_S = 2.0


def write_directory(
    store: Store,
    manifest: Manifest,
    directory: Path,
    settings: Settings,
    *,
    durable: bool,
    check: Check | None = None,
    rewrite: Rewrite | None = None,
) -> Holdings:
    """Write a checkpoint's files, each verified, as a directory that is new or empty.

    It has its name only when it is whole: until then, and after a crash, what is written is in a hidden one beside it.
    """
    directory = directory.resolve()
    partial: Path | None = None
    try:
        _refuse_full(directory)
        make_folder(directory.parent)
        # Known before it is there: a signal may come at any point.
        partial = directory.with_name(f".{directory.name}.{secrets.token_hex(8)}.partial")
        _unfinished.add(partial)
        holdings = write_files(store, manifest, partial, settings, durable=durable, check=check, rewrite=rewrite)
        partial.rename(directory)
        if durable:
            sync_folder(directory.parent)
    except BaseException as error:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
            _unfinished.discard(partial)
        if isinstance(error, OSError):
            raise _unwritable(directory, error) from error
        raise
    _unfinished.discard(partial)
    return holdings


def write_files(
    store: Store,
    manifest: Manifest,
    folder: Path,
    settings: Settings,
    *,
    durable: bool,
    check: Check | None = None,
    rewrite: Rewrite | None = None,
) -> Holdings:
    """Write a checkpoint's files, each verified, into a new folder that nobody else looks at.

    What is durable is synced, files and folders. What is wrong with the disk leaves as an ``OSError``.
    """

    def write(path: str, parts: Iterator[bytes]) -> None:
        target = folder / check_path(path)
        if rewrite is not None:
            parts = rewrite(path, parts)
        if _ending.is_set():
            raise KeyboardInterrupt
        target.parent.mkdir(parents=True, exist_ok=True)
        if durable:
            write_file(target, parts)
        else:
            with target.open("wb") as file:
                file.writelines(parts)  # which holds one at a time

    folder.mkdir()
    holdings = get_artifacts(store, manifest, settings, write)
    if check is not None:
        check(folder, manifest)
    if durable:
        for inside, _, _ in os.walk(folder):
            sync_folder(Path(inside))
    return holdings


def remove_unfinished() -> None:
    """Remove what is half written: for a process that must end before those who write can. They begin no other file."""
    _ending.set()
    for partial in list(_unfinished):
        deadline = time.monotonic() + _PATIENCE_S
        # One that has begun may put its file there while the others go.
        while partial.exists() and time.monotonic() < deadline:
            shutil.rmtree(partial, ignore_errors=True)


def refuse_inside(directory: Path, folders: Iterable[Path], *, hint: str) -> None:
    """Refuse a directory in one of a pipeline's own folders: what is there may be taken for the pipeline's."""
    if any(directory.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise InvalidInput(
            f"{directory} is inside the pipeline's own folder",
            code="option.invalid",
            hint=hint,
        )


def _refuse_full(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidInput(
            f"{directory} is not empty, and what is there would mix with the checkpoint"
            if directory.is_dir()
            else f"{directory} is a file, and a directory is needed",
            code="folder.unusable",
            hint="name a directory that does not exist yet",
        )


def _unwritable(directory: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"{directory} cannot be written: {error.strerror}",
        code="folder.unavailable",
        hint="see that this user may write there, and that the disk has room",
    )


@contextmanager
def spool(what: str) -> Iterator[Path]:
    """Give a folder for what is too large for memory; it is removed in the end."""
    with tempfile.TemporaryDirectory(prefix=f"slackwater-{what}-") as folder:
        try:
            yield Path(folder)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
            raise Unavailable(
                f"{folder} cannot be written: {error.strerror}",
                code="folder.unavailable",
                hint="see that its disk has room; TMPDIR names another folder",
            ) from error
