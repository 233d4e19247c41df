"""A folder on disk whose writes are durable when they return.

obstore's LocalStore never syncs and cannot be told to, so it is not used at all: files are written, listed and deleted
here with the operating system's own calls. Every failure leaves as an ``OSError``; the store translates it.

Folders are entered one by one, by descriptor, never through a symbolic link: no key can lead out of the root.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from .files import sync
from .verbs import HIDDEN, Buffer

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_REFUSED = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
# How often a folder may be pruned by somebody else just before a file is made in it.
_LOST_RACES = 100
_MAX_KNOWN = 10_000
# A file that is not whole yet, or that a killed writer has left; `_written` makes the names.
_UNFINISHED = re.compile(r"\..{1,32}\.[0-9a-f]{16}\.tmp", re.DOTALL)

_T = TypeVar("_T")


class Disk:
    """The objects below one root. The root and its folders come with the first write and go with the last delete."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        # Folders whose own name this process has synced. A folder that merely exists may have been made by somebody
        # who died, or is still about to sync, so existing is not enough to rely on it.
        self._known: set[tuple[str, ...]] = set()
        self._folders_lock = threading.Lock()

    def get(self, key: str, offset: int, size: int | None, admit: Callable[[int], int]) -> bytes:
        try:
            with self._folder_of(key) as (folder, name):
                file = os.open(name, _READ, dir_fd=folder)
        except NotADirectoryError:
            raise FileNotFoundError(errno.ENOENT, "not an object", key) from None
        try:
            status = os.fstat(file)
            if stat.S_ISDIR(status.st_mode):
                raise FileNotFoundError(errno.ENOENT, "not an object", key)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.ELOOP, "not a regular file", key)
            return _read(file, offset, admit(status.st_size))
        finally:
            os.close(file)

    def put(self, key: str, buffers: Iterable[Buffer]) -> None:
        """Write the object, over an older one. When its folder is pruned meanwhile, the buffers are taken anew."""
        *folders, name = _parts(key)

        def publish(folder: int) -> None:
            with _written(folder, name, buffers) as temporary:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                sync(folder)

        self._in_made_folder(tuple(folders), publish)

    def create(self, key: str, buffers: Sequence[Buffer]) -> bool:
        """Write the object unless its name is taken. Either answer is durable."""
        *folders, name = _parts(key)

        def publish(folder: int) -> bool:
            with _written(folder, name, buffers) as temporary:
                created = _link(temporary, name, folder)
                with suppress(FileNotFoundError):  # a start takes it for a killed writer's
                    os.unlink(temporary, dir_fd=folder)
                sync(folder)
            return created

        return self._in_made_folder(tuple(folders), publish)

    def list(self, prefix: str, after: str | None) -> Sequence[tuple[str, int]]:
        if (folder := self._find_folder(prefix)) is None:
            return []
        return list(_walk(folder, prefix, after))

    def list_names(self, prefix: str, after: str | None) -> Sequence[str]:
        """Name all that is right below a folder and no folder itself; most file systems tell both in one listing."""
        if (folder := self._find_folder(prefix)) is None:
            return []
        with _closing(folder), os.scandir(folder) as entries:
            wanted = entries if after is None else (entry for entry in entries if entry.name > after)
            return _visible([entry.name for entry in wanted if not entry.is_dir(follow_symlinks=False)])

    def list_folders(self, prefix: str) -> Sequence[str]:
        if (folder := self._find_folder(prefix)) is None:
            return []
        with _closing(folder), os.scandir(folder) as entries:
            return _visible([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, and the folders that are empty then. After a power failure some may be back."""
        for key in keys:
            with suppress(FileNotFoundError, NotADirectoryError), self._folder_of(key) as (folder, name):
                os.unlink(name, dir_fd=folder)
        for folders in sorted({_parts(key)[:-1] for key in keys}, key=len, reverse=True):
            self._prune(folders)

    def remove_unfinished(self, prefix: str) -> int:
        """Delete the hidden files that writers have made, by their names; nobody else's have such a name."""
        if (folder := self._find_folder(prefix)) is None:
            return 0
        found = list(_walk_unfinished(folder, prefix))
        self.delete(found)
        return len(found)

    def move(self, source: str, target: str) -> None:
        """Rename an object. Its bytes are synced first: whoever wrote them may not have done so."""
        *folders, name = _parts(target)

        def rename(into: int) -> None:
            with self._folder_of(source) as (folder, old):
                file = os.open(old, _READ, dir_fd=folder)
                with _closing(file):
                    sync(file)
                os.rename(old, name, src_dir_fd=folder, dst_dir_fd=into)
                sync(into)
                sync(folder)

        try:
            if self._exists(source):  # else no folder is made for it
                self._in_made_folder(tuple(folders), rename)
                self._prune(_parts(source)[:-1])
                return
        except FileNotFoundError:
            if self._exists(source):
                raise
        # Moved before, perhaps by somebody who died before syncing.
        with self._folder_of(target) as (folder, taken):
            os.stat(taken, dir_fd=folder, follow_symlinks=False)
            sync(folder)

    def _exists(self, key: str) -> bool:
        try:
            with self._folder_of(key) as (folder, name):
                os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @contextmanager
    def _folder_of(self, key: str) -> Iterator[tuple[int, str]]:
        *folders, name = _parts(key)
        folder = self._open_folder(tuple(folders))
        with _closing(folder):
            yield folder, name

    def _find_folder(self, prefix: str) -> int | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return self._open_folder(_parts(prefix))
        return None

    def _open_folder(self, folders: tuple[str, ...]) -> int:
        folder = os.open(self._root, _FOLDER)
        for name in folders:
            with _closing(folder):
                folder = _enter(name, folder)
        return folder

    def _in_made_folder(self, folders: tuple[str, ...], act: Callable[[int], _T]) -> _T:
        """Act in a folder that exists durably; again from the top when somebody prunes it, or what is written there."""
        for attempt in range(_LOST_RACES):
            try:
                folder = self._make_folder(folders)
                with _closing(folder):
                    return act(folder)
            except FileNotFoundError:
                if attempt == _LOST_RACES - 1:
                    raise
                with self._folders_lock:
                    self._known.clear()
        raise AssertionError("the last attempt returns or raises")

    def _make_folder(self, folders: tuple[str, ...]) -> int:
        if () not in self._known:
            with self._folders_lock:
                self._make_root()
                self._known.add(())
        folder = os.open(self._root, _FOLDER)
        for depth, name in enumerate(folders, 1):
            with _closing(folder):
                if folders[:depth] not in self._known:
                    self._make_known(folder, folders[:depth])
                folder = _enter(name, folder)
        return folder

    def _make_known(self, parent: int, folders: tuple[str, ...]) -> None:
        with self._folders_lock:
            with suppress(FileExistsError):
                os.mkdir(folders[-1], dir_fd=parent)
            sync(parent)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known.add(folders)

    def _make_root(self) -> None:
        missing = [self._root]
        while not os.path.isdir(parent := os.path.dirname(missing[-1])):
            missing.append(parent)
        for path in reversed(missing):
            try:
                os.mkdir(path)
            except FileExistsError:
                if not os.access(os.path.dirname(path), os.R_OK):
                    continue  # it was there before us, below a folder that is not ours to sync
            except FileNotFoundError:
                if os.path.isdir(os.path.dirname(path)):  # as in /proc, where nobody can make a folder
                    raise PermissionError(errno.EACCES, "no folder can be made here", path) from None
                raise
            parent_folder = os.open(os.path.dirname(path), _FOLDER)
            with _closing(parent_folder):
                sync(parent_folder)

    def _prune(self, folders: tuple[str, ...]) -> None:
        """Remove a folder and those above it, as far as they are empty; never the root."""
        for depth in range(len(folders), 0, -1):
            with self._folders_lock:
                try:
                    parent = self._open_folder(folders[: depth - 1])
                    with _closing(parent):
                        os.rmdir(folders[depth - 1], dir_fd=parent)
                except (FileNotFoundError, NotADirectoryError):
                    pass
                except OSError as error:
                    if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                        return
                    raise
                self._known.discard(folders[:depth])


def _visible(names: list[str]) -> list[str]:
    # The pattern is slow, and hardly a name needs it.
    return [name for name in names if not ((name[0] == "." or "#" in name) and HIDDEN.fullmatch(name))]


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part for part in key.split("/") if part)


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _enter(name: str, parent: int) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
            raise OSError(errno.ELOOP, "a symbolic link", name) from None
        raise


@contextmanager
def _written(folder: int, name: str, buffers: Iterable[Buffer]) -> Iterator[str]:
    """Write a hidden, synced file beside ``name``; it is gone when this ends in an error."""
    temporary = f".{name[:32]}.{secrets.token_hex(8)}.tmp"
    file = os.open(temporary, _WRITE, 0o666, dir_fd=folder)
    try:
        with _closing(file):
            _write(file, buffers)
            sync(file)
        yield temporary
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _link(temporary: str, name: str, folder: int) -> bool:
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _LINKS_REFUSED:
            raise OSError(errno.EOPNOTSUPP, "no hard links here", name) from error
        raise
    return True


def _write(file: int, buffers: Iterable[Buffer]) -> None:
    for buffer in buffers:
        rest = memoryview(buffer).cast("B")
        while rest:
            rest = rest[os.write(file, rest) :]


def _read(file: int, offset: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(file, size, offset)):
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _walk(folder: int, prefix: str, after: str | None) -> Iterator[tuple[str, int]]:
    """Walk everything below the folder and close it. What vanishes on the way is left out."""
    with _closing(folder):
        names = os.listdir(folder)
        if after is not None:
            # Before anything else is asked: a folder may have thousands, and those after the last are wanted.
            names = [name for name in names if (key := prefix + name) >= after or after.startswith(key)]
        for name in _visible(names):
            key = prefix + name
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    inside = key + "/"
                    if after is None or inside > after or after.startswith(inside):
                        yield from _walk(os.open(name, _FOLDER, dir_fd=folder), inside, after)
                elif after is None or key > after:
                    # A link or a pipe is listed too: who reads it is refused, and nobody takes it for missing.
                    yield key, status.st_size


def _walk_unfinished(folder: int, prefix: str) -> Iterator[str]:
    """Walk everything below the folder and close it, without a look at whole files."""
    with _closing(folder):
        with os.scandir(folder) as entries:
            is_folder = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        for name, inside in is_folder.items():
            if not inside and name[0] == "." and _UNFINISHED.fullmatch(name):
                yield prefix + name
        for name in _visible([name for name, inside in is_folder.items() if inside]):
            with suppress(FileNotFoundError):
                yield from _walk_unfinished(os.open(name, _FOLDER, dir_fd=folder), f"{prefix}{name}/")
