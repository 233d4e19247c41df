"""The verbs on top of a backend: keys checked, requests counted, errors ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from ..errors import Code, Corrupt, InvalidInput
from .disk import Disk
from .objects import ONE_PUT_BYTES, PAGE, PART_BYTES
from .translation import translated
from .verbs import Buffer, Listed, Listing, Names, Requests, Stream, check_key, size_of


class Backend(Protocol):
    """What objects are kept in. It is given keys that are right, and raises what it likes: that is translated."""

    def get(self, key: str, offset: int, size: int | None, admit: Callable[[int], int]) -> bytes:
        """Read from ``offset`` as many bytes as ``admit`` says when told the object's size; it may refuse.

        ``size`` is for servers, which must be asked for a range before they tell it.
        """

    def put(self, key: str, buffers: Sequence[Buffer] | Stream) -> None: ...

    def create(self, key: str, buffers: Sequence[Buffer]) -> bool: ...

    def list(self, prefix: str, after: str | None) -> Sequence[tuple[str, int]]:
        """List (key, size) of what is below the folder ``prefix``, in any order."""

    def list_folders(self, prefix: str) -> Sequence[str]: ...

    def delete(self, keys: Sequence[str]) -> None: ...

    def move(self, source: str, target: str) -> None: ...

    def remove_unfinished(self, prefix: str) -> int: ...


class _Window:
    """The part of an object that was asked for, checked against the object's size before it is read."""

    def __init__(self, key: str, offset: int, size: int | None, max_bytes: int | None) -> None:
        self.key, self.offset, self.size, self.max_bytes = key, offset, size, max_bytes
        self.admitted = 0

    def admit(self, total: int) -> int:
        rest = total - self.offset
        wanted = rest if self.size is None else self.size
        if rest < 0 or wanted > rest:
            self.fail_short(total)
        if self.max_bytes is not None and wanted > self.max_bytes:
            raise Corrupt(
                f"{self.key} has {wanted} bytes to read, more than the {self.max_bytes} that can be right",
                code=Code.STORE_TOO_LARGE,
                hint="the object is not what its name says; restore it from a copy",
            )
        self.admitted = wanted
        return wanted

    def fail_short(self, total: int) -> NoReturn:
        asked = f"{self.size} bytes" if self.size is not None else "all"
        raise Corrupt(
            f"{self.key} ends after {total} bytes, but {asked} from {self.offset} on were to be read",
            code="object.damaged",
            hint="the object was cut; restore it from a copy",
        )


class Checked:
    """A backend whose keys are checked, whose requests are counted, and whose errors are ours."""

    def __init__(self, url: str, backend: Backend) -> None:
        self.url = url
        self.requests = Requests()
        self._backend = backend

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def get(self, key: str, *, offset: int = 0, size: int | None = None, max_bytes: int | None = None) -> bytes:
        if offset < 0 or (size is not None and size < 0):
            raise InvalidInput(f"get {key}: a range cannot be negative", code="store.invalid")
        window = _Window(check_key(key), offset, size, max_bytes)
        self.requests.add(gets=1)
        with translated("get", key, self.url):
            data = self._backend.get(key, offset, size, window.admit)
        if len(data) != window.admitted:
            window.fail_short(offset + len(data))
        return data

    def put(self, key: str, data: bytes | Sequence[Buffer] | Stream) -> None:
        buffers = [data] if isinstance(data, bytes | bytearray | memoryview) else data
        size = size_of(buffers)
        self.requests.add(puts=1 if size <= ONE_PUT_BYTES else 2 + math.ceil(size / PART_BYTES))
        with translated("put", check_key(key), self.url):
            self._backend.put(key, buffers)

    def create(self, key: str, data: bytes) -> bool:
        self.requests.add(puts=1)
        with translated("create", check_key(key), self.url):
            return self._backend.create(key, [data])

    def list(self, prefix: str, *, after: str | None = None) -> Listing:
        folder = _folder(prefix)
        with translated("list", prefix, self.url):
            found = self._backend.list(folder, after)
        self.requests.add(lists=_pages(found))
        return sorted((Listed(key, size) for key, size in found), key=lambda listed: listed.key)

    def list_names(self, prefix: str, *, after: str | None = None) -> Names:
        folder = _folder(prefix)
        keys = [listed.key for listed in self.list(folder, after=None if after is None else folder + after)]
        return [name for key in keys if "/" not in (name := key.removeprefix(folder))]

    def list_folders(self, prefix: str) -> Names:
        folder = _folder(prefix)
        with translated("list", prefix, self.url):
            names = self._backend.list_folders(folder)
        self.requests.add(lists=_pages(names))
        return sorted(names)

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self.requests.add(deletes=_pages(keys))
            with translated("delete", check_key(keys[0]), self.url):
                self._backend.delete([check_key(key) for key in keys])

    def move(self, source: str, target: str) -> None:
        self.requests.add(puts=1, deletes=1)
        with translated("move", check_key(source), self.url):
            self._backend.move(source, check_key(target))

    def remove_unfinished(self, prefix: str) -> int:
        with translated("delete", prefix, self.url):
            return self._backend.remove_unfinished(_folder(prefix))


class CheckedDisk(Checked):
    """A folder on disk, whose names can be listed without asking for sizes."""

    def __init__(self, url: str, disk: Disk) -> None:
        super().__init__(url, disk)
        self._disk = disk

    def list_names(self, prefix: str, *, after: str | None = None) -> Names:
        with translated("list", prefix, self.url):
            names = self._disk.list_names(_folder(prefix), after)
        self.requests.add(lists=_pages(names))
        return sorted(names)


def _folder(prefix: str) -> str:
    return check_key(prefix.removesuffix("/")) + "/" if prefix else ""


def _pages(items: Sequence[object]) -> int:
    return max(1, math.ceil(len(items) / PAGE))
